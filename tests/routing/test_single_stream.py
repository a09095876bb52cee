"""The residual add, and the routers without a history, on numbers worked out by hand."""

import dataclasses
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expect import largest_difference, refused

import depthroute
from depthroute.config import EngineConfig
from depthroute.model.depth import run_depth
from depthroute.routing.build import build_router
from depthroute.routing.contract import residual_add
from depthroute.routing.presets_single_stream import PRESETS
from depthroute.routing.single_stream import layer_scale
from depthroute.training.step import gradients


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


SINGLE = tuple(PRESETS)


SCANNED_FAST = ("rezero", "stage_bypass", "laurel_pa")
SCANNED = [*((case, False) for case in SINGLE), ("value_residual", True), ("laurel_pa", True)]


@pytest.mark.parametrize(
    "case, remat",
    [pair if pair[0] in SCANNED_FAST or pair[1] else pytest.param(*pair, marks=pytest.mark.slow) for pair in SCANNED],
)
def test_scanned_equals_unrolled(case, remat):
    """Logits and every gradient at random router parameters, in float32, four layers."""
    rng = np.random.default_rng(0)
    config = cases.tiny(**{"router.preset": case, "model.layers": 4, "model.remat": remat})
    unrolled, scanned = (
        depthroute.build(dataclasses.replace(config, engine=EngineConfig(history=form))) for form in ("list", "buffer")
    )
    params = unrolled.init(jax.random.key(0))
    params["router"] = jax.tree.map(lambda x: x + jnp.asarray(0.3 * rng.standard_normal(x.shape), x.dtype), params["router"])
    tokens_BT = jnp.asarray(rng.permutation(64).reshape(8, 8))

    def both(model):
        return jax.jit(lambda params: (model.apply(params, tokens_BT), gradients(model, params, tokens_BT, 0.0, 1)))(params)

    (logits_BTV, expected), (found_BTV, found) = both(unrolled), both(scanned)
    assert largest_difference(found_BTV, logits_BTV) < 1e-5
    largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(expected))
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert np.max(np.abs(a - b)) <= 1e-5 * largest


def logits(built, case, params=None, **overrides):
    """Logits of a case's tiny model at the residual network's randomised parameters, with `params` for the router."""
    it = built("residual")
    model = depthroute.build(cases.tiny(**{"router.preset": case}, **overrides))
    own = model.init(jax.random.key(0))["router"]
    return model.apply({**it.randomised, "router": own if params is None else params(own)}, it.tokens_BT)


@pytest.mark.parametrize(
    "case, overrides, params, expected",
    [
        ("partial_residual", {"router.skip_fraction": 1.0}, None, "residual"),
        ("partial_residual", {"router.skip_fraction": 0.0}, None, "plain"),
        ("scaled", {"router.skip_scale": 1.0}, None, "residual"),
        ("layerscale", {}, lambda own: jax.tree.map(jnp.ones_like, own), "residual"),
        ("value_residual", {"router.value_share": 0.0}, None, "residual"),
        ("laurel_lr", {}, None, "residual"),
        ("laurel_pa", {}, None, "residual"),
        ("highway", {}, lambda own: {**own, "gate_shift": {"MD": 99 + own["gate_shift"]["MD"]}}, "plain"),
    ],
)
def test_it_becomes_another_at_a_limit(built, case, overrides, params, expected):
    found_BTV = logits(built, case, params, **overrides)
    assert largest_difference(found_BTV, logits(built, expected)) < 1e-5


def test_what_passes_a_stage_is_untouched(tiny):
    """Channels 4, two stages of two sites: the first quarter passes the first stage, the second quarter the second."""
    config = tiny(**{"router.preset": "stage_bypass", "router.skip_fraction": 0.25})
    router = build_router(config)
    state = jnp.zeros((1, 1, 16))
    for m in range(4):
        state = router.write({}, state, m, jnp.ones((1, 1, 16)))
    np.testing.assert_array_equal(state[0, 0], [2] * 4 + [2] * 4 + [4] * 8)


def test_a_share_of_the_first_values_is_for_any_single_stream(built):
    """At a share of one all layers attend with the values of the first, and their own value matrices change nothing."""
    it = built("residual")
    model = depthroute.build(cases.tiny(**{"router.preset": "residual", "router.value_share": 1.0}))
    value_LDGK = it.randomised["layers"]["attention"]["value"]["DGK"]
    moved = {**it.randomised["layers"]["attention"], "value": {"DGK": value_LDGK.at[1].set(7.0)}}
    params = {**it.randomised, "layers": {**it.randomised["layers"], "attention": moved}}
    np.testing.assert_array_equal(model.apply(params, it.tokens_BT), model.apply(it.randomised, it.tokens_BT))
    assert largest_difference(it.model.apply(params, it.tokens_BT), it.traced[0]) > 1e-3


@pytest.mark.parametrize(
    "overrides, parts",
    [
        ({"router.preset": "stage_bypass", "model.layers": 3}, ["router.stages", "2", "model.layers=3"]),
        ({"router.preset": "stage_bypass", "router.skip_fraction": 1.0}, ["router.skip_fraction", "1.0", "model.dim=16"]),
        ({"router.preset": "laurel_lr", "router.rank": 17}, ["router.rank", "17", "model.dim=16"]),
        ({"router.preset": "qs_ks", "router.value_share": 0.5}, ["router.value_share", "0.5", "a single stream"]),
    ],
)
def test_sizes_that_leave_nothing_are_refused(tiny, overrides, parts):
    refused(lambda: depthroute.build(tiny(**overrides)), *parts)


@pytest.mark.parametrize("layers, expected", [(18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)])
def test_layer_scale_starts_smaller_in_deeper_networks(tiny, layers, expected):
    assert layer_scale(tiny(**{"model.layers": layers})) == expected
