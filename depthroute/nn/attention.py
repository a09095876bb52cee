"""Causal self-attention with rotary positions and grouped key/value heads."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthroute.nn.linear import linear, with_emitted
from depthroute.nn.norm import RMSNorm
from depthroute.nn.params import Parameter, fan_in


def rotate(x_BTHK: jax.Array, base: float) -> jax.Array:
    """Rotary position embedding (Su et al., 2021, arXiv 2104.09864).

    Pairs coordinate j with j + K/2 and turns the pair by position x base^(-2j/K) radians, in float32.
    """
    half = x_BTHK.shape[-1] // 2
    frequency_K = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle_TK = jnp.outer(jnp.arange(x_BTHK.shape[1], dtype=jnp.float32), frequency_K)
    cos, sin = (f(angle_TK)[None, :, None, :] for f in (jnp.cos, jnp.sin))
    first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x_BTHK.dtype)


def attend(query_BTHK: jax.Array, key_BUGK: jax.Array, value_BUGK: jax.Array) -> jax.Array:
    """Causal softmax attention; head h reads key/value head h // (H / G). Scores are float32. Returns [B, T, H, K]."""
    B, T, H, K = query_BTHK.shape
    G = key_BUGK.shape[2]
    query_BGQTK = query_BTHK.reshape(B, T, G, H // G, K).transpose(0, 2, 3, 1, 4)
    mixed_BGQTK = _attend(query_BGQTK, key_BUGK.swapaxes(1, 2), value_BUGK.swapaxes(1, 2))
    return mixed_BGQTK.transpose(0, 3, 1, 2, 4).reshape(B, T, H, K)


class _Kept(NamedTuple):
    """What the backward pass needs. Weights are relative to the largest of their row, and `total` is their sum."""

    query_BGQTK: jax.Array
    key_BGUK: jax.Array
    value_BGUK: jax.Array
    weights_BGQTU: jax.Array
    total_BGQT1: jax.Array
    mixed_BGQTK: jax.Array


@jax.custom_vjp
def _attend(query_BGQTK: jax.Array, key_BGUK: jax.Array, value_BGUK: jax.Array) -> jax.Array:
    """`attend` with heads first, and a backward pass by hand, so that few passes go over arrays as large as the scores.

    No product transposes such an array; weights are normalised after the product with the values, their gradient before it; and
    the mean gradient under the weights is a sum over K instead of U (Dao et al., 2022, arXiv 2205.14135, appendix B).
    """
    return _attend_forward(query_BGQTK, key_BGUK, value_BGUK)[0]


def _attend_forward(query_BGQTK: jax.Array, key_BGUK: jax.Array, value_BGUK: jax.Array) -> tuple[jax.Array, _Kept]:
    scores_BGQTU = _wide("BGQTK,BGUK->BGQTU", query_BGQTK, key_BGUK) * query_BGQTK.shape[-1] ** -0.5
    allowed_TU = jnp.tril(jnp.ones(scores_BGQTU.shape[-2:], bool))
    scores_BGQTU = jnp.where(allowed_TU[None, None, None], scores_BGQTU, -jnp.inf)
    weights_BGQTU = jnp.exp(scores_BGQTU - jnp.max(scores_BGQTU, axis=-1, keepdims=True))
    total_BGQT1 = jnp.sum(weights_BGQTU, axis=-1, keepdims=True)
    weights_BGQTU = weights_BGQTU.astype(value_BGUK.dtype)
    mixed_BGQTK = _wide("BGQTU,BGUK->BGQTK", weights_BGQTU, value_BGUK) / total_BGQT1
    mixed_BGQTK = mixed_BGQTK.astype(value_BGUK.dtype)
    return mixed_BGQTK, _Kept(query_BGQTK, key_BGUK, value_BGUK, weights_BGQTU, total_BGQT1, mixed_BGQTK)


def _attend_backward(kept: _Kept, dmixed_BGQTK: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    query_BGQTK, key_BGUK, value_BGUK, weights_BGQTU, total_BGQT1, mixed_BGQTK = kept
    dtype = dmixed_BGQTK.dtype
    dmixed_BGQTK = dmixed_BGQTK / total_BGQT1
    mean_BGQT1 = jnp.sum(dmixed_BGQTK * mixed_BGQTK, axis=-1, keepdims=True)
    dmixed_BGQTK = dmixed_BGQTK.astype(dtype)
    dweights_BGQTU = _wide("BGQTK,BGUK->BGQTU", dmixed_BGQTK, value_BGUK)
    dscores_BGQTU = weights_BGQTU * (dweights_BGQTU - mean_BGQT1) * query_BGQTK.shape[-1] ** -0.5
    dscores_BGQTU = dscores_BGQTU.astype(dtype)
    dquery_BGQTK = jnp.einsum("BGQTU,BGUK->BGQTK", dscores_BGQTU, key_BGUK)
    dkey_BGKU = jnp.einsum("BGQTK,BGQTU->BGKU", query_BGQTK, dscores_BGQTU)
    dvalue_BGKU = jnp.einsum("BGQTK,BGQTU->BGKU", dmixed_BGQTK, weights_BGQTU)
    return dquery_BGQTK, dkey_BGKU.swapaxes(2, 3), dvalue_BGKU.swapaxes(2, 3)


_attend.defvjp(_attend_forward, _attend_backward)


def _wide(equation: str, *operands: jax.Array) -> jax.Array:
    """An einsum that is summed and returned in at least float32."""
    return jnp.einsum(equation, *operands, preferred_element_type=jnp.promote_types(operands[0].dtype, jnp.float32))


class Attention(nn.Module):
    """Sublayer: norm (if `prenorm`), projections, `attend`, output projection. Adds nothing to its input.

    Keys and values may be made from other inputs than queries: [B, T, D], or [B, T, G, D] with one for each of their heads. All
    inputs go through the one norm. With `emit` the output projection is that much wider. `first_BTGK`, the first layer's
    values, take `value_share` of the place of its own (ResFormer, arXiv 2410.17897).

    Initial values: projections N(0, 1/fan_in); those of values are divided by `shrink`, of the output by
    `out_shrink`.
    """

    heads: int
    kv_heads: int
    rope_base: float
    norm_eps: float
    prenorm: bool
    emit: int
    value_share: float
    shrink: float
    out_shrink: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        key_input: jax.Array | None = None,
        value_input: jax.Array | None = None,
        first_BTGK: jax.Array | None = None,
    ) -> jax.Array:
        D = x_BTD.shape[-1]
        K = D // self.heads
        norm = RMSNorm(self.norm_eps, name="norm") if self.prenorm else lambda x: x
        x_BTD = norm(x_BTD)

        def project(name: str, axes: str, heads: int, own: jax.Array | None = None, shrink: float = 1.0) -> jax.Array:
            kernel = Parameter(axes, (D, heads, K), fan_in(D, shrink), name=name)().astype(self.dtype)
            if own is not None and own.ndim == 4:
                return jnp.einsum("BTGD,DGK->BTGK", norm(own), kernel)
            return linear(x_BTD if own is None else norm(own), kernel)

        query_BTHK = rotate(project("query", "DHK", self.heads), self.rope_base)
        key_BTGK = rotate(project("key", "DGK", self.kv_heads, key_input), self.rope_base)
        value_BTGK = project("value", "DGK", self.kv_heads, value_input, self.shrink)
        if first_BTGK is not None:
            value_BTGK = (1 - self.value_share) * value_BTGK + self.value_share * first_BTGK
        mixed_BTHK = attend(query_BTHK, key_BTGK, value_BTGK)
        out_HKD = Parameter("HKD", (self.heads, K, D), fan_in(D, self.out_shrink), name="out")()
        out_DE = with_emitted(out_HKD.reshape(D, D), self.emit, self.out_shrink)
        return linear(mixed_BTHK.reshape(x_BTD.shape), out_DE.astype(self.dtype))


def values(params: Mapping[str, Any], x_BTD: jax.Array, norm_eps: float) -> jax.Array:
    """The values [B, T, G, K] that `Attention` with these parameters makes of its input."""
    normed: Any = RMSNorm(norm_eps).apply({"params": params["norm"]}, x_BTD) if "norm" in params else x_BTD
    return linear(normed, params["value"]["DGK"].astype(x_BTD.dtype))
