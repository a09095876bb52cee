"""Depth attention beyond the contract: its axes, and that static and dynamic keys differ in one function."""

from typing import get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES

from depthroute.config import RouterConfig, differences
from depthroute.model.depth import run_depth
from depthroute.routing.build import build_router
from depthroute.routing.depth_attention import QUERY_INPUTS, DepthAttention
from depthroute.routing.history import BUFFER_DOTS, DOTS, ListHistory
from depthroute.routing.keys import KEYS
from depthroute.routing.mixing import MIXINGS
from depthroute.routing.queries import QUERIES
from depthroute.routing.topology import num_sites


@pytest.mark.parametrize(
    "axis, functions, without",
    [
        ("query", QUERIES, {"none", "mlp"}),
        ("key", KEYS, {"none", "static_per_consumer"}),
        ("mixing", MIXINGS, set()),
        ("query_input", QUERY_INPUTS, set()),
    ],
)
def test_every_allowed_name_has_a_function(axis, functions, without):
    assert set(get_args(get_type_hints(RouterConfig)[axis])) == functions.keys() | without


def test_dots_cover_every_pair_of_a_query_and_a_key():
    rng = np.random.default_rng(0)
    arrays = {1: rng.standard_normal(5), 3: rng.standard_normal((2, 3, 5))}
    assert set(DOTS) == {(q, k) for q in arrays for k in arrays}
    for (q, k), form in DOTS.items():
        np.testing.assert_allclose(np.einsum(form, arrays[q], arrays[k]), np.sum(arrays[q] * arrays[k], axis=-1))
        rows = [np.broadcast_to(np.einsum(form, arrays[q], s * arrays[k]), (2, 3)) for s in (1, 2)]
        both = np.einsum(BUFFER_DOTS[q, k + 1], arrays[q], np.stack([arrays[k], 2 * arrays[k]]))
        np.testing.assert_allclose(np.broadcast_to(both, (2, 3, 2)), np.stack(rows, axis=-1))


def run_router(router, params):
    """What the read-out sees and the trace, with updates drawn at random; `params` is the flat dictionary of the contract."""
    rng = np.random.default_rng(1)
    shape_BTD = (8, 8, router.config.model.dim)
    x_BTD, *updates = (jnp.asarray(rng.standard_normal(shape_BTD), jnp.float32) for _ in range(num_sites(router.config) + 1))
    return run_depth(router, params, [lambda _, update_BTD=update_BTD: update_BTD for update_BTD in updates], x_BTD)


@pytest.mark.parametrize("static_arm, dynamic_arm", [("qs_ks", "qs_kd"), ("qd_ks", "qd_kd")])
def test_static_and_dynamic_keys_differ_in_one_function(built, static_arm, dynamic_arm, monkeypatch):
    """The dynamic arm with its key function swapped for the static one is the static arm, bit for bit."""
    static, dynamic = built(static_arm), built(dynamic_arm)
    assert set(differences(static.config, dynamic.config)) == {"router.preset", "router.key"}
    assert type(static.model.router) is type(dynamic.model.router) is DepthAttention
    static_params, dynamic_params = (
        it.model.router.parameters().apply({"params": it.randomised["router"]}) for it in (static, dynamic)
    )
    assert static_params.keys() ^ dynamic_params.keys() == {"key_SR", "key_map_DR"}
    params = {**dynamic_params, **static_params}
    expected = run_router(static.model.router, static_params)
    assert not np.array_equal(run_router(dynamic.model.router, params)[0], expected[0])
    monkeypatch.setitem(KEYS, "dynamic_projected", KEYS["static"])
    found = run_router(dynamic.model.router, params)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


def test_a_hybrid_key_with_a_closed_gate_is_the_static_key(built):
    hybrid, static = built("qd_kh"), built("qd_ks")
    params = hybrid.model.router.parameters().apply({"params": hybrid.randomised["router"]})
    closed = {**params, "key_gate": jnp.zeros(())}
    found_BTD, _ = run_router(hybrid.model.router, closed)
    expected_BTD, _ = run_router(static.model.router, {name: params[name] for name in ("query_MR", "query_map_MDR", "key_SR")})
    np.testing.assert_allclose(found_BTD, expected_BTD, atol=1e-6)


def test_a_dynamic_query_starts_equal_to_the_static_one(built):
    """Zero map, zero query; keys do not start at zero, or neither would ever move."""
    routers = {case: built(case).params["router"] for case in ("qs_ks", "qd_ks", "qd_kd", "qd_kh", "attnres")}
    for case, router in routers.items():
        assert not router["query"]["MR"].any()
        assert case in ("qs_ks", "attnres") or not router["query_map"]["MDR"].any()
    assert routers["qd_ks"]["key"]["SR"].all() and routers["qd_kd"]["key_map"]["DR"].all()
    assert routers["qd_kh"]["key_gate"]["scalar"] == 0 and (routers["attnres"]["key_gain"]["MD"] == 1).all()


def initial_arrays(router):
    """What the router's parameters hold at first; without any, constants."""
    return router.parameters().apply(router.parameters().init(jax.random.key(0)))


@pytest.mark.parametrize(
    "case", ["qs_ks", "qs_kd", "attnres", "static_per_consumer", "qd_sinusoidal", "qd_recurrent", "lr_attnres_sliced"]
)
def test_keys_start_with_coordinates_of_size_one(tiny, case):
    """Whatever the width of the model and however large what was written: so scores of all arms start to move alike."""
    config = tiny(**CASES[case] | {"model.dim": 64, "router.rank": 32})
    router = build_router(config)
    params = {name: x[0] if "_C" in name else x for name, x in router.split(initial_arrays(router))[-1].items()}
    value_BTD = 50 * jax.random.normal(jax.random.key(1), (8, 8, 64))
    kind = config.router.key
    keys = params["key_CSR"] if kind == "static_per_consumer" else router.key(params, 1, value_BTD, value_BTD[..., :32])
    assert float(jnp.sqrt(jnp.mean(jnp.square(keys)))) == pytest.approx(1, rel=0.3)


def test_list_history_mixes_in_float32():
    values = [jnp.full((1, 1, 3), value, jnp.bfloat16) for value in (256.0, 1.0, 1.0)]
    history = ListHistory().append(values[0], None).append(values[1], None).append(values[2], None)
    mixed_BTD = history.mix(jnp.ones((1, 1, 3), jnp.float32))
    assert mixed_BTD.dtype == jnp.float32
    assert (mixed_BTD == 258).all()  # in bfloat16 256 + 1 is 256
    assert history.replace_newest(values[0], None).values == (values[0], values[1], values[0])
