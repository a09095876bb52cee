"""The residual add, and the routers without a history, on numbers worked out by hand."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from depthroute.model.depth import run_depth
from depthroute.routing.build import build_router
from depthroute.routing.contract import residual_add


@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1), (1, 2, 2)])
def test_the_residual_add_refuses_to_broadcast(shape):
    """Also where NumPy would, and JAX without rank promotion."""
    with pytest.raises(ValueError, match=re.escape(f"(2, 2) and {shape}")):
        residual_add(jnp.ones((2, 2)), jnp.ones(shape))
    np.testing.assert_array_equal(residual_add(jnp.ones((2, 2)), jnp.ones((2, 2))), np.full((2, 2), 2))


@pytest.mark.parametrize(
    "preset, expected",
    [
        ("residual", [1 + 2, 2 + 1]),
        ("plain", [2, 1]),
        ("postnorm", [3 / 3, 3 / 3]),
    ],
)
def test_one_step(tiny, preset, expected):
    """x = (1, 2), u = (2, 1), repeated over the width; their sum has root mean square 3."""
    config = tiny(**{"router.preset": preset, "model.layers": 1})
    x_BTD = jnp.tile(jnp.array([1.0, 2.0]), 8)[None, None]
    update_BTD = jnp.tile(jnp.array([2.0, 1.0]), 8)[None, None]
    router = build_router(config)
    params = {"gain_MD": jnp.ones((2, 16))} if preset == "postnorm" else {}
    consumers = router.split(params)
    state = router.write(consumers[0], router.init_state(consumers[0], x_BTD), 0, update_BTD)
    np.testing.assert_allclose(router.read(consumers[1], state, 1).x_BTD[0, 0, :2], expected, rtol=1e-6)
    assert router.read(consumers[1], state, 1).trace is None
    readout_BTD, trace = run_depth(router, params, [lambda x_BTD: update_BTD, lambda x_BTD: 0 * x_BTD + 1], x_BTD)
    assert trace is None and readout_BTD.shape == x_BTD.shape


@pytest.mark.parametrize("preset", ["residual", "postnorm", "qs_ks", "qd_kd", "attnres_block", "denseformer"])
def test_an_update_of_another_shape_is_refused(built, preset):
    """Broadcasting an update over positions would train, and be wrong."""
    it = built(preset)
    router = it.model.router
    consumers = router.split(router.parameters().apply({"params": it.params["router"]}))
    x_BTD = jnp.ones((2, 3, 16))
    with pytest.raises(ValueError, match=re.escape("(2, 3, 16) and (2, 1, 16)")):
        router.write(consumers[0], router.init_state(consumers[0], x_BTD), 0, x_BTD[:, :1])
