"""One short function per kind of query: what a consumer looks for among the sources.

A dynamic query starts equal to the static one, because its map starts at zero. The map is scaled by 1/D: its input has D
coordinates of size one and Adam moves each entry of the map by the learning rate, so without the factor one step would move
the query of a token by up to D times as much as it moves a static query.
"""

import jax
import jax.numpy as jnp

from depthroute.nn.norm import rms_norm, wide
from depthroute.routing.contract import Params


def static(params_m: Params, z_BTD: jax.Array, eps: float) -> jax.Array:
    """w_m, the same for every token: [R]."""
    return params_m["query_R"]


def dynamic(params_m: Params, z_BTD: jax.Array, eps: float) -> jax.Array:
    """w_m + norm(z) W_m / D: [B, T, R]."""
    D = z_BTD.shape[-1]
    moved_BTR = jnp.einsum("BTD,DR->BTR", rms_norm(wide(z_BTD), eps), params_m["query_map_DR"]) / D
    return params_m["query_R"][None, None] + moved_BTR


QUERIES = {"static": static, "dynamic": dynamic}
