"""Routers with n streams, scanned over layers: coefficients are made once a site, and streams are kept once a layer.

With rematerialisation the backward pass starts a layer from its streams and from what is small or dear: the sites' outputs
(the gradient of a write coefficient needs them, and keeping one [B, T, D] spares its site's last product), the products with
the maps, and carries that took iterations. So a layer of two sites keeps n + 2 arrays [B, T, D] and a little, where keeping the
streams at every site would take 2 n.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from depthroute.model.depth import Site, Tree
from depthroute.routing.carries import stochastic_error
from depthroute.routing.contract import Params, Stacked
from depthroute.routing.stream_passes import KEPT, keep
from depthroute.routing.streams import Coefficients, Streams


def scan_streams(
    router: Streams, params: Params, sites: Callable[[Tree], Sequence[Site]], layers: Tree, x_BTD: jax.Array, remat: bool
) -> jax.Array:
    """What the read-out sees.

    Args: those of `scan_depth`, and whether the backward pass computes sites again.
    """

    def layer(streams_BTND: jax.Array, xs: tuple[Tree, Params]) -> tuple[jax.Array, None]:
        return _layer(router, sites, streams_BTND, xs)[0], None

    if remat:
        policy = jax.checkpoint_policies.save_only_these_names(KEPT)
        layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
    stacked, xs = _rows(router, params, layers)
    streams_BTND, _ = jax.lax.scan(layer, router.init_state(stacked.readout, x_BTD), xs)
    return router.readout(stacked.readout, streams_BTND).x_BTD


def largest_carry_error(
    router: Streams, params: Params, sites: Callable[[Tree], Sequence[Site]], layers: Tree, x_BTD: jax.Array
) -> jax.Array:
    """How far sums of carries that should be one are from it at most, over sites and tokens (see `stochastic_error`)."""

    def layer(streams_BTND: jax.Array, xs: tuple[Tree, Params]) -> tuple[jax.Array, jax.Array]:
        streams_BTND, used = _layer(router, sites, streams_BTND, xs)
        carries = (jnp.moveaxis(by.carry_BTON, (2, 3), (0, 1)) for by in used if by.carry_BTON is not None)
        return streams_BTND, jnp.max(jnp.stack([stochastic_error(carry_ON) for carry_ON in carries]))

    stacked, xs = _rows(router, params, layers)
    return jnp.max(jax.lax.scan(layer, router.init_state(stacked.readout, x_BTD), xs)[1])


def _rows(router: Streams, params: Params, layers: Tree) -> tuple[Stacked, tuple[Tree, Params]]:
    """The router's parameters, and those that a scan over layers hands out: of the layer, and of its sites."""
    stacked = router.stack(params)
    L = jax.tree.leaves(layers)[0].shape[0]
    return stacked, (layers, {name: rows.reshape(L, -1, *rows.shape[1:]) for name, rows in stacked.sites.items()})


def _layer(
    router: Streams, sites: Callable[[Tree], Sequence[Site]], streams_BTND: jax.Array, xs: tuple[Tree, Params]
) -> tuple[jax.Array, list[Coefficients]]:
    weights, own = xs
    used = []
    for i, site in enumerate(sites(weights)):
        by = router.coefficients({name: rows[i] for name, rows in own.items()}, streams_BTND)
        streams_BTND = router.leave(by, streams_BTND, keep(site(router.see(by, streams_BTND))))
        used.append(by)
    return streams_BTND, used
