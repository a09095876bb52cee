import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_blocks as reference

from depthroute.nn.norm import RMSNorm, rms_norm

X = np.random.default_rng(0).standard_normal((2, 3, 8))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-2])
def test_rms_norm_is_its_equation(scale, eps):
    found = rms_norm(jnp.asarray(scale * X, jnp.float32), eps)
    np.testing.assert_allclose(found, reference.rms_norm(scale * X, eps), rtol=1e-5, atol=1e-6)


def test_rms_norm_makes_the_mean_square_one():
    np.testing.assert_allclose(jnp.mean(jnp.square(rms_norm(jnp.asarray(X, jnp.float32), 0.0)), axis=-1), 1, rtol=1e-6)


def test_rms_norm_of_zero_is_zero_with_a_finite_gradient():
    zero = jnp.zeros((1, 4))
    assert (rms_norm(zero, 1e-6) == 0).all()
    gradient = jax.grad(lambda x: jnp.sum(rms_norm(x, 1e-6)))(zero)
    np.testing.assert_allclose(gradient, 1 / np.sqrt(1e-6), rtol=1e-5)


def test_bfloat16_is_normalised_in_float32_and_rounded_once():
    x = jnp.asarray(np.random.default_rng(1).standard_normal((50, 64)), jnp.bfloat16)
    found = rms_norm(x, 1e-6)
    assert found.dtype == jnp.bfloat16
    expected = jnp.asarray(reference.rms_norm(np.asarray(x, np.float64), 1e-6), jnp.bfloat16)
    assert np.mean(np.asarray(found == expected)) > 0.99  # a second rounding would move about every third value


def test_the_gain_starts_at_one_and_multiplies():
    x = jnp.asarray(X, jnp.float32)
    module = RMSNorm(1e-6)
    params = module.init(jax.random.key(0), x)
    assert jax.tree.map(jnp.shape, params) == {"params": {"gain": {"D": (8,)}}}
    np.testing.assert_array_equal(module.apply(params, x), rms_norm(x, 1e-6))
    gain = jnp.arange(8.0)
    scaled = module.apply({"params": {"gain": {"D": gain}}}, x)
    np.testing.assert_allclose(scaled, reference.rms_norm(X, 1e-6) * np.arange(8), rtol=1e-5, atol=1e-6)
