"""Routers with n streams, scanned over layers: coefficients are made once a site, and streams are kept once a layer.

With rematerialisation the backward pass starts a layer from its streams and from what is small or dear: the sites' outputs
(the gradient of a write coefficient needs them, and keeping one [B, T, D] spares its site's last product), the products with
the maps, and carries that took iterations. So a layer of two sites keeps n + 2 arrays [B, T, D] and a little, where keeping the
streams at every site would take 2 n.
"""

from collections.abc import Callable, Sequence

import jax

from depthroute.model.depth import Site, Tree
from depthroute.routing.contract import Params
from depthroute.routing.stream_passes import KEPT, keep
from depthroute.routing.streams import Streams


def scan_streams(
    router: Streams, params: Params, sites: Callable[[Tree], Sequence[Site]], layers: Tree, x_BTD: jax.Array, remat: bool
) -> jax.Array:
    """What the read-out sees.

    Args: those of `scan_depth`, and whether the backward pass computes sites again.
    """
    stacked = router.stack(params)
    L = jax.tree.leaves(layers)[0].shape[0]
    own = {name: rows.reshape(L, -1, *rows.shape[1:]) for name, rows in stacked.sites.items()}

    def layer(streams_BTND: jax.Array, xs: tuple[Tree, Params]) -> tuple[jax.Array, None]:
        weights, own = xs
        for i, site in enumerate(sites(weights)):
            by = router.coefficients({name: rows[i] for name, rows in own.items()}, streams_BTND)
            streams_BTND = router.leave(by, streams_BTND, keep(site(router.see(by, streams_BTND))))
        return streams_BTND, None

    if remat:
        policy = jax.checkpoint_policies.save_only_these_names(KEPT)
        layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
    streams_BTND, _ = jax.lax.scan(layer, router.init_state(stacked.readout, x_BTD), (layers, own))
    return router.readout(stacked.readout, streams_BTND).x_BTD
