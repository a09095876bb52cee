"""Products with a parameter."""

import jax


def linear(x_BTD: jax.Array, kernel: jax.Array) -> jax.Array:
    """The last axis of x times the first of the kernel: [B, T, D] and [D, ...] to [B, T, ...].

    To the compiler it is a product of two matrices. Given more axes, XLA for CPUs transposes an activation to make the kernel's
    gradient, which takes longer than the product itself.
    """
    product = x_BTD.reshape(-1, x_BTD.shape[-1]) @ kernel.reshape(kernel.shape[0], -1)
    return product.reshape(*x_BTD.shape[:-1], *kernel.shape[1:])
