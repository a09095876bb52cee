"""The memory of earlier outputs, in two forms with one interface: `seen(...)` by a consumer, which has `dots` and mixes.

`ListHistory`: one array per source, no stacking, no masks. It is the reference that faster forms are tested against, so it does
the obvious thing. `BufferHistory`: one array over slots, of which a mask hides what a consumer does not see, so that the
consumer may be a traced number. Keys are [R] where they are the same for all tokens, [B, T, R] where they are not.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from depthroute.nn.norm import wide

Groups = Sequence[Sequence[int]]
DOTS = {(1, 1): "R,R->", (3, 1): "BTR,R->BT", (1, 3): "R,BTR->BT", (3, 3): "BTR,BTR->BT"}
BUFFER_DOTS = {(1, 2): "R,SR->S", (3, 2): "BTR,SR->BTS", (1, 4): "R,SBTR->BTS", (3, 4): "BTR,SBTR->BTS"}


def table_dots(query: jax.Array, keys: jax.Array, shape_BT: tuple[int, ...]) -> jax.Array:
    """<query, key> of every key in an array [S, R] or [S, B, T, R]: [B, T, S]."""
    dots = jnp.einsum(BUFFER_DOTS[query.ndim, keys.ndim], query, keys)
    return jnp.broadcast_to(dots, (*shape_BT, dots.shape[-1]))


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

    def seen(self, groups: Groups) -> "ListHistory":
        """The sum of each group of sources, values and keys alike."""

        def added(arrays: Sequence[Any], group: Sequence[int]) -> Any:
            first, *others = (arrays[s] for s in group)
            return first if first is None else sum(others, first)

        values, keys = (tuple(added(arrays, group) for group in groups) for arrays in self)
        return ListHistory(values, keys)

    def head(self, h: int, heads: int, keys_too: bool) -> "ListHistory":
        """A group of channels alone."""

        def part(x: Any) -> jax.Array:
            width = x.shape[-1] // heads
            return x[..., h * width : (h + 1) * width]

        return ListHistory(tuple(map(part, self.values)), tuple(map(part, self.keys)) if keys_too else self.keys)

    def dots(self, query: jax.Array) -> jax.Array:
        """<query, key> of every source: [B, T, S]."""
        dots = [jnp.einsum(DOTS[query.ndim, key.ndim], query, key) for key in self.keys if key is not None]
        return jnp.stack([jnp.broadcast_to(dot, self.values[0].shape[:2]) for dot in dots], axis=-1)

    def mix(self, weights_BTS: jax.Array) -> jax.Array:
        """sum_s weights[..., s] values[s], at least float32."""
        mixed_BTD = jnp.zeros_like(wide(self.values[0]))
        for s, value_BTD in enumerate(self.values):
            mixed_BTD += weights_BTS[..., s : s + 1] * wide(value_BTD)
        return mixed_BTD

    def mix_channels(self, weights_SD: jax.Array) -> jax.Array:
        """sum_s weights[s] * values[s] with a weight for every channel, at least float32."""
        mixed_BTD = jnp.zeros_like(wide(self.values[0]))
        for s, value_BTD in enumerate(self.values):
            mixed_BTD += weights_SD[s][None, None] * wide(value_BTD)
        return mixed_BTD

    def hide(self, x_BTS: jax.Array, hidden: float) -> jax.Array:
        """x: all of these sources are seen."""
        return x_BTS

    @property
    def alone(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.values) == 1

    @property
    def num_sources(self) -> int:
        """How many sources there are."""
        return len(self.values)

    @property
    def seen_S(self) -> jax.Array:
        """One for each."""
        return jnp.ones(len(self.values))

    @property
    def newest_BTD(self) -> jax.Array:
        """The newest of them."""
        return self.values[-1]


class BufferHistory(NamedTuple):
    """Slots, with a mask of those that are seen; keys [S, R] or [S, B, T, R]."""

    values_SBTD: jax.Array
    keys: jax.Array | None
    visible_S: jax.Array
    sums_US: jax.Array | None  # groups as sums of slots; None where each slot is seen by itself
    alone: Any  # a boolean array, or True where no consumer of this kind has a choice
    newest_BTD: jax.Array

    def seen(self, groups: Groups) -> "BufferHistory":
        """Sums of slots instead of slots; values and keys alike. `groups` are in `sums_US`."""
        if self.sums_US is None:
            return self
        values_SBTD = jnp.einsum("US,SBTD->UBTD", self.sums_US, wide(self.values_SBTD)).astype(self.values_SBTD.dtype)
        keys = self.keys
        if keys is not None:
            keys = jnp.einsum("US,SBTR->UBTR" if keys.ndim == 4 else "US,SR->UR", self.sums_US, keys)
        return self._replace(values_SBTD=values_SBTD, keys=keys, visible_S=jnp.any(self.sums_US != 0, axis=1))

    def head(self, h: int, heads: int, keys_too: bool) -> "BufferHistory":
        """A group of channels alone."""

        def part(x: jax.Array) -> jax.Array:
            width = x.shape[-1] // heads
            return x[..., h * width : (h + 1) * width]

        keys = part(self.keys) if keys_too and self.keys is not None else self.keys
        return self._replace(values_SBTD=part(self.values_SBTD), keys=keys)

    def dots(self, query: jax.Array) -> jax.Array:
        """<query, key> of every slot: [B, T, S]."""
        assert self.keys is not None
        return table_dots(query, self.keys, self.values_SBTD.shape[1:3])

    def mix(self, weights_BTS: jax.Array) -> jax.Array:
        """sum_s weights[..., s] values[s], at least float32."""
        return jnp.einsum("BTS,SBTD->BTD", weights_BTS, wide(self.values_SBTD))

    def mix_channels(self, weights_SD: jax.Array) -> jax.Array:
        """sum_s weights[s] * values[s] with a weight for every channel, at least float32."""
        return jnp.einsum("SD,SBTD->BTD", weights_SD, wide(self.values_SBTD))

    def hide(self, x_BTS: jax.Array, hidden: float) -> jax.Array:
        """x where the slot is seen, `hidden` elsewhere."""
        return jnp.where(self.visible_S[None, None], x_BTS, hidden)

    @property
    def num_sources(self) -> int:
        """How many slots there are, hidden ones too."""
        return len(self.values_SBTD)

    @property
    def seen_S(self) -> jax.Array:
        """One for each that is seen."""
        return self.visible_S.astype(jnp.float32)
