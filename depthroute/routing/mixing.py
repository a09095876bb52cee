"""One short function per kind of mixing: from scores over the visible sources to weights."""

import jax


def softmax(scores_BTS: jax.Array) -> jax.Array:
    """Weights that are positive and sum to one."""
    return jax.nn.softmax(scores_BTS, axis=-1)


def sigmoid(scores_BTS: jax.Array) -> jax.Array:
    """Weights between zero and one, each on its own."""
    return jax.nn.sigmoid(scores_BTS)


def free(scores_BTS: jax.Array) -> jax.Array:
    """The scores themselves."""
    return scores_BTS


MIXINGS = {"softmax": softmax, "sigmoid": sigmoid, "free": free}
