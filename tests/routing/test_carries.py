"""The sets of carry matrices: what they promise at any logits, and their values against dense constructions."""

import math

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_streams
from expect import refused
from jax.test_util import check_grads

import depthroute
from depthroute.routing import presets
from depthroute.routing.build import build_router
from depthroute.routing.carries import CARRIES, initial_logits, stochastic_error
from depthroute.routing.counts import router_params
from depthroute.training.step import gradients

STOCHASTIC = ("sinkhorn", "permutations", "kronecker")


def logits_of(form, n, scale, seed=0, tokens=50):
    shape = initial_logits(form, n).shape
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal((*shape, tokens)), jnp.float32)


SIZES = {"sinkhorn": (2, 3, 8), "permutations": (2, 3, 4), "kronecker": (2, 4, 8), "orthogonal": (2, 3, 8)}


@pytest.mark.parametrize("form, n", [(form, n) for form, sizes in SIZES.items() for n in sizes])
def test_values_are_those_of_the_dense_construction(form, n):
    logits = logits_of(form, n, 2.0, tokens=3)
    found = np.moveaxis(np.asarray(CARRIES[form](logits, 20)), -1, 0)
    expected = reference_streams.carry_of(form, np.moveaxis(np.asarray(logits, np.float64), -1, 0)[None], n, 20)[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("form", STOCHASTIC)
def test_rows_sum_to_one_at_any_logits_and_columns_where_the_construction_is_exact(form, scale):
    carry_ON = CARRIES[form](logits_of(form, 4, scale), 20)
    assert jnp.min(carry_ON) >= 0
    np.testing.assert_allclose(jnp.sum(carry_ON, axis=1), 1, atol=1e-6)
    if form != "sinkhorn":
        assert stochastic_error(carry_ON) < 1e-5


def test_iterations_converge_at_logits_of_one_and_not_at_large_ones():
    uniform = np.random.default_rng(0).uniform(-1, 1, (4, 4, 1000))
    assert stochastic_error(CARRIES["sinkhorn"](jnp.asarray(uniform, jnp.float32), 20)) < 1e-3
    assert stochastic_error(CARRIES["sinkhorn"](logits_of("sinkhorn", 4, 100.0), 20)) > 0.1


@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_orthogonal_carries_are_orthogonal_at_any_logits(n, scale):
    carry_ON = np.moveaxis(np.asarray(CARRIES["orthogonal"](logits_of("orthogonal", n, scale), 20), np.float64), -1, 0)
    np.testing.assert_allclose(carry_ON @ carry_ON.swapaxes(1, 2), np.broadcast_to(np.eye(n), carry_ON.shape), atol=1e-5)


@pytest.mark.parametrize("form", CARRIES)
def test_gradients_are_those_of_small_differences(form):
    with jax.enable_x64(True):
        logits = jnp.asarray(logits_of(form, 4, 1.0, tokens=2), jnp.float64)
        direction = jnp.asarray(np.random.default_rng(1).standard_normal((4, 4, 2)))
        check_grads(lambda x: jnp.sum(direction * CARRIES[form](x, 20)), (logits,), order=1, modes=["rev"])


@pytest.mark.parametrize("form", CARRIES)
def test_it_starts_at_or_near_the_identity(form):
    carry_ON = np.asarray(CARRIES[form](jnp.asarray(initial_logits(form, 4))[..., None], 20))[..., 0]
    np.testing.assert_allclose(carry_ON, np.eye(4), atol=0.01)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("preset", ["hyper_dynamic", "mhc", "mhc_lite", "kromhc", "orthogonal_hyper", "identity_hyper"])
def test_huge_logits_give_no_nan(preset, dtype):
    """Forward and backward, through a whole model; free coefficients are values and would overflow, so those are squashed."""
    config = cases.tiny(**{"router.preset": preset, "model.dtype": dtype, "model.layers": 1})
    model = depthroute.build(config)
    params, rng = model.init(jax.random.key(0)), np.random.default_rng(0)
    huge = {name for name in params["router"] if name.endswith(("_logit", "_map"))}
    for name in huge:
        params["router"][name] = jax.tree.map(
            lambda x: jnp.asarray(1e4 * rng.choice([-1, 1], x.shape), x.dtype), params["router"][name]
        )
    loss, grads = gradients(model, params, jnp.arange(18).reshape(2, 9), 0.0, 1)
    assert jnp.isfinite(loss) and all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def spread_after(params, model, tokens_BT, steps):
    """How far the write coefficients of the streams of a site come apart in some steps of gradient descent."""
    for _ in range(steps):
        _, grads = gradients(model, params, tokens_BT, 0.0, 1)
        params = jax.tree.map(lambda p, g: p - 0.1 * g / (jnp.max(jnp.abs(g)) + 1e-12), params, grads)
    write_MO = params["router"]["write_logit"]["MO"]
    return float(jnp.max(jnp.ptp(write_MO, axis=1)))


@pytest.mark.parametrize("start", ["one_hot", "random_maps"])
def test_streams_come_apart(start):
    config = cases.tiny(**{"router.preset": "mhc", "router.stream_start": start})
    model = depthroute.build(config)
    assert spread_after(model.init(jax.random.key(0)), model, jnp.arange(63).reshape(7, 9), 2) > 1e-3


def test_streams_that_are_all_treated_alike_never_come_apart():
    """Why that start is refused: without maps and with equal logits, a permutation of the streams changes nothing, ever."""
    axes = {f"router.{part}": "static" for part in ("read", "carry", "write")}
    config = cases.tiny(**{"router.preset": "mhc"}, **axes)
    model = depthroute.build(config)
    params = model.init(jax.random.key(0))
    params["router"] = jax.tree.map(jnp.zeros_like, params["router"])
    assert spread_after(params, model, jnp.arange(63).reshape(7, 9), 3) < 1e-5
    parts = ["router.stream_start", "'random_maps'", "router.read='static'", "router.write='static'"]
    refused(lambda: presets.check(cases.tiny(**{"router.preset": "mhc", "router.stream_start": "random_maps"}, **axes)), *parts)


@pytest.mark.parametrize(
    "overrides, parts",
    [
        ({"router.preset": "kromhc", "router.streams": 3}, ["router.streams", "3", "router.carry_form='kronecker'"]),
        ({"router.preset": "mhc_lite", "router.streams": 6}, ["router.streams", "6", "router.carry_form='permutations'"]),
        ({"router.preset": "frac_static", "router.streams": 3}, ["router.streams", "3", "model.dim=16"]),
        ({"router.preset": "mhc", "router.split_width": True}, ["router.carry_form", "'sinkhorn'", "router.split_width=True"]),
        ({"router.preset": "frac_static", "router.stream_readout": "learned"}, ["router.stream_readout", "'learned'"]),
        (
            {"router.preset": "mhc", "router.stream_index": "layer", "router.sites": "layer"},
            ["router.stream_index", "router.sites='layer'"],
        ),
        ({"router.preset": "hyper_dynamic", "router.stream_start": "random_maps"}, ["router.stream_start", "'free'"]),
        ({"router.preset": "mhc", "router.value_share": 0.5}, ["router.value_share", "a single stream"]),
    ],
)
def test_senseless_streams_are_refused(overrides, parts):
    refused(lambda: presets.check(cases.tiny(**overrides)), *parts)


def test_published_parameter_counts():
    """OLMo-1B: 32 sublayers of width 2048. Hyper-connections as published; fractions without their norms' gains."""
    shape = {"model.layers": 16, "model.dim": 2048, "model.heads": 16, "model.kv_heads": 16}
    assert router_params(cases.tiny(**{"router.preset": "hyper_static"}, **shape)) == 768
    assert router_params(cases.tiny(**{"router.preset": "hyper_dynamic"}, **shape)) == 394_048
    gains = 32 * 2048 // 4
    assert math.isclose(router_params(cases.tiny(**{"router.preset": "frac_dynamic"}, **shape)) + gains, 165_000, rel_tol=1e-3)


@pytest.mark.parametrize("index, expected", [("sublayer", [0, 1, 0, 1, 0, 1]), ("layer", [0, 0, 1, 1, 0, 0])])
@pytest.mark.parametrize("preset, high, low", [("hyper_static", 1, 0), ("mhc", 1, -1)])
def test_the_stream_that_a_site_reads_at_first_is_counted_and_not_drawn(preset, high, low, index, expected):
    config = cases.tiny(**{"router.preset": preset, "router.stream_index": index, "router.streams": 2, "model.layers": 3})
    parameters = build_router(config).parameters()
    for seed in (0, 1):
        params = parameters.init(jax.random.key(seed))["params"]
        read_MN = params["read" if preset == "hyper_static" else "read_logit"]["MN"]
        np.testing.assert_array_equal(read_MN, np.where(np.eye(2)[expected] == 1, high, low))
