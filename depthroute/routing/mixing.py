"""One entry per kind of mixing: from scores over the visible sources to weights, and back from their gradients.

A mixing is split so that the weight of one source can be had again from its score alone: `normalise` reduces all scores of a
consumer to what its weights have in common, `weigh` needs a score and that. The backward pass of the buffered history relies on
it; the list form calls `of` and is differentiated by JAX.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Normaliser(NamedTuple):
    """The largest score of a consumer, and the sum of exp(score - largest)."""

    largest: jax.Array
    total: jax.Array


class Mixing(NamedTuple):
    """`normalise(scores, axis)`; `weigh(scores, normaliser)`; `pull(weights, dweights, mean)`, the gradient of the scores.

    `mean` is the sum of weights times dweights over the sources of a consumer. `relu` keeps too little to be pulled
    back: at a weight of zero its slope depends on the score.
    """

    normalise: Callable[[jax.Array, int], Normaliser]
    weigh: Callable[[jax.Array, Normaliser], jax.Array]
    pull: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

    def of(self, scores: jax.Array, axis: int = -1) -> jax.Array:
        """Weights of all sources, which lie along `axis`."""
        return self.weigh(scores, self.normalise(scores, axis))


def _softmax_normaliser(scores: jax.Array, axis: int) -> Normaliser:
    largest = jax.lax.stop_gradient(jnp.max(scores, axis, keepdims=True))
    return Normaliser(largest, jnp.sum(jnp.exp(scores - largest), axis, keepdims=True))


def _none(scores: jax.Array, axis: int) -> Normaliser:
    zeros = jnp.zeros_like(jnp.take(scores, jnp.array([0]), axis))
    return Normaliser(zeros, zeros)


def _not_pulled(weights: jax.Array, dweights: jax.Array, mean: jax.Array) -> jax.Array:
    raise NotImplementedError("relu mixing has no gradient by hand")


SOFTMAX = Mixing(
    _softmax_normaliser,
    lambda scores, normaliser: jnp.exp(scores - normaliser.largest) / normaliser.total,
    lambda weights, dweights, mean: weights * (dweights - mean),
)
SIGMOID = Mixing(
    _none,
    lambda scores, normaliser: jax.nn.sigmoid(scores),
    lambda weights, dweights, mean: weights * (1 - weights) * dweights,
)
FREE = Mixing(_none, lambda scores, normaliser: scores, lambda weights, dweights, mean: dweights)
# Half the slope at zero, where a zero query puts all scores: with the zero of jax.nn.relu the query could never move.
RELU = Mixing(_none, lambda scores, normaliser: jnp.maximum(scores, 0), _not_pulled)

MIXINGS = {"softmax": SOFTMAX, "sigmoid": SIGMOID, "relu": RELU, "free": FREE}
