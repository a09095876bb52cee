"""Parameter matching. That the closed forms count what is there, the contract tests for every preset."""

import dataclasses

import pytest

from depthroute.errors import UserError
from depthroute.model.counts import forward_flops, match_mlp_dim, num_params, training_flops


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
def test_a_matched_mlp_is_as_near_as_whole_hidden_units_allow(tiny, mlp):
    config = tiny(**{"model.mlp": mlp})
    target = num_params(tiny(**{"router.preset": "qd_kh", "model.mlp": mlp}))

    def miss(width):
        return abs(num_params(dataclasses.replace(config, model=dataclasses.replace(config.model, mlp_dim=width))) - target)

    width = match_mlp_dim(config, target)
    assert width > config.model.mlp_dim
    assert miss(width) <= min(miss(width - 1), miss(width + 1))
    assert match_mlp_dim(config, num_params(config)) == config.model.mlp_dim


def test_a_target_that_no_mlp_reaches_is_refused(tiny):
    with pytest.raises(UserError, match="10 parameters"):
        match_mlp_dim(tiny(), 10)


def test_training_costs_three_forward_passes(tiny):
    config = tiny(**{"router.preset": "attnres"})
    assert training_flops(config) == 3 * forward_flops(config)


def test_the_base_configs_counts_by_hand(tiny):
    """A layer of width 16 with one key/value head of two, hidden width 24, 64 tokens, 8 positions."""
    attention, mlp = 16 * 16 * 2 + 16 * 8 * 2, 3 * 16 * 24
    assert num_params(tiny()) == 64 * 16 + 2 * (attention + mlp + 2 * 16) + 16
    assert forward_flops(tiny()) == 2 * (64 * 16 + 2 * (attention + mlp)) + 2 * (2 * 2 * 16 * 4.5)
