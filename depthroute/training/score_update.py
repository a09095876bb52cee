"""How far the first optimizer step moves the routing scores: the size that learning rates of different arms share or do not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.model.transformer import build
from depthroute.training.optimizer import make_optimizer
from depthroute.training.step import init_state, make_train_step


def first_score_update(config: Config, tokens_BT: np.ndarray) -> float:
    """RMS change of source-centred scores after one step at the peak model rate and router multiplier 1, on the same batch.

    The mean is over tokens, consumers with at least two sources, and sources; centring is over the sources a consumer sees.
    """
    train = dataclasses.replace(config.train, warmup=0, decay=0)
    config = dataclasses.replace(config, train=train, router=dataclasses.replace(config.router, lr_multiplier=1.0))
    model, optimizer = build(config), make_optimizer(config)
    state = init_state(model, optimizer, jax.random.key(config.seed))
    after, _ = jax.jit(make_train_step(model, optimizer, average=lambda x: x))(state, tokens_BT)

    @jax.jit
    def centred_scores(params):
        _, trace = model.apply(params, tokens_BT[:, :-1], trace=True)
        visible_BTMS = trace.visible_MS[None, None]
        mean_BTM1 = jnp.mean(trace.scores_BTMS, axis=-1, keepdims=True, where=visible_BTMS)
        return jnp.where(visible_BTMS, trace.scores_BTMS - mean_BTM1, 0.0), trace.visible_MS

    (before_BTMS, visible_MS), (after_BTMS, _) = centred_scores(state.params), centred_scores(after.params)
    counted_MS = visible_MS & (jnp.sum(visible_MS, axis=1, keepdims=True) > 1)
    squares_MS = jnp.mean(jnp.square(after_BTMS - before_BTMS), axis=(0, 1))
    return float(jnp.sqrt(jnp.sum(squares_MS * counted_MS) / jnp.sum(counted_MS)))
