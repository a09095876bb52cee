"""Sets of carry matrices, each from the logits of a token: [E, ...] or [O, N, ...] to [O, N, ...], tokens innermost.

sinkhorn       exp(logits), rows and columns normalised in turn: nearly doubly stochastic (mHC, arXiv 2512.24880)
permutations   a softmax mix of all n! permutation matrices: doubly stochastic (mHC-lite, arXiv 2601.05732)
kronecker      products of [[p, 1 - p], [1 - p, p]]: doubly stochastic (KromHC, arXiv 2601.21579)
orthogonal     (I - A) (I + A)^-1 of a skew A (Cayley)
"""

import math
from collections.abc import Callable
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.nn.norm import wide
from depthroute.routing.sinkhorn import sinkhorn

LARGEST_SKEW = 8.0  # logits of an orthogonal carry are bent to lie below: a rotation of up to 166 degrees, and a tame inverse
OFF = -8.0  # logits of what is not the identity, at first, in the mhc-lite code


def permutations_with(n: int) -> np.ndarray:
    """Numbers of the permutations that send n to o, the identity being permutation 0: [O, N, (n - 1)!]."""
    orders = np.array(list(permutations(range(n))))
    return np.array([[np.flatnonzero(orders[:, o] == source) for source in range(n)] for o in range(n)])


def from_permutations(logits: jax.Array, iterations: int) -> jax.Array:
    """sum_k softmax(logits)_k P_k: an entry is the sum of the weights of the permutations that have a one there."""
    n = next(n for n in range(1, 9) if math.factorial(n) == len(logits))
    weights = jax.nn.softmax(wide(logits), axis=0)
    return jnp.sum(weights[permutations_with(n)], axis=2)


def from_kronecker(logits: jax.Array, iterations: int) -> jax.Array:
    """The Kronecker product of 2 x 2 matrices, each from two logits."""
    carry = jnp.ones((1, 1, *logits.shape[1:]), wide(logits).dtype)
    for pair in wide(logits).reshape(-1, 2, *logits.shape[1:]):
        stay, swap = jax.nn.softmax(pair, axis=0)
        factor = jnp.stack([jnp.stack([stay, swap]), jnp.stack([swap, stay])])
        product = carry[:, None, :, None] * factor[None, :, None, :]
        carry = product.reshape(2 * len(carry), 2 * len(carry), *logits.shape[1:])
    return carry


def from_skew(logits: jax.Array, iterations: int) -> jax.Array:
    """(I + A)^-1 (I - A), which is the Cayley transform since both commute, with the entries of A above the diagonal given.

    Gauss-Jordan without a search for pivots: I + A has a positive definite symmetric part, so none is below one. One step of
    Newton and Schulz, Q (3 I - Q^T Q) / 2, takes what rounding left of a deviation from orthogonal to its square.
    """
    n = (1 + math.isqrt(1 + 8 * len(logits))) // 2
    bent = LARGEST_SKEW * jnp.tanh(wide(logits) / LARGEST_SKEW)
    above = np.triu_indices(n, 1)
    skew = jnp.zeros((n, n, *logits.shape[1:]), bent.dtype).at[above].set(bent).at[above[::-1]].set(-bent)
    one = jnp.eye(n, dtype=bent.dtype).reshape(n, n, *(1,) * (logits.ndim - 1))
    rows = jnp.concatenate([one + skew, one - skew], axis=1)
    for k in range(n):
        pivot = rows[k] / rows[k, k][None]
        rows = (rows - rows[:, k][:, None] * pivot[None]).at[k].set(pivot)
    carry = rows[:, n:]
    square = jnp.sum(carry[:, :, None] * carry[:, None], axis=0)
    return jnp.sum(carry[:, :, None] * (1.5 * one - 0.5 * square)[None], axis=1)


CARRIES: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "sinkhorn": sinkhorn,
    "permutations": from_permutations,
    "kronecker": from_kronecker,
    "orthogonal": from_skew,
}


def initial_logits(form: str, n: int) -> np.ndarray:
    """Of the identity, or near it, without the axes of sites and tokens."""
    if form == "sinkhorn":
        return -OFF * (np.eye(n, dtype=np.float32) - 1)
    if form == "permutations":
        return np.where(np.arange(math.factorial(n)) == 0, 0, OFF).astype(np.float32)
    if form == "kronecker":
        return np.tile(np.array([0, OFF], np.float32), n.bit_length() - 1)
    return np.zeros(n * (n - 1) // 2, np.float32)


def stochastic_error(carry_ON: jax.Array) -> jax.Array:
    """How far the sums over O of a carry [O, N, ...] are from one at most: what iterations of Sinkhorn leave."""
    return jnp.max(jnp.abs(jnp.sum(carry_ON, axis=0) - 1))
