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


def own_input(params_m: Params, z_BTD: jax.Array, eps: float) -> jax.Array:
    """norm(z) itself; what is learned are the keys (LIMe, arXiv 2502.09245): [B, T, D]."""
    return rms_norm(wide(z_BTD), eps)


QUERIES = {"static": static, "dynamic": dynamic, "input": own_input}


def mlp_scores(params_m: Params, z_BTD: jax.Array, eps: float) -> jax.Array:
    """gelu(norm(z) W1) W2: scores of all mixes of a consumer, [B, T, C, S] (MUDDFormer, arXiv 2502.12170).

    Read as attention, a hidden layer of the newest state is the query, and a column of W2 the static key of a source.
    """
    hidden_BTCS = jax.nn.gelu(jnp.einsum("BTD,CSD->BTCS", rms_norm(wide(z_BTD), eps), params_m["mlp_in_CSD"]))
    return jnp.einsum("BTCS,CSEU->BTEU", hidden_BTCS, params_m["mlp_out_CSEU"])
