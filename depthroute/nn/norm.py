"""Root-mean-square normalisation (Zhang and Sennrich, 2019, arXiv 1910.07467)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthroute.nn.params import Parameter


def rms_norm(x: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) over the last axis, computed in float32, returned in x's dtype."""
    x32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean_square + eps)).astype(x.dtype)


class RMSNorm(nn.Module):
    """`rms_norm` times a learned gain that starts at one."""

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gain_D = Parameter("D", (x.shape[-1],), nn.initializers.ones, name="gain")()
        return rms_norm(x, self.eps) * _along_last(gain_D.astype(x.dtype), x)


def _along_last(vector: jax.Array, like: jax.Array) -> jax.Array:
    return vector.reshape((1,) * (like.ndim - 1) + (-1,))
