"""One update and one evaluation, as pure functions of arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from depthroute.model.transformer import Model
from depthroute.training.loss import token_nll, training_loss
from depthroute.training.state import TrainState

Metrics = dict[str, jax.Array]


def init_state(model: Model, optimizer: optax.GradientTransformation, key: jax.Array) -> TrainState:
    """The state before the first update."""
    params = model.init(key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def gradients(model: Model, params: Any, tokens_BT: jax.Array, z_loss: float, accumulate: int) -> tuple[jax.Array, Any]:
    """Mean loss (nats per token, without the z-loss) and mean gradient over `accumulate` equal microbatches."""

    def one(tokens_BT: jax.Array) -> tuple[jax.Array, Any]:
        (_, nll), grads = jax.value_and_grad(partial(training_loss, model), has_aux=True)(params, tokens_BT, z_loss)
        return nll, grads

    if accumulate == 1:
        return one(tokens_BT)
    # Microbatch a takes rows a, a + A, ...: each device then splits its own rows and moves none.
    tokens_ABT = tokens_BT.reshape(-1, accumulate, tokens_BT.shape[-1]).swapaxes(0, 1)
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(one, tokens_ABT[0]))
    total, _ = jax.lax.scan(lambda sums, tokens: (jax.tree.map(jnp.add, sums, one(tokens)), None), zeros, tokens_ABT)
    return jax.tree.map(lambda x: x / accumulate, total)


def make_train_step(
    model: Model, optimizer: optax.GradientTransformation, average: Callable[[Any], Any]
) -> Callable[[TrainState, jax.Array], tuple[TrainState, Metrics]]:
    """The update. `average` combines loss and gradient across devices where that is not the compiler's business."""
    train = model.config.train

    def train_step(state: TrainState, tokens_BT: jax.Array) -> tuple[TrainState, Metrics]:
        loss, grads = average(gradients(model, state.params, tokens_BT, train.z_loss, train.accumulate))
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": loss, "grad_norm": optax.tree.norm(grads)}
        return TrainState(state.step + 1, params, opt_state), metrics

    return train_step


def sequence_nll(model: Model, params: Any, tokens_BT: jax.Array) -> jax.Array:
    """Summed negative log-likelihood of each sequence in nats: [B]."""
    nll_BT, _ = token_nll(model.apply(params, tokens_BT[:, :-1]), tokens_BT[:, 1:])
    return jnp.sum(nll_BT, axis=-1)


def sequence_routing(model: Model, params: Any, tokens_BT: jax.Array) -> jax.Array | None:
    """Weight of every consumer on every source, averaged over positions: [B, M, S]; None without weights."""
    _, trace = model.apply(params, tokens_BT[:, :-1], trace=True)
    return None if trace is None else jnp.mean(trace.weights_BTMS, axis=1)


def carry_error(model: Model, params: Any, tokens_BT: jax.Array) -> jax.Array | None:
    """`Model.carry_error` of the tokens that are read."""
    return model.carry_error(params, tokens_BT[:, :-1])
