"""The visibility of slots as arrays: who reads what, and who is read by whom, listed so that loops visit nothing else."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.routing.buffer import take
from depthroute.routing.topology import num_sites, source_in, visible_slots


class Lists(NamedTuple):
    """For each row the slots in `slots[row, :counts[row]]`."""

    slots: np.ndarray
    counts: np.ndarray

    def of(self, row: int | jax.Array) -> tuple[jax.Array, jax.Array]:
        """The list of one row, and how many of it count."""
        return take(jnp.asarray(self.slots), row), take(jnp.asarray(self.counts), row)


class Plan(NamedTuple):
    """Consumers (M) are sites and the read-out, slots (S) the embedding and what stood after each site wrote."""

    visible_MS: np.ndarray
    alone_M: np.ndarray  # consumers that see one slot: its weight is one
    reads: Lists  # of each consumer, the slots it sees
    readers: Lists  # of each slot, the consumers that see it
    source_S: np.ndarray
    grows_S: np.ndarray  # slots that continue the block of the slot before


def _lists(table: np.ndarray) -> Lists:
    counts = table.sum(axis=1).astype(np.int32)
    slots = np.zeros((len(table), counts.max()), np.int32)
    for row, count, listed in zip(slots, counts, table, strict=True):
        row[:count] = np.flatnonzero(listed)
    return Lists(slots, counts)


@lru_cache(maxsize=64)
def make_plan(config: Config) -> Plan:
    """The plan of `config.router`'s memory."""
    seen = visible_slots(config)
    M = num_sites(config) + 1
    visible_MS = np.zeros((M, M), bool)
    for m, slots in enumerate(seen):
        visible_MS[m, list(slots)] = True
    source_S = np.array([source_in(config, slot) for slot in range(M)], np.int32)
    grows_S = np.append(False, source_S[1:] == source_S[:-1])
    return Plan(visible_MS, visible_MS.sum(axis=1) == 1, _lists(visible_MS), _lists(visible_MS.T), source_S, grows_S)
