"""The Sinkhorn normalisation against its iterations as they are written, and their gradient by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_streams as reference

from depthroute.routing.sinkhorn import sinkhorn


def unrolled(logits, iterations):
    p = jnp.exp(logits - jnp.max(logits, axis=(0, 1), keepdims=True))
    for _ in range(iterations):
        p = p / jnp.sum(p, axis=0, keepdims=True)
        p = p / jnp.sum(p, axis=1, keepdims=True)
    return p


def values_and_gradients(function, logits, iterations):
    direction = jnp.asarray(np.random.default_rng(1).standard_normal(logits.shape), logits.dtype)
    return function(logits, iterations), jax.grad(lambda x: jnp.sum(direction * function(x, iterations)))(logits)


@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_values_and_gradients_are_those_of_the_iterations(n, iterations):
    with jax.enable_x64(True):
        logits = jnp.asarray(3 * np.random.default_rng(0).standard_normal((n, n, 7)))
        for a, b in zip(*(values_and_gradients(f, logits, iterations) for f in (unrolled, sinkhorn)), strict=True):
            np.testing.assert_allclose(b, a, rtol=0, atol=1e-10)
        expected = reference.sinkhorn(np.moveaxis(np.asarray(logits), -1, 0), iterations)
        np.testing.assert_allclose(np.moveaxis(np.asarray(sinkhorn(logits, iterations)), -1, 0), expected, atol=1e-12)


def test_float32_is_close_to_float64():
    logits = np.random.default_rng(0).standard_normal((4, 4, 50)).astype(np.float32)
    found = values_and_gradients(sinkhorn, jnp.asarray(logits), 20)
    with jax.enable_x64(True):
        exact = values_and_gradients(unrolled, jnp.asarray(logits, jnp.float64), 20)
    for a, b in zip(exact, found, strict=True):
        assert np.max(np.abs(np.asarray(a) - np.asarray(b))) <= 1e-5 * np.max(np.abs(a))


def test_logits_of_ten_thousand_stay_finite():
    logits = jnp.asarray(1e4 * np.random.default_rng(0).choice([-1.0, 1.0], (4, 4, 50)), jnp.float32)
    out, gradient = values_and_gradients(sinkhorn, logits, 20)
    assert np.isfinite(out).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(np.sum(out, axis=1), 1, rtol=1e-5)
