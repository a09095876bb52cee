import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_blocks as reference

from depthroute.nn.mlp import MLP


@pytest.mark.parametrize("kind", ["swiglu", "gelu"])
@pytest.mark.parametrize("prenorm", [True, False])
def test_the_sublayer_is_its_equation_and_its_values_start_as_documented(tiny, kind, prenorm):
    model = tiny(**{"model.mlp": kind}).model
    module = MLP(kind, 100, model.stream_eps, prenorm, 0, 1.0, 5.0, jnp.dtype("float32"))
    x = np.random.default_rng(0).standard_normal((2, 3, 64))
    params = module.init(jax.random.key(0), jnp.asarray(x, jnp.float32))["params"]
    assert ("norm" in params) == prenorm
    assert ("gate" in params) == (kind == "swiglu")
    expected = reference.mlp(model, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params), x)
    np.testing.assert_allclose(module.apply({"params": params}, jnp.asarray(x, jnp.float32)), expected, atol=1e-5)
    assert float(jnp.std(params["up"]["DF"])) == pytest.approx(1 / 8, rel=0.1)
    assert float(jnp.std(params["down"]["FD"])) == pytest.approx(1 / 50, rel=0.1)
