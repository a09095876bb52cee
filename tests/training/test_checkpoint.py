"""Checkpoints bring back every bit, keep the newest few and ignore what is incomplete."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthroute.training.checkpoint import Checkpoints
from depthroute.training.state import TrainState


def state_at(step):
    return TrainState(jnp.int32(step), {"a": jnp.full((2, 3), jnp.nan), "b": jnp.float32(step) / 3}, (jnp.arange(step), {}))


def abstract(state):
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state)


@pytest.fixture
def checkpoints(tmp_path):
    opened = Checkpoints(tmp_path / "checkpoints", keep=2)
    yield opened
    opened.close()


def test_round_trip_is_bitwise_and_only_the_newest_are_kept(checkpoints, tmp_path):
    assert checkpoints.latest_step() is None
    for step in (3, 5, 8):
        checkpoints.save(step, state_at(step))
        checkpoints.save(step, state_at(step))  # saving twice is no error
    checkpoints.close()
    again = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert again.latest_step() == 8
    restored = again.restore(abstract(state_at(8)))
    assert jax.tree.structure(restored) == jax.tree.structure(state_at(8))
    for found, saved in zip(jax.tree.leaves(restored), jax.tree.leaves(state_at(8)), strict=True):
        assert (found.dtype, found.shape) == (saved.dtype, saved.shape)
        assert np.asarray(found).tobytes() == np.asarray(saved).tobytes()
    again.close()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()) == ["5", "8"]


def test_an_unfinished_checkpoint_does_not_count(checkpoints, tmp_path):
    checkpoints.save(3, state_at(3))
    checkpoints.close()
    unfinished = tmp_path / "checkpoints" / "7.orbax-checkpoint-tmp-0"
    unfinished.mkdir()
    (unfinished / "part").write_text("half")
    again = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert again.latest_step() == 3
    again.close()
