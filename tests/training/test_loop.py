"""The loop: resumed runs end bit for bit where uninterrupted ones do, and a divergence harms no checkpoint."""

import dataclasses
import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from depthroute.training import loop
from depthroute.training.checkpoint import Checkpoints
from depthroute.training.loop import Diverged, Evaluation, Interrupted, train
from depthroute.training.parallel import make_programs

FAST = [{"router.preset": "qd_kd"}, {"train.accumulate": 2}, {"parallel.strategy": "pmap", "parallel.data": 2}]
SLOW = [
    {"train.optimizer": "muon"},
    {"parallel.fsdp": 4, "router.preset": "attnres"},
    {"train.schedule": "wsd", "train.decay": 4},
]


def never():
    return False


def after(steps):
    """A `should_stop` that lets so many steps pass."""
    return iter([False] * steps + [True]).__next__


def outcomes_equal(a, b):
    a, b = dataclasses.asdict(a), dataclasses.asdict(b)
    del a["tokens_per_s"], b["tokens_per_s"]
    np.testing.assert_equal(a, b)


@pytest.mark.parametrize("overrides", [*FAST, *(pytest.param(o, marks=pytest.mark.slow) for o in SLOW)], ids=str)
def test_a_resumed_run_ends_bit_for_bit_where_an_uninterrupted_one_does(small, corpus, notes, tmp_path, overrides):
    config, whole, parts = small(**overrides), notes(), notes()
    expected = train(config, corpus, tmp_path / "whole", whole, never)
    for steps, stop in ((5, 5), (0, 5), (3, 8)):  # between checkpoints, at once, at a checkpoint
        with pytest.raises(Interrupted, match=f"stopped at step {stop} of 12"):
            train(config, corpus, tmp_path / "parts", parts, after(steps))
    outcomes_equal(train(config, corpus, tmp_path / "parts", parts, never), expected)
    assert parts.losses == whole.losses
    assert parts.steps == whole.steps == list(range(1, 13))
    assert len(whole.losses) == 12 + 2
    assert expected.val_loss == whole.losses[12, "val"]


def test_a_run_that_was_killed_before_its_result_only_evaluates(small, corpus, notes, tmp_path):
    config = small(**FAST[0])
    expected = train(config, corpus, tmp_path, notes(), never)
    again = notes()
    outcomes_equal(train(config, corpus, tmp_path, again, never), expected)
    assert again.steps == []


def test_seeds_differ(small, corpus, notes, tmp_path):
    outcomes = [train(small(**FAST[0], seed=seed), corpus, tmp_path / str(seed), notes(), never) for seed in (0, 1)]
    assert outcomes[0].params_sha256 != outcomes[1].params_sha256


@pytest.mark.parametrize("poisoned", ["loss", "grad_norm"])
@pytest.mark.parametrize(("step", "last", "last_good"), [(3, None, None), (5, 4, None), (8, 4, 4), (12, 8, 8)])
def test_divergence_names_the_step_and_the_last_checkpoint_that_a_finite_loss_came_from(
    small, corpus, notes, tmp_path, monkeypatch, poisoned, step, last, last_good
):
    config = small(**FAST[0])
    programs = make_programs(config)

    def poison(state, tokens_BT):
        state, metrics = programs.step(state, tokens_BT)
        return state, {**metrics, poisoned: jnp.where(state.step == step, jnp.inf, metrics[poisoned])}

    monkeypatch.setattr(loop, "make_programs", lambda config: dataclasses.replace(programs, step=poison))
    with pytest.raises(Diverged, match=f"{poisoned} is inf at step {step};") as error:
        train(config, corpus, tmp_path, notes(), never)
    told = f"the last good checkpoint is step {last_good}" if last_good else "there is no good checkpoint yet"
    assert told in str(error.value) and "\n" not in str(error.value)
    checkpoints = Checkpoints(tmp_path, config.train.keep_checkpoints)
    assert checkpoints.latest_step() == last
    if last:
        assert int(checkpoints.restore(programs.abstract).step) == last
    checkpoints.close()


def test_a_request_to_stop_does_not_save_a_diverged_state(small, corpus, notes, tmp_path, monkeypatch):
    config = small(**FAST[0])
    programs = make_programs(config)

    def poison(state, tokens_BT):
        state, metrics = programs.step(state, tokens_BT)
        return state, {**metrics, "loss": jnp.nan}

    monkeypatch.setattr(loop, "make_programs", lambda config: dataclasses.replace(programs, step=poison))
    with pytest.raises(Diverged, match="loss is nan at step 1"):
        train(config, corpus, tmp_path, notes(), after(1))


def test_a_result_is_never_made_of_a_loss_that_is_not_finite(small, corpus, notes, tmp_path, monkeypatch):
    """The last update may be the one that diverges: no later step would notice."""
    config = small(**FAST[0])
    broken = dataclasses.replace(make_programs(config), sequence_nll=lambda params, rows_BT: np.full(len(rows_BT), np.nan))
    monkeypatch.setattr(loop, "make_programs", lambda config: broken)
    with pytest.raises(Diverged):
        train(config, corpus, tmp_path, notes(), never)


def test_training_does_not_depend_on_how_often_it_is_looked_at(small, corpus, notes, tmp_path, monkeypatch):
    programs = make_programs(small(**FAST[0]))
    monkeypatch.setattr(loop, "make_programs", lambda config: programs)
    seen = set()
    for every in (1, 5, 12):
        config = small(**FAST[0], **{"train.eval_every": every, "train.checkpoint_every": every, "train.log_every": every})
        seen.add(train(config, corpus, tmp_path / str(every), notes(), never).params_sha256)
    assert len(seen) == 1


# --- evaluation ------------------------------------------------------------------------------------------------------


def evaluation(sequences_NT, batch, token_bytes_V=None):
    """Every token costs a nat times its id; a sequence routes by its first token."""
    programs = SimpleNamespace(
        sequence_nll=lambda params, rows_BT: rows_BT[:, 1:].sum(1).astype(np.float32),
        sequence_routing=lambda params, rows_BT: None if params is None else np.tile(rows_BT[:, :1, None], (1, 2, 2)),
    )
    return Evaluation(programs, np.array(sequences_NT), batch, token_bytes_V)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
def test_evaluation_counts_every_sequence_once_whatever_the_batch(batch):
    found = evaluation([[9, 1, 2], [9, 3, 4], [9, 5, 6], [9, 7, 8], [9, 9, 100]], batch)
    assert found.num_tokens == 10
    assert found.loss(None) == pytest.approx(145 / 10)


def test_bits_per_byte_by_hand():
    found = evaluation([[0, 1, 2], [0, 2, 2]], 2, np.array([7, 1, 3]))  # predicted: 1 + 3 + 3 + 3 bytes in 4 tokens
    assert found.bits_per_byte(2.5) == pytest.approx(2.5 * 4 / 10 / math.log(2))
    assert evaluation([[0, 1, 2]], 1).bits_per_byte(2.5) is None


def test_routing_is_averaged_over_the_first_sequences_whatever_the_batch():
    sequences_NT = [[i, 0] for i in range(50)]
    for batch in (8, 5, 32):
        found = evaluation(sequences_NT, batch)
        assert found.routing_sequences == 32
        np.testing.assert_allclose(found.routing("params"), np.mean(range(32)))
    assert evaluation(sequences_NT, 8).routing(None) is None


def test_routing_of_fewer_sequences_than_a_batch_counts_each_once():
    found = evaluation([[i, 0] for i in range(5)], 8)
    assert found.routing_sequences == 5
    np.testing.assert_allclose(found.routing("params"), 2.0)
