"""Arms of an ablation start as one function: their first losses are the residual network's."""

import cases
import jax
import numpy as np
import pytest

import depthroute
from depthroute.routing.presets import start
from depthroute.training.loss import training_loss

ARMS = [
    preset for preset in cases.PRESETS if preset != "residual" and start(cases.tiny(**{"router.preset": preset})) == "residual"
]


def first_loss(preset, layers, tokens_BT):
    """Nats per token on text-like tokens with repeats, at seed 0. Three blocks leave a remainder at both depths."""
    blocks = 3 if layers == 4 else 7
    model = depthroute.build(cases.tiny(**{"router.preset": preset, "model.layers": layers, "router.blocks": blocks}))
    return float(training_loss(model, model.init(jax.random.key(0)), tokens_BT, 0.0)[1])


@pytest.mark.parametrize("layers", [4, pytest.param(48, marks=pytest.mark.slow)])
def test_every_arm_starts_with_the_loss_of_residual(layers):
    tokens_BT = np.random.default_rng(0).integers(0, 64, (8, 9))
    assert {"attnres", "attnres_block", "denseformer", "qs_ks", "qs_kd", "qd_ks", "qd_kd", "qd_kh"} <= set(ARMS)
    expected = first_loss("residual", layers, tokens_BT)
    found = {arm: first_loss(arm, layers, tokens_BT) for arm in ARMS}
    assert found == pytest.approx({arm: expected for arm in ARMS}, abs=1e-5, rel=0)
    assert abs(first_loss("plain", layers, tokens_BT) - expected) > 1e-5  # so the comparison can fail
