"""Products with a parameter."""

import jax
import jax.numpy as jnp

from depthroute.nn.params import Parameter, fan_in


def linear(x_BTD: jax.Array, kernel: jax.Array) -> jax.Array:
    """The last axis of x times the first of the kernel: [B, T, D] and [D, ...] to [B, T, ...].

    To the compiler it is a product of two matrices. Given more axes, XLA for CPUs transposes an activation to make the kernel's
    gradient, which takes longer than the product itself.
    """
    product = x_BTD.reshape(-1, x_BTD.shape[-1]) @ kernel.reshape(kernel.shape[0], -1)
    return product.reshape(*x_BTD.shape[:-1], *kernel.shape[1:])


def with_emitted(out: jax.Array, emit: int, shrink: float) -> jax.Array:
    """An output projection [F, D] with `emit` more columns, a parameter ``emit/FR`` of the calling module."""
    if not emit:
        return out
    return jnp.concatenate([out, Parameter("FR", (out.shape[0], emit), fan_in(out.shape[0], shrink), name="emit")()], axis=1)
