"""Batches: a permutation per epoch, a pure function of seed and step, the same for any number of hosts."""

import numpy as np
import pytest

from depthroute.data.batches import Batches, held_out, permute
from depthroute.data.shards import ShardWriter, Tokens
from depthroute.errors import UserError


@pytest.fixture
def tokens(tmp_path):
    """203 tokens 0..202 in five shards: 20 sequences of 10 tokens, the last two tokens unused."""
    with ShardWriter(tmp_path, "count_train", 203, shard_tokens=47) as writer:
        writer.write(np.arange(203))
    return Tokens("train", writer.paths, 203)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 16, 17, 97, 128, 1000, 1023, 1024, 1025, 4097])
def test_feistel_is_a_permutation(n):
    for seed, epoch in [(0, 0), (0, 1), (12345, 7)]:
        assert np.array_equal(np.sort(permute(np.arange(n), n, seed, epoch)), np.arange(n))


def test_feistel_needs_no_more_than_the_indices_asked_for():
    n = 10**12
    images = permute(np.arange(1000), n, seed=0, epoch=0)
    assert len(np.unique(images)) == 1000 and images.min() >= 0 and images.max() < n
    assert permute(np.array([17]), n, seed=0, epoch=0)[0] == images[17]


def test_feistel_differs_between_seeds_and_epochs_and_is_no_near_identity():
    n = 4000
    orders = [permute(np.arange(n), n, seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    orders.append(np.arange(n))
    for i, a in enumerate(orders):
        for b in orders[:i]:
            # Independent permutations agree in 1 place on average (Poisson) and correlate within 1/sqrt(n).
            assert (a == b).sum() < 12
            assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n)


def test_every_window_comes_once_per_epoch_in_a_new_order(tokens):
    batches = Batches(tokens, seed=3, batch=4, seq_len=10)
    assert batches.sequences == 20
    epochs = [np.concatenate([batches.batch(step) for step in range(5 * e, 5 * e + 5)]) for e in range(3)]
    for epoch in epochs:
        assert epoch.dtype == np.int32 and epoch.shape == (20, 11)
        assert np.array_equal(np.sort(epoch[:, 0]), np.arange(0, 200, 10))
        assert np.array_equal(epoch, epoch[:, :1] + np.arange(11))
    assert not np.array_equal(epochs[0], epochs[1]) and not np.array_equal(epochs[1], epochs[2])


def test_batches_that_straddle_epochs_lose_nothing(tokens):
    batches = Batches(tokens, seed=0, batch=3, seq_len=10)
    starts = np.concatenate([batches.batch(step)[:, 0] for step in range(20)])
    for epoch in np.split(starts, 3):
        assert np.array_equal(np.sort(epoch), np.arange(0, 200, 10))


def test_batch_is_the_same_in_any_order_of_calls_and_depends_on_the_seed(tokens):
    forwards = Batches(tokens, seed=5, batch=4, seq_len=10)
    first = [forwards.batch(step) for step in range(12)]
    again = Batches(tokens, seed=5, batch=4, seq_len=10)
    for step in (11, 3, 3, 0, 7):
        assert np.array_equal(again.batch(step), first[step])
    other = Batches(tokens, seed=6, batch=4, seq_len=10)
    assert not all(np.array_equal(other.batch(step), first[step]) for step in range(5))


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_any_number_of_hosts_sees_the_same_global_batch(tokens, hosts):
    batches = Batches(tokens, seed=1, batch=8, seq_len=10)
    for step in range(6):
        parts = [batches.batch(step, host, hosts) for host in range(hosts)]
        assert all(len(part) == 8 // hosts for part in parts)
        assert np.array_equal(np.concatenate(parts), batches.batch(step))


def test_hosts_must_divide_the_batch(tokens):
    with pytest.raises(UserError, match="data.batch is 4; allowed: a multiple of the 3 hosts"):
        Batches(tokens, seed=0, batch=4, seq_len=10).batch(0, 0, 3)


def test_corpus_shorter_than_one_batch(tokens):
    assert Batches(tokens, seed=0, batch=20, seq_len=10).batch(0).shape == (20, 11)
    with pytest.raises(UserError, match="'train'.* 203 tokens are 20 sequences of data.seq_len=10; .*data.batch=21") as caught:
        Batches(tokens, seed=0, batch=21, seq_len=10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "asked, starts", [(4, [0, 50, 100, 150]), (3, [0, 60, 130]), (20, range(0, 200, 10)), (99, range(0, 200, 10))]
)
def test_held_out_windows_are_spread_evenly(tokens, asked, starts):
    windows = held_out(tokens, 10, asked)
    assert np.array_equal(windows, np.array(starts)[:, None] + np.arange(11))
    assert np.array_equal(windows, held_out(tokens, 10, asked))


def test_held_out_split_shorter_than_one_sequence(tokens):
    assert held_out(tokens, 202, 5).shape == (1, 203)
    with pytest.raises(UserError, match="'train'.* has 203 tokens; allowed: at least data.seq_len . 1 = 204"):
        held_out(tokens, 203, 5)
