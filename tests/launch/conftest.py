"""A sweep small enough to run for real."""

import signal
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"

SWEEP = """
from depthroute import config
from depthroute.runs.sweep import chain, fixed, grid, product

TITLE = "Two arms"
ARMS = {arms!r}


def get_config(arg=""):
    tiny, _ = config.load_file({tiny!r})
    return config.overlay(
        tiny,
        {{
            "model.layers": 1,
            "model.dim": 16,
            "model.mlp_dim": 16,
            "router.rank": 4,
            "data.seq_len": 16,
            "train.steps": {steps},
            "train.warmup": 0,
            "train.eval_every": {steps},
            "train.eval_sequences": 16,
            "train.checkpoint_every": 5,
        }},
    )


def sweep(config):
    return product(chain(*(fixed({{"arm": name, **point}}) for name, point in ARMS.items())), grid("seed", range(2)))
"""


@pytest.fixture
def write_sweep(tmp_path):
    """write_sweep({arm: overrides}, steps=12) -> the path of a config file whose sweep() has each arm with two seeds."""

    def write(arms, steps=12):
        path = tmp_path / "two_arms.py"
        path.write_text(SWEEP.format(arms=arms, tiny=str(CONFIGS / "tiny.py"), steps=steps))
        return path

    return write


@pytest.fixture(autouse=True)
def handlers():
    """Sweeps and runs take over the signals; tests give them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
