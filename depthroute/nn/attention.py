"""Causal self-attention with rotary positions and grouped key/value heads."""

import flax.linen as nn
import jax
import jax.numpy as jnp

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
    query_BTGQK = query_BTHK.reshape(B, T, G, H // G, K)
    scores_BGQTU = jnp.einsum("BTGQK,BUGK->BGQTU", query_BTGQK, key_BUGK, preferred_element_type=jnp.float32) * K**-0.5
    allowed_TU = jnp.tril(jnp.ones((T, T), bool))
    weights_BGQTU = jax.nn.softmax(scores_BGQTU, axis=-1, where=allowed_TU[None, None, None])
    mixed_BTGQK = jnp.einsum("BGQTU,BUGK->BTGQK", weights_BGQTU.astype(value_BUGK.dtype), value_BUGK)
    return mixed_BTGQK.reshape(B, T, H, K)


class Attention(nn.Module):
    """Sublayer: norm (if `prenorm`), projections, `attend`, output projection. Adds nothing to its input.

    Initial values: projections N(0, 1/fan_in); the output projection is divided by `out_shrink` as well.
    """

    heads: int
    kv_heads: int
    rope_base: float
    norm_eps: float
    prenorm: bool
    out_shrink: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        D = x_BTD.shape[-1]
        K = D // self.heads
        if self.prenorm:
            x_BTD = RMSNorm(self.norm_eps, name="norm")(x_BTD)

        def project(name: str, axes: str, heads: int) -> jax.Array:
            kernel = Parameter(axes, (D, heads, K), fan_in(D), name=name)()
            return jnp.einsum(f"BTD,{axes}->BT{axes[1:]}", x_BTD, kernel.astype(self.dtype))

        query_BTHK = rotate(project("query", "DHK", self.heads), self.rope_base)
        key_BTGK = rotate(project("key", "DGK", self.kv_heads), self.rope_base)
        value_BTGK = project("value", "DGK", self.kv_heads)
        mixed_BTHK = attend(query_BTHK, key_BTGK, value_BTGK)
        out_HKD = Parameter("HKD", (self.heads, K, D), fan_in(D, self.out_shrink), name="out")()
        return jnp.einsum("BTHK,HKD->BTD", mixed_BTHK, out_HKD.astype(self.dtype))
