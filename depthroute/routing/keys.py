"""One short function per kind of key: how a source is described to the consumers. This file is the ablation.

A key is made once, when its source is written, and is shared by all consumers. The coordinates of every kind start at size one,
and one optimizer step moves them by the same order of size: the shared map of dynamic keys is used through 1/D, as the map of
dynamic queries is (see queries.py). Keys that are raw values have the size of the values.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from depthroute.nn.norm import rms_norm, wide
from depthroute.routing.contract import Params


class Source(NamedTuple):
    """What a key may be made from: the source's number and value, the key before it, and what its site emitted for a key."""

    index: Any
    value_BTD: jax.Array
    previous_BTR: jax.Array | None
    emitted_BTR: jax.Array | None
    rank: int
    eps: float


def static(params: Params, source: Source) -> jax.Array:
    """One vector per source, the same for every token, learned or (`sinusoidal`) a fixed clock of the depth: [R]."""
    return params["key_SR"][source.index]


def dynamic_full(params: Params, source: Source) -> jax.Array:
    """All of what the source has just written, normalised: [B, T, D]."""
    return rms_norm(wide(source.value_BTD), source.eps)


def dynamic_raw(params: Params, source: Source) -> jax.Array:
    """All of what the source has just written, as it is: [B, T, D]."""
    return wide(source.value_BTD)


def dynamic_sliced(params: Params, source: Source) -> jax.Array:
    """The last R channels of what the source has just written, normalised: [B, T, R]."""
    return rms_norm(wide(source.value_BTD[..., -source.rank :]), source.eps)


def dynamic_projected(params: Params, source: Source) -> jax.Array:
    """What the source has just written, seen through a shared map: norm(v) P / D, [B, T, R]."""
    return _project(params, dynamic_full(params, source))


def stop_gradient(params: Params, source: Source) -> jax.Array:
    """`dynamic_projected`, but what was written is not changed for the key's sake."""
    return dynamic_projected(params, source._replace(value_BTD=jax.lax.stop_gradient(source.value_BTD)))


def centred(params: Params, source: Source) -> jax.Array:
    """`dynamic_projected` of the value without the running mean of its source: a key that cannot tell which layer made it."""
    deviation_BTD = subtract_mean(wide(source.value_BTD), params["key_mean_SD"][source.index])
    return _project(params, rms_norm(deviation_BTD, source.eps))


def hybrid(params: Params, source: Source) -> jax.Array:
    """A static key plus a gated dynamic part; the gate starts at zero and its size is itself a measurement."""
    return static(params, source)[None, None] + params["key_gate"] * dynamic_projected(params, source)


def emitted(params: Params, source: Source) -> jax.Array:
    """What the source's own output projection made beside its value, normalised; of the embedding, its projection."""
    if source.emitted_BTR is None:
        return rms_norm(dynamic_projected(params, source), source.eps)
    return rms_norm(wide(source.emitted_BTR), source.eps)


def recurrent(params: Params, source: Source) -> jax.Array:
    """A clock inside the network: norm(tanh(U k + P norm(v) / D + b)), k the key before; without U, tanh and b for source 0."""
    key_BTR = dynamic_projected(params, source)
    if source.previous_BTR is not None:
        carried_BTR = jnp.einsum("BTR,RE->BTE", source.previous_BTR, params["key_step_RE"])
        key_BTR = jnp.tanh(carried_BTR + key_BTR + params["key_shift_R"][None, None])
    return rms_norm(key_BTR, source.eps)


KEYS = {
    "static": static,
    "sinusoidal": static,
    "dynamic_full": dynamic_full,
    "dynamic_raw": dynamic_raw,
    "dynamic_sliced": dynamic_sliced,
    "dynamic_projected": dynamic_projected,
    "stop_gradient": stop_gradient,
    "centred": centred,
    "hybrid": hybrid,
    "emitted": emitted,
    "recurrent": recurrent,
}


def _project(params: Params, x_BTD: jax.Array) -> jax.Array:
    return jnp.einsum("BTD,DR->BTR", x_BTD, params["key_map_DR"]) / x_BTD.shape[-1]


@jax.custom_vjp
def subtract_mean(value_BTD: jax.Array, mean_D: jax.Array) -> jax.Array:
    """value - mean, where the mean is a running one over earlier steps.

    A mean over this batch would let a token see later ones. As "gradient" of the running mean this gives its distance from the
    batch's, whatever the loss, so that plain gradient descent on it is an exponential average: over microbatches and devices
    as gradients are averaged, in checkpoints as parameters are, and at rest in evaluation.
    """
    return value_BTD - mean_D[None, None]


def _subtract_forward(value_BTD: jax.Array, mean_D: jax.Array) -> tuple[jax.Array, jax.Array]:
    return subtract_mean(value_BTD, mean_D), mean_D - jnp.mean(value_BTD, axis=(0, 1))


def _subtract_backward(distance_D: jax.Array, dout_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
    return dout_BTD, distance_D


subtract_mean.defvjp(_subtract_forward, _subtract_backward)
