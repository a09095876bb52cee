"""What the depth loops see of a model, without the transformer: a router between small random sites."""

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.model.append_scan import scan_append
from depthroute.model.depth import run_depth
from depthroute.model.history_scan import scan_history
from depthroute.routing.build import build_router
from depthroute.routing.contract import Ways
from depthroute.routing.depth_weights import has_kernels


def gather(x):
    """One array of all that a site sees, each in its own way."""
    if not isinstance(x, Ways):
        return x
    key, value = (
        own if own.ndim == 3 else jnp.einsum("BTGD,G->BTD", own, jnp.arange(1.0, own.shape[2] + 1)) for own in (x.key, x.value)
    )
    return x.residual + jnp.sin(x.query) + key * jnp.cos(value)


class Toy:
    """A router over sites x -> tanh(x W), at random parameters: what the loops see of a model, without the transformer.

    `gain` multiplies queries and biases, so that scores get large.
    """

    def __init__(self, config, batch=3, seed=0, gain=1.0, dtype=np.float32):
        rng = np.random.default_rng(seed)
        D, L = config.model.dim, config.model.layers
        self.router, self.layers_count = build_router(config), L
        self.per_layer = 1 if config.router.sites == "layer" else 2
        shapes = jax.eval_shape(self.router.parameters().init, jax.random.key(0)).get("params", {})

        def draw(path, leaf):
            scale = gain if path[0].key in ("query", "bias") else D if path[0].key in ("key_map", "query_map") else 1.0
            return jnp.asarray(scale * rng.standard_normal(leaf.shape), dtype)

        self.params = jax.tree.map_with_path(draw, shapes)
        width = D + (config.router.rank if config.router.key == "emitted" else 0)
        self.layers = jnp.asarray(rng.standard_normal((L, self.per_layer, D, width)) / D**0.5, dtype)
        self.x_BTD = jnp.asarray(rng.standard_normal((batch, 4, D)), dtype)
        self.direction_BTD = jnp.asarray(rng.standard_normal(self.x_BTD.shape), dtype)

    def scale(self, factor):
        """Scores times `factor`, if what is read stayed the same."""
        for name in {"query", "query_map", "bias"} & self.params.keys():
            self.params[name] = jax.tree.map(lambda x: x * factor, self.params[name])

    def sites(self, layer):
        return [lambda x, w_DD=w_DD: jnp.tanh(gather(x) @ w_DD.astype(self.x_BTD.dtype)) for w_DD in layer]

    def routing(self, params):
        return self.router.parameters().apply({"params": params})

    def by_list(self, params, layers, x_BTD):
        sites = [site for layer in layers for site in self.sites(layer)]
        return run_depth(self.router, self.routing(params), sites, x_BTD)[0]

    def by_buffer(self, params, layers, x_BTD):
        """The form that a model with this router runs."""
        if not has_kernels(self.router.config):
            return self.by_appending(params, layers, x_BTD)
        return scan_history(self.router, self.routing(params), self.sites, layers, x_BTD)

    def trace_by_list(self, params, layers, x_BTD):
        sites = [site for layer in layers for site in self.sites(layer)]
        return run_depth(self.router, self.routing(params), sites, x_BTD)[1]

    def trace_by_appending(self, params, layers, x_BTD):
        return scan_append(self.router, self.routing(params), self.sites, layers, x_BTD, trace=True)[1]

    def by_appending(self, params, layers, x_BTD):
        return scan_append(self.router, self.routing(params), self.sites, layers, x_BTD)[0]

    def outputs_and_gradients(self, form):
        """What the read-out sees, and the gradients of its product with a random direction."""

        def project(*args):
            out_BTD = form(*args)
            return jnp.sum(out_BTD.astype(self.direction_BTD.dtype) * self.direction_BTD), out_BTD

        gradient, out_BTD = jax.jit(jax.grad(project, (0, 1, 2), has_aux=True))(self.params, self.layers, self.x_BTD)
        return {"out": out_BTD, "gradient": gradient}
