"""Batches as a pure function of seed and step, so that resuming needs only the step and any number of hosts agrees.

A split is cut into n windows of seq_len + 1 tokens that overlap by one, so that every token but the first is predicted once
per epoch. Each epoch visits them in its own pseudorandom order, computed in O(1) memory by a Feistel network.
"""

import numpy as np

from depthroute.config import WHERE
from depthroute.data.shards import Tokens
from depthroute.errors import UserError, bad_value

ROUNDS = 4


def permute(index_N: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """Images of indices [N] under a pseudorandom permutation of 0..n-1 that depends on seed and epoch: int64 [N].

    A Feistel network of four rounds (Luby and Rackoff 1988) permutes the smallest 0..4^k-1 that holds 0..n-1; images past n-1
    are fed through again until they fall below n, which leaves a permutation of 0..n-1 ("cycle walking", Black and Rogaway
    2002). Fewer than four passes are expected per index.
    """
    half_bits = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    keys = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)
    image_N = _feistel(index_N.astype(np.uint64), keys, half_bits)
    while (outside_N := image_N >= n).any():
        image_N[outside_N] = _feistel(image_N[outside_N], keys, half_bits)
    return image_N.astype(np.int64)


def _feistel(value_N: np.ndarray, keys: np.ndarray, half_bits: np.uint64) -> np.ndarray:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left_N, right_N = value_N >> half_bits, value_N & mask
    for key in keys:
        left_N, right_N = right_N, left_N ^ (_mix(right_N ^ key) & mask)
    return (left_N << half_bits) | right_N


def _mix(value_N: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014, with the constants of Stafford's variant 13)."""
    value_N = (value_N ^ (value_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value_N = (value_N ^ (value_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value_N ^ (value_N >> np.uint64(31))


def sequences_in(tokens: Tokens, seq_len: int) -> int:
    """Number of windows of seq_len + 1 tokens, overlapping by one, that a split holds."""
    return (len(tokens) - 1) // seq_len


class Batches:
    """Training batches of a split. `batch(step)` may be called in any order; nothing is remembered."""

    def __init__(self, tokens: Tokens, seed: int, batch: int, seq_len: int):
        self.sequences = sequences_in(tokens, seq_len)
        if self.sequences < batch:
            raise UserError(
                f"split {tokens.name!r} is shorter than one batch: its {len(tokens)} tokens are {self.sequences} sequences of "
                f"data.seq_len={seq_len}; allowed: at least data.batch={batch}; set data.files, data.seq_len or data.batch"
            )
        self._tokens, self._seed, self._batch, self._seq_len = tokens, seed, batch, seq_len

    def batch(self, step: int, host: int = 0, hosts: int = 1) -> np.ndarray:
        """Rows of step's global batch that belong to `host` of `hosts`: int32 [batch / hosts, seq_len + 1].

        Hosts get contiguous rows: concatenated in order they are the global batch, whatever their number. Inputs are
        `[:, :-1]`, targets `[:, 1:]`. Raises UserError if hosts do not divide the batch.
        """
        if self._batch % hosts:
            raise bad_value("data.batch", self._batch, f"a multiple of the {hosts} hosts", WHERE.format("data.batch"))
        rows = self._batch // hosts
        index_B = step * self._batch + host * rows + np.arange(rows)
        epoch_B, place_B = np.divmod(index_B, self.sequences)
        window_B = np.empty_like(index_B)
        for epoch in np.unique(epoch_B):
            now_B = epoch_B == epoch
            window_B[now_B] = permute(place_B[now_B], self.sequences, self._seed, int(epoch))
        return self._tokens.windows(window_B * self._seq_len, self._seq_len + 1)


def held_out(tokens: Tokens, seq_len: int, sequences: int) -> np.ndarray:
    """Evaluation windows spread evenly over a split, the same for every seed: int32 [N, seq_len + 1].

    N is `sequences`, or what the split has if that is less. Raises UserError if it has none.
    """
    available = sequences_in(tokens, seq_len)
    if available < 1:
        raise UserError(
            f"split {tokens.name!r} is shorter than one sequence: it has {len(tokens)} tokens; "
            f"allowed: at least data.seq_len + 1 = {seq_len + 1}; set data.files or data.seq_len"
        )
    count = min(sequences, available)
    window_N = np.arange(count) * available // count
    return tokens.windows(window_N * seq_len, seq_len + 1)
