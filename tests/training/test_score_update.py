"""The first optimizer step moves the scores of every routed arm by the same order of size."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import depthroute
from depthroute import config as config_lib
from depthroute.data import corpus as corpus_lib
from depthroute.data.batches import Batches
from depthroute.routing.presets import expand
from depthroute.training import score_update
from depthroute.training.score_update import first_score_update

GRID = config_lib.load_module(Path(__file__).parents[2] / "configs" / "ablations" / "key_query_grid.py")


def first_batch(config):
    corpus = corpus_lib.load(config.data, config.model.vocab)
    return Batches(corpus.split("train"), config.seed, config.data.batch, config.data.seq_len).batch(0)


def test_largest_over_smallest_arm_is_at_most_two():
    """At the grid's own depth: one layer has so few scores that the seed and the Python version's corpus decide."""
    sizes = {}
    for arm in GRID.ROUTED:
        config = config_lib.resolve(config_lib.overlay(GRID.get_config(), expand({"router.preset": arm})))
        sizes[arm] = first_score_update(config, first_batch(config))
    assert len(sizes) == 6 and max(sizes.values()) <= 2 * min(sizes.values()), sizes


def test_static_scores_by_hand(small, monkeypatch):
    config = small(**{"router.preset": "qs_ks", "router.lr_multiplier": 0.01, "train.warmup": 5})
    moved_MR = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    asked = []

    def move_queries(config):
        asked.append(config)
        return optax.stateless(lambda grads, params: jax.tree.map(jnp.zeros_like, params) | {"router": router_update(params)})

    def router_update(params):
        return {"query": {"MR": moved_MR}, "key": {"SR": jnp.zeros_like(params["router"]["key"]["SR"])}}

    monkeypatch.setattr(score_update, "make_optimizer", move_queries)
    found = first_score_update(config, first_batch(config))
    assert (asked[0].router.lr_multiplier, asked[0].train.warmup, asked[0].train.lr) == (1.0, 0, config.train.lr)
    key_SR = np.asarray(depthroute.build(config).init(jax.random.key(0))["router"]["key"]["SR"], np.float64)
    changes = []  # queries start at zero, so scores do
    for m, query_R in enumerate(moved_MR, start=1):  # consumer 0 sees one source
        scores_S = key_SR[: m + 1] @ query_R / 4**0.5
        changes.extend(scores_S - scores_S.mean())
    assert found == pytest.approx(np.sqrt(np.mean(np.square(changes))), rel=1e-5)
