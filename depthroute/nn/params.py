"""Parameters and the keys they start from.

Arms of an ablation must start from the same values wherever they share a parameter. Linen derives a parameter's key from its
module path and from how many parameters that module made before it; `Parameter` gives every array a module of its own, so that
its initial value depends on its path and the seed alone, whatever else an arm adds.
"""

import zlib
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]


class Parameter(nn.Module):
    """One float32 array. `axes` is its leaf name, so a path reads role/axes, for example ``attention/query/DHK``."""

    axes: str
    shape: tuple[int, ...]
    init_fn: Initializer

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param(self.axes, self.init_fn, self.shape, jnp.float32)


def normal(std: float) -> Initializer:
    """Gaussian initial values with standard deviation `std`."""
    return nn.initializers.normal(std)


def fan_in(size: int, shrink: float = 1.0) -> Initializer:
    """Gaussian initial values with standard deviation 1 / (sqrt(size) x shrink)."""
    return normal(1.0 / (size**0.5 * shrink))


def key_for(key: jax.Array, name: str) -> jax.Array:
    """The key of the part called `name`; it depends on nothing but `key` and the name."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
