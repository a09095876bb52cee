"""Gradients, and what an update reports."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthroute
from depthroute.training.optimizer import make_optimizer
from depthroute.training.state import TrainState
from depthroute.training.step import gradients, make_train_step, sequence_nll, sequence_routing


@pytest.fixture(scope="module")
def model(small):
    return depthroute.build(small(**{"router.preset": "qd_kd", "train.z_loss": 0.1}))


@pytest.fixture(scope="module")
def params(model):
    """Parameters off their initial values, where routers are uniform and some gradients vanish."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: (0.3 * random.standard_normal(leaf.shape)).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def tokens_BT(model):
    return np.random.default_rng(1).integers(257, size=(8, model.config.data.seq_len + 1), dtype=np.int32)


@pytest.fixture(scope="module")
def whole(model, params, tokens_BT):
    """Loss and gradient of the whole batch at once."""
    return jax.jit(lambda p, t: gradients(model, p, t, 0.1, 1))(params, tokens_BT)


def test_accumulated_gradients_are_those_of_the_whole_batch(model, params, tokens_BT, whole):
    loss, grads = jax.jit(lambda p, t: gradients(model, p, t, 0.1, 4))(params, tokens_BT)
    np.testing.assert_allclose(loss, whole[0], rtol=1e-6)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(whole[1]))
    assert largest > 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest), grads, whole[1])


def test_the_loss_is_in_nats_per_token_without_the_z_loss(model, params, tokens_BT, whole):
    nll_B = jax.jit(partial(sequence_nll, model))(params, tokens_BT)
    np.testing.assert_allclose(whole[0], nll_B.sum() / tokens_BT[:, 1:].size, rtol=1e-5)


def test_an_update_counts_and_reports_what_average_returns(model, params, tokens_BT, whole):
    optimizer = make_optimizer(model.config)
    step = make_train_step(model, optimizer, average=lambda both: jax.tree.map(lambda x: 2 * x, both))
    after, metrics = jax.jit(step)(TrainState(jnp.int32(6), params, optimizer.init(params)), tokens_BT)
    norm = np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(whole[1])))
    assert int(after.step) == 7
    np.testing.assert_allclose(metrics["loss"], 2 * whole[0], rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], 2 * norm, rtol=1e-5)


def test_sequence_routing_averages_over_positions(model, params, tokens_BT, small):
    weights_BMS = np.asarray(jax.jit(partial(sequence_routing, model))(params, tokens_BT))
    _, trace = jax.jit(model.apply, static_argnames="trace")(params, tokens_BT[:, :-1], trace=True)
    np.testing.assert_allclose(weights_BMS, np.asarray(trace.weights_BTMS, np.float64).mean(1), rtol=1e-5)
    np.testing.assert_allclose(weights_BMS.sum(-1), 1.0, rtol=1e-5)
    residual = depthroute.build(small())
    assert jax.eval_shape(partial(sequence_routing, residual), {**params, "router": {}}, tokens_BT) is None
