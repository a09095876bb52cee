"""The buffer form of the depth history: one array over slots, appended to, read by the kernels that cost anything.

They walk a list of slots, so that their work is that of the slots listed and not of the whole buffer. Mixes take them in
chunks, in which every slot is its own operand of one elementwise loop: on CPU that reads memory at its bandwidth, where a
contraction over slots or over tokens copies the history or multiplies token by token.
"""

from math import gcd

import jax
import jax.numpy as jnp

from depthroute.nn.norm import wide

CHUNK = 4  # on CPU 1 and 2 write the sum too often, and 8 is no faster


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
    """sum over the first `count` slots listed, at least one, of weights[slot] buffer[slot], in at least float32: [B, T, D].

    Weights are [S, B, T] or [S].
    """

    def term(j: int | jax.Array) -> jax.Array:
        slot = take(slots_J, j)
        weight = take(weights, slot)
        return (weight if weight.ndim == 0 else weight[..., None]) * wide(take(buffer_SBTD, slot))

    def chunk(c: jax.Array, mixed_BTD: jax.Array) -> jax.Array:
        for k in range(CHUNK):
            mixed_BTD += term(1 + c * CHUNK + k)
        return mixed_BTD

    chunks = (count - 1) // CHUNK
    mixed_BTD = jax.lax.fori_loop(0, chunks, chunk, term(0))
    return jax.lax.fori_loop(1 + chunks * CHUNK, count, lambda j, mixed_BTD: mixed_BTD + term(j), mixed_BTD)


def dots(buffer_SBTD: jax.Array, x_BTD: jax.Array, slots_J: jax.Array, count: jax.Array) -> jax.Array:
    """<x, buffer[slot]> over the width for the first `count` slots listed, zero for the others, at least float32: [S, B, T]."""

    def one(j: jax.Array, dots_SBT: jax.Array) -> jax.Array:
        slot = take(slots_J, j)
        return put(dots_SBT, slot, _sum_last(wide(x_BTD) * wide(take(buffer_SBTD, slot))))

    return jax.lax.fori_loop(0, count, one, jnp.zeros(buffer_SBTD.shape[:-1], wide(x_BTD).dtype))


def mix_and_dots(
    buffer_SBTD: jax.Array, weights_SBT: jax.Array, x_BTD: jax.Array, slots_J: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both `mix` and `dots` of the same buffer and slots, while a chunk of it is in the cache."""

    def one(j: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        mixed_BTD, dots_SBT = both
        slot = take(slots_J, j)
        value_BTD = wide(take(buffer_SBTD, slot))
        dots_SBT = put(dots_SBT, slot, _sum_last(wide(x_BTD) * value_BTD))
        return mixed_BTD + take(weights_SBT, slot)[..., None] * value_BTD, dots_SBT

    def chunk(c: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        for k in range(CHUNK):
            both = one(c * CHUNK + k, both)
        return both

    zeros = jnp.zeros_like(wide(buffer_SBTD[0])), jnp.zeros(buffer_SBTD.shape[:-1], wide(x_BTD).dtype)
    chunks = count // CHUNK
    both = jax.lax.fori_loop(0, chunks, chunk, zeros)
    return jax.lax.fori_loop(chunks * CHUNK, count, one, both)


def _sum_last(x_BTD: jax.Array) -> jax.Array:
    """Sum over the width: [B, T]. On CPU a product with ones is twice as fast as a reduction, which copies the slot first."""

    def by_product(x_BTD: jax.Array) -> jax.Array:
        return jnp.einsum("BTD,D->BT", x_BTD, jnp.ones_like(x_BTD, shape=x_BTD.shape[-1:]))

    return jax.lax.platform_dependent(x_BTD, cpu=by_product, default=lambda x_BTD: jnp.sum(x_BTD, axis=-1))


def table_dots(table_NR: jax.Array, x_BTR: jax.Array) -> jax.Array:
    """<x, row> for every row of a table: [N, B, T]. The small result is transposed, where a product would transpose x."""
    return jnp.moveaxis(jnp.einsum("BTR,NR->BTN", x_BTR, table_NR), -1, 0)


def table_mix(table_NR: jax.Array, weights_NBT: jax.Array) -> jax.Array:
    """sum_n weights[n] row n: [B, T, R]."""
    return jnp.einsum("BTN,NR->BTR", jnp.moveaxis(weights_NBT, 0, -1), table_NR)


def all_dots(x_MBTD: jax.Array, buffer_SBTD: jax.Array) -> jax.Array:
    """Every <x[m], buffer[slot]> over batch, time and width, as matrix products in at least float32: [M, S].

    The width goes in pieces, since a backend may copy an operand of a product to transpose it.
    """
    pieces = gcd(buffer_SBTD.shape[-1], 16)
    width = buffer_SBTD.shape[-1] // pieces
    dtype = wide(x_MBTD[0]).dtype

    def piece(i: jax.Array, total_MS: jax.Array) -> jax.Array:
        parts = (jax.lax.dynamic_slice_in_dim(array, i * width, width, -1) for array in (x_MBTD, buffer_SBTD))
        return total_MS + jnp.einsum("MBTD,SBTD->MS", *parts, preferred_element_type=dtype)

    return jax.lax.fori_loop(0, pieces, piece, jnp.zeros((len(x_MBTD), len(buffer_SBTD)), dtype))
