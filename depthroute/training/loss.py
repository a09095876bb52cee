"""Next-token loss."""

from typing import Any

import jax
import jax.numpy as jnp

from depthroute.model.transformer import Model


def token_nll(logits_BTV: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Negative log-likelihood of each target in nats, and the log-normaliser of its distribution; both [B, T] float32."""
    log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    target_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return log_z_BT - target_BT, log_z_BT


def training_loss(model: Model, params: Any, tokens_BT: jax.Array, z_loss: float) -> tuple[jax.Array, jax.Array]:
    """The objective and the mean negative log-likelihood in nats per token, over T predictions of T + 1 tokens.

    The objective adds z_loss times the mean squared log-normaliser (Chowdhery et al., 2022, arXiv 2204.02311).
    """
    nll_BT, log_z_BT = token_nll(model.apply(params, tokens_BT[:, :-1]), tokens_BT[:, 1:])
    nll = jnp.mean(nll_BT)
    return nll + z_loss * jnp.mean(jnp.square(log_z_BT)), nll
