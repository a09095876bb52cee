"""The visibility of slots as arrays: who reads what, and who is read by whom, listed so that loops visit nothing else."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.routing.buffer import CHUNK, take
from depthroute.routing.topology import num_sites, source_in, visible_slots


class Lists(NamedTuple):
    """For each row the slots in `slots[row, :counts[row]]`; the rest of a row repeats its last entry."""

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
    count = table.sum(axis=1)
    width = -(-int(count.max()) // CHUNK) * CHUNK
    rows = [np.flatnonzero(row) for row in table]
    return Lists(
        np.stack([np.pad(row, (0, width - len(row)), mode="edge") for row in rows]).astype(np.int32), count.astype(np.int32)
    )


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
