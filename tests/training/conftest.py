"""A config smaller than configs/tiny.py, its corpus, and an observer that remembers."""

import pytest

from depthroute.data import corpus as corpus_lib

SMALL = {
    "model.layers": 1,
    "model.dim": 16,
    "model.mlp_dim": 16,
    "model.vocab": 257,
    "router.rank": 4,
    "router.blocks": 2,
    "data.seq_len": 16,
    "data.batch": 8,
    "train.steps": 12,
    "train.warmup": 2,
    "train.eval_every": 6,
    "train.eval_sequences": 16,
    "train.checkpoint_every": 4,
    "train.log_every": 1,
}


@pytest.fixture(scope="session")
def small(tiny):
    """small(**{dotted name: value}) -> Config: one layer of width 16, 12 steps."""
    return lambda **overrides: tiny(**{**SMALL, **overrides})


@pytest.fixture(scope="session")
def corpus(small, private_cache):
    """The embedded corpus."""
    config = small()
    return corpus_lib.load(config.data, config.model.vocab)


class Notes:
    """An observer: `losses` by step and split, `steps` as they were reported."""

    def __init__(self):
        self.losses, self.steps = {}, []

    def metrics(self, record):
        self.losses[record["step"], record["split"]] = record["loss"]

    def progress(self, step, loss, tokens_per_s):
        self.steps.append(step)


@pytest.fixture(scope="session")
def notes():
    """notes() -> a fresh observer."""
    return Notes
