import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthroute.nn.linear import linear


@pytest.mark.parametrize("shape, equation", [((5,), "btd,df->btf"), ((3, 2), "btd,dhk->bthk")])
def test_linear_and_its_gradients_are_those_of_the_einsum(shape, equation):
    rng = np.random.default_rng(0)
    x, kernel, cotangent = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((2, 3, 4), (4, *shape), (2, 3, *shape)))
    found, found_vjp = jax.vjp(linear, x, kernel)
    expected, expected_vjp = jax.vjp(lambda x, kernel: jnp.einsum(equation, x, kernel), x, kernel)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for one, other in zip(found_vjp(cotangent), expected_vjp(cotangent), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
