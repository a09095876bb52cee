"""The loss against float64 references, with a lookup table in place of a model."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from depthroute.training.loss import token_nll, training_loss

TABLE = SimpleNamespace(apply=lambda logits_VV, tokens_BT: logits_VV[tokens_BT])  # logits depend on the last token alone


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_token_nll_is_the_log_softmax_of_the_target(random, scale):
    logits_BTV = (scale * random.standard_normal((2, 5, 7))).astype(np.float32)
    targets_BT = random.integers(7, size=(2, 5))
    nll_BT, log_z_BT = token_nll(logits_BTV, targets_BT)
    exact_BT = -np.take_along_axis(log_softmax(logits_BTV.astype(np.float64), axis=-1), targets_BT[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(nll_BT, exact_BT, rtol=1e-6, atol=1e-6 * scale)
    np.testing.assert_allclose(log_z_BT, logsumexp(logits_BTV.astype(np.float64), axis=-1), rtol=1e-6)


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary():
    nll_BT, log_z_BT = token_nll(np.zeros((1, 3, 257), np.float32), np.array([[0, 5, 256]]))
    np.testing.assert_allclose(nll_BT, np.log(257), rtol=1e-6)
    np.testing.assert_allclose(log_z_BT, np.log(257), rtol=1e-6)


def test_every_token_is_predicted_from_those_before_it(random):
    table_VV = random.standard_normal((7, 7)).astype(np.float32)
    tokens_BT = random.integers(7, size=(3, 6))
    by_hand = [-log_softmax(table_VV.astype(np.float64)[a])[b] for row in tokens_BT for a, b in zip(row, row[1:], strict=False)]
    objective, nll = training_loss(TABLE, table_VV, tokens_BT, 0.0)
    assert objective == nll
    np.testing.assert_allclose(nll, np.mean(by_hand), rtol=1e-6)


def test_z_loss_adds_the_mean_squared_log_normaliser(random):
    table_VV = 3 * random.standard_normal((7, 7)).astype(np.float32)
    tokens_BT = random.integers(7, size=(3, 6))
    mean_square = np.mean(logsumexp(table_VV.astype(np.float64), axis=-1)[tokens_BT[:, :-1]] ** 2)
    without, nll = training_loss(TABLE, table_VV, tokens_BT, 0.0)
    for z in (1e-4, 0.5):
        objective, same_nll = training_loss(TABLE, table_VV, tokens_BT, z)
        assert same_nll == nll
        np.testing.assert_allclose(objective, without + z * mean_square, rtol=1e-6)
