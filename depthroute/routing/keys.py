"""One short function per kind of key: how a source is described to the consumers. This file is the ablation.

A key is made once, when its source is written, and is shared by all consumers. The coordinates of every kind start at size one,
and one optimizer step moves them by the same order of size: the shared map of dynamic keys is used through 1/D, as the map of
dynamic queries is (see queries.py).
"""

from typing import Any

import jax
import jax.numpy as jnp

from depthroute.nn.norm import rms_norm, wide
from depthroute.routing.contract import Params


def static(params: Params, source: Any, value_BTD: jax.Array, eps: float) -> jax.Array:
    """One learned vector per source, the same for every token: [R]."""
    return params["key_SR"][source]


def dynamic_full(params: Params, source: Any, value_BTD: jax.Array, eps: float) -> jax.Array:
    """All of what the source has just written, normalised: [B, T, D]."""
    return rms_norm(wide(value_BTD), eps)


def dynamic_projected(params: Params, source: Any, value_BTD: jax.Array, eps: float) -> jax.Array:
    """What the source has just written, seen through a shared map: norm(v) P / D, [B, T, R]."""
    D = value_BTD.shape[-1]
    return jnp.einsum("BTD,DR->BTR", dynamic_full(params, source, value_BTD, eps), params["key_map_DR"]) / D


def hybrid(params: Params, source: Any, value_BTD: jax.Array, eps: float) -> jax.Array:
    """A static key plus a gated dynamic part; the gate starts at zero and its size is itself a measurement."""
    dynamic_BTR = dynamic_projected(params, source, value_BTD, eps)
    return static(params, source, value_BTD, eps)[None, None] + params["key_gate"] * dynamic_BTR


KEYS = {"static": static, "dynamic_full": dynamic_full, "dynamic_projected": dynamic_projected, "hybrid": hybrid}
