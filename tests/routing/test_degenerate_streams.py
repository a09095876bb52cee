"""Routers with n streams that are another function where their equations say so, with coefficients set by hand."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthroute.model.depth import run_depth
from depthroute.routing.build import build_router
from depthroute.routing.streams import Streams

SITES = 4
both_widths = pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-12)])


def sites(dtype, count=SITES):
    weights = np.random.default_rng(0).standard_normal((count, 16, 16)) / 4
    arrays = [jnp.asarray(w, dtype) for w in weights]
    return [lambda x_BTD, w_DD=w_DD: jnp.tanh(x_BTD @ w_DD) for w_DD in arrays]


def embedding(dtype):
    return jnp.asarray(np.random.default_rng(1).standard_normal((2, 3, 16)), dtype)


def static(read_MN, carry_MON, write_MO, dtype):
    """What the read-out of static hyper-connections sees."""
    layers, n = len(read_MN) // 2, len(read_MN[0])
    config = cases.tiny(**{"router.preset": "hyper_static", "router.streams": n, "model.layers": layers})
    params = {"read_MN": read_MN, "carry_MON": carry_MON, "write_MO": write_MO}
    params = {name: jnp.asarray(value, dtype) for name, value in params.items()}
    return run_depth(build_router(config), params, sites(dtype, 2 * layers), embedding(dtype))[0]


def single(preset, dtype):
    return run_depth(build_router(cases.tiny(**{"router.preset": preset})), {}, sites(dtype), embedding(dtype))[0]


def check(found, expected, tolerance):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.max(np.abs(expected)))


@both_widths
def test_one_stream_that_is_not_carried_is_the_plain_network(dtype, tolerance):
    with jax.enable_x64(dtype is np.float64):
        ones, zeros = np.ones((SITES, 1)), np.zeros((SITES, 1, 1))
        check(static(ones, zeros, ones, dtype), single("plain", dtype), tolerance)
        check(static(ones, zeros + 1, ones, dtype), single("residual", dtype), tolerance)


@both_widths
def test_without_writes_the_streams_are_a_linear_map_of_the_embedding(dtype, tolerance):
    with jax.enable_x64(dtype is np.float64):
        rng = np.random.default_rng(2)
        carry_MON = rng.standard_normal((SITES, 3, 3))
        found = static(rng.standard_normal((SITES, 3)), carry_MON, np.zeros((SITES, 3)), dtype)
        factor = np.ones(3) @ np.linalg.multi_dot(carry_MON[::-1]) @ np.ones(3)
        check(found, factor * np.asarray(embedding(dtype)), tolerance)


@both_widths
def test_a_stream_for_every_output_is_static_mixing_over_the_full_history(dtype, tolerance):
    """Streams start as (v_0, 0, ..), site m writes to stream m + 1 alone, and all are carried as they are."""
    with jax.enable_x64(dtype is np.float64):
        n, rng = SITES + 1, np.random.default_rng(3)
        mixes_MN = np.tril(rng.standard_normal((n, n)))
        mixes_MN[0, 0] = 1
        config = cases.tiny(**{"router.preset": "grn_v1", "router.sites": "sublayer"})
        bias_P = np.concatenate([mixes_MN[m, : m + 1] for m in range(1, n)])
        expected = run_depth(build_router(config), {"bias_P": jnp.asarray(bias_P, dtype)}, sites(dtype), embedding(dtype))[0]

        router = Streams(cases.tiny(**{"router.preset": "hyper_static", "router.streams": n}))
        state = router.init_state({}, embedding(dtype)).at[:, :, 1:].set(0)
        for m, site in enumerate(sites(dtype)):
            rows = {"read_N": mixes_MN[m], "carry_ON": np.eye(n), "write_O": np.eye(n)[m + 1]}
            params = {name: jnp.asarray(row, dtype) for name, row in rows.items()}
            state = router.write(params, state, m, site(router.read(params, state, m).x_BTD))
        check(jnp.einsum("N,BTND->BTD", jnp.asarray(mixes_MN[-1], dtype), state), expected, tolerance)


def test_mhc_with_a_diagonal_far_above_the_rest_carries_every_stream_as_it_is():
    mhc, identity = (cases.tiny(**{"router.preset": preset}) for preset in ("mhc", "identity_hyper"))
    shapes = jax.eval_shape(build_router(mhc).parameters().init, jax.random.key(0))["params"]
    rng = np.random.default_rng(4)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32), shapes)
    params["carry_logit"]["MON"] = jnp.broadcast_to(1e4 * (jnp.eye(4) - 1), (SITES, 4, 4))
    params["carry_map"]["MONW"] = jnp.zeros_like(params["carry_map"]["MONW"])
    outs = []
    for config in (mhc, identity):
        router = build_router(config)
        own = {name: value for name, value in params.items() if config is mhc or not name.startswith("carry")}
        outs.append(run_depth(router, router.parameters().apply({"params": own}), sites(np.float32), embedding(np.float32))[0])
    check(outs[0], outs[1], 1e-5)


def layers_of(arrangement, dtype):
    """A decoder of two layers, attention f and MLP g: in sequence x + f(x) + g(x + f(x)), in parallel x + f(x) + g(x)."""
    x, functions = embedding(dtype), sites(dtype)
    for f, g in (functions[:2], functions[2:]):
        u = f(x)
        x = x + u + g(x + u if arrangement == "sequential" else x)
    return x


@both_widths
@pytest.mark.parametrize("arrangement", ["sequential", "parallel"])
def test_block_arrangements_are_hyper_connection_matrices(arrangement, dtype, tolerance):
    """Two equal streams, so that the read-out is twice the residual stream (arXiv 2409.19606, section 3).

    In sequence the matrix [[0, 1, 1], [1, 1, 0], [1, 0, 1]] stands at every site: its first row says who is written to, its
    first column who is read, and the rest is the carry. Both streams are read, and each is the stream: half of either will do.
    In parallel, stream 0 waits at what both sublayers read while stream 1 collects; after the MLP both are what was collected.
    """
    with jax.enable_x64(dtype is np.float64):
        paper = np.array([[0, 1, 1], [1, 1, 0], [1, 0, 1]])
        read, carry, write = [paper[1:, 0] / 2] * 4, [paper[1:, 1:]] * 4, [paper[0, 1:]] * 4
        if arrangement == "parallel":
            read, carry, write = [[1, 0]] * 4, [np.eye(2), [[0, 1], [0, 1]]] * 2, [[0, 1], [1, 1]] * 2
        check(static(read, carry, write, dtype) / 2, layers_of(arrangement, dtype), tolerance)
