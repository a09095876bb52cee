"""Sinkhorn normalisation of small matrices, one for every token, with its own backward pass.

Arrays are [O, N, ...] with tokens innermost: sums over the small axes are then a few additions of long vectors, and an
iteration works on two vectors a token instead of a matrix.
"""

from functools import partial, reduce

import jax
import jax.numpy as jnp

from depthroute.nn.norm import wide


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def sinkhorn(logits: jax.Array, iterations: int) -> jax.Array:
    """exp(logits) [O, N, ...] after so many iterations T_r(T_c(.)) (arXiv 2512.24880): sums over O become one, then over N.

    Rows sum to one up to rounding, columns nearly. At least float32. Its gradient is that of the unrolled iterations; only the
    logits are kept for it.

    The first iteration is a softmax over columns and one over rows of the logarithms, which no logit overflows. From then on a
    matrix P = diag(r) K diag(c) of entries at most one is kept as r and c, and no sum comes near zero: columns have just summed
    to one, so each has an entry of at least 1/O, which the rows' sums, at most N, leave at 1/(O N) or more; and likewise rows.
    """
    kernel = _first(wide(logits))
    row, column = jax.lax.fori_loop(1, iterations, lambda _, scales: _iterate(kernel, scales[0]), _ones(kernel))
    return row[:, None] * kernel * column[None]


def _first(logits: jax.Array) -> jax.Array:
    return jax.nn.softmax(jax.nn.log_softmax(logits, axis=0), axis=1)


def _ones(kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.ones_like(kernel[:, 0]), jnp.ones_like(kernel[0])


def _iterate(kernel: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The scales r [O, ...] and c [N, ...] after one more iteration: c = 1 / K^T r, r = 1 / K c."""
    column = 1 / _over_rows(kernel, row)
    return 1 / _over_columns(kernel, column), column


def _over_rows(kernel: jax.Array, row: jax.Array) -> jax.Array:
    return reduce(jnp.add, (kernel[o] * row[o][None] for o in range(len(row))))


def _over_columns(kernel: jax.Array, column: jax.Array) -> jax.Array:
    return reduce(jnp.add, (kernel[:, n] * column[n][None] for n in range(len(column))))


def _forward(logits: jax.Array, iterations: int) -> tuple[jax.Array, jax.Array]:
    return sinkhorn(logits, iterations), logits


def _backward(iterations: int, logits: jax.Array, dout: jax.Array) -> tuple[jax.Array]:
    """Runs the iterations once more, keeping the scales, and then their transposes, last one first.

    With g_r = d loss / d r and s = K c:  r = 1 / s  gives  q = -g_r / s^2,  g_c = K^T q,  g_K = q c^T;  c = 1 / K^T r'  alike.
    """
    kernel, pull_first = jax.vjp(_first, wide(logits))

    def again(scales, _):
        after = _iterate(kernel, scales[0])
        return after, (scales[0], *after)

    (row, column), kept = jax.lax.scan(again, _ones(kernel), length=iterations - 1)
    rows_before, rows, columns = kept

    def transpose(grads, sums):
        drow, dcolumn = grads
        # Divisions, not products: XLA repeats a product in all that use it, for every entry and with its slice of `sums`.
        q = -drow / sums[0] / sums[0]
        p = -(dcolumn + _over_rows(kernel, q)) / sums[1] / sums[1]
        return (_over_columns(kernel, p), jnp.zeros_like(p)), (q, p)

    def add(dkernel, scales):
        q, p, row_before, column = scales
        return dkernel + q[:, None] * column[None] + row_before[:, None] * p[None], None

    weighted = dout * kernel
    grads = _over_columns(weighted, column), _over_rows(weighted, row)
    _, (q, p) = jax.lax.scan(transpose, grads, (1 / rows, 1 / columns), reverse=True)
    dkernel, _ = jax.lax.scan(add, row[:, None] * dout * column[None], (q, p, rows_before, columns))
    (dlogits,) = pull_first(dkernel)
    return (dlogits.astype(logits.dtype),)


sinkhorn.defvjp(_forward, _backward)
