"""The memory of earlier outputs. The list form: one array per source, no stacking, no masks.

It is the reference that faster forms are tested against, so it does the obvious thing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from depthroute.nn.norm import wide


class ListHistory(NamedTuple):
    """Sources in the order they were written, and the key of each where it is computed from what was written."""

    values: tuple[jax.Array, ...] = ()
    keys: tuple[jax.Array | None, ...] = ()

    def append(self, value_BTD: jax.Array, key: jax.Array | None) -> "ListHistory":
        """A new source after the others."""
        return ListHistory((*self.values, value_BTD), (*self.keys, key))

    def replace_newest(self, value_BTD: jax.Array, key: jax.Array | None) -> "ListHistory":
        """The newest source rewritten, as the running partial of a block is."""
        return ListHistory((*self.values[:-1], value_BTD), (*self.keys[:-1], key))

    def select(self, sources: Sequence[int]) -> "ListHistory":
        """These sources alone, in this order."""
        return ListHistory(tuple(self.values[s] for s in sources), tuple(self.keys[s] for s in sources))

    def mix(self, weights_BTS: jax.Array) -> jax.Array:
        """sum_s weights[..., s] values[s], accumulated in at least float32, in the values' dtype."""
        mixed_BTD = jnp.zeros_like(wide(self.values[0]))
        for s, value_BTD in enumerate(self.values):
            mixed_BTD += weights_BTS[..., s : s + 1] * wide(value_BTD)
        return mixed_BTD.astype(self.values[0].dtype)
