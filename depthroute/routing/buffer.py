"""The buffer form of the depth history: one array over slots, appended to, read by the two kernels that cost anything.

Both walk a list of slots in chunks, so that their work is that of the slots listed and not of the whole buffer. Within a chunk
every slot is its own operand of one elementwise loop: on CPU that reads memory at its bandwidth, where a contraction over slots
or over tokens copies the history or multiplies token by token.
"""

from math import gcd

import jax
import jax.numpy as jnp

from depthroute.nn.norm import wide

CHUNK = 4  # slots per turn of the loop; measured best of 1, 2, 4, 8, 16 on CPU


def put(buffer: jax.Array, slot: int | jax.Array, value: jax.Array) -> jax.Array:
    """The buffer with `value` in `slot`."""
    return jax.lax.dynamic_update_index_in_dim(buffer, value.astype(buffer.dtype), slot, 0)


def take(buffer: jax.Array, slot: int | jax.Array) -> jax.Array:
    """What is in `slot`."""
    return jax.lax.dynamic_index_in_dim(buffer, slot, 0, keepdims=False)


def take_now(buffer: jax.Array, slot: int | jax.Array) -> jax.Array:
    """`take` that is over before what depends on it.

    XLA reads a slice again wherever it is used, and copies the whole buffer if the slot is written in between. A loop of one
    turn keeps it from doing so on CPU, where `jax.lax.optimization_barrier` does not.
    """
    return jax.lax.fori_loop(slot, slot + 1, lambda i, _: take(buffer, i), jnp.zeros_like(buffer[0]))


def mix(buffer_SBTD: jax.Array, weights: jax.Array, slots_J: jax.Array, count: jax.Array) -> jax.Array:
    """sum over the first `count` slots listed of weights[slot] buffer[slot], [B, T, D], for weights [S, B, T] or [S]."""

    def chunk(j: jax.Array, mixed_BTD: jax.Array) -> jax.Array:
        for k in range(CHUNK):
            slot = take(slots_J, j * CHUNK + k)
            weight = jnp.where(j * CHUNK + k < count, take(weights, slot), 0)
            mixed_BTD += (weight if weight.ndim == 0 else weight[..., None]) * wide(take(buffer_SBTD, slot))
        return mixed_BTD

    zeros_BTD = jnp.zeros_like(wide(buffer_SBTD[0]))
    return jax.lax.fori_loop(0, (count + CHUNK - 1) // CHUNK, chunk, zeros_BTD)


def dots(buffer_SBTD: jax.Array, x_BTD: jax.Array, slots_J: jax.Array, count: jax.Array) -> jax.Array:
    """<x, buffer[slot]> over the width for the slots listed, zero for the others, at least float32: [S, B, T].

    Slots past `count` must repeat one listed before.
    """

    def chunk(j: jax.Array, dots_SBT: jax.Array) -> jax.Array:
        slots = [take(slots_J, j * CHUNK + k) for k in range(CHUNK)]
        for slot, dot_BT in [(s, jnp.sum(wide(x_BTD) * wide(take(buffer_SBTD, s)), axis=-1)) for s in slots]:
            dots_SBT = put(dots_SBT, slot, dot_BT)
        return dots_SBT

    zeros_SBT = jnp.zeros(buffer_SBTD.shape[:-1], wide(x_BTD).dtype)
    return jax.lax.fori_loop(0, (count + CHUNK - 1) // CHUNK, chunk, zeros_SBT)


def all_dots(x_MBTD: jax.Array, buffer_SBTD: jax.Array) -> jax.Array:
    """Every <x[m], buffer[slot]> over batch, time and width, as matrix products in at least float32: [M, S].

    The width goes in pieces, since a backend may copy an operand of a product to transpose it.
    """
    pieces = gcd(buffer_SBTD.shape[-1], 8)
    width = buffer_SBTD.shape[-1] // pieces
    dtype = wide(x_MBTD[0]).dtype

    def piece(i: jax.Array, total_MS: jax.Array) -> jax.Array:
        parts = (jax.lax.dynamic_slice_in_dim(array, i * width, width, -1) for array in (x_MBTD, buffer_SBTD))
        return total_MS + jnp.einsum("MBTD,SBTD->MS", *parts, preferred_element_type=dtype)

    return jax.lax.fori_loop(0, pieces, piece, jnp.zeros((len(x_MBTD), len(buffer_SBTD)), dtype))
