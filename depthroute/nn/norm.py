"""Root-mean-square normalisation (Zhang and Sennrich, 2019, arXiv 1910.07467)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthroute.nn.params import Parameter


def wide(x: jax.Array) -> jax.Array:
    """x in float32, or as it is where it is wider: what sums and scores are computed in."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def inverse_rms(x: jax.Array, eps: float) -> jax.Array:
    """1 / sqrt(mean(x^2) + eps) over the last axis, which stays with size one; at least float32."""
    return jax.lax.rsqrt(jnp.mean(jnp.square(wide(x)), axis=-1, keepdims=True) + eps)


def rms_norm(x: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) over the last axis, computed in at least float32, returned in x's dtype."""
    return (x * inverse_rms(x, eps)).astype(x.dtype)


class RMSNorm(nn.Module):
    """`rms_norm` times a learned gain that starts at one."""

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gain_D = Parameter("D", (x.shape[-1],), nn.initializers.ones, name="gain")()
        return rms_norm(x, self.eps) * _along_last(gain_D.astype(x.dtype), x)


def _along_last(vector: jax.Array, like: jax.Array) -> jax.Array:
    return vector.reshape((1,) * (like.ndim - 1) + (-1,))
