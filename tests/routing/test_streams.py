"""n streams: scanned and unrolled, what they reduce to, and how they come apart."""

import dataclasses

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthroute
from depthroute.model.depth import run_depth
from depthroute.model.stream_scan import scan_streams
from depthroute.routing import presets
from depthroute.routing.build import build_router
from depthroute.routing.streams import Streams
from depthroute.training.step import gradients

STREAMS = [case for case in cases.CASES if presets.family_of(cases.tiny(**cases.CASES[case])) == presets.STREAMS]
FAST = ("hyper_dynamic", "mhc", "mhc_lite", "orthogonal_two", "frac_read_static", "hyper_learned_readout")


def random_arguments(config, dtype, seed=0):
    """Router parameters, layers of sites x -> tanh(x W), and an embedding."""
    rng = np.random.default_rng(seed)
    router, D = build_router(config), config.model.dim
    shapes = jax.eval_shape(router.parameters().init, jax.random.key(0))["params"]
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), dtype), shapes)
    per_layer = 1 if config.router.sites == "layer" else 2
    layers = jnp.asarray(rng.standard_normal((config.model.layers, per_layer, D, D)) / D**0.5, dtype)
    return params, layers, jnp.asarray(rng.standard_normal((3, 5, D)), dtype)


def sites(layer):
    return [lambda x_BTD, w_DD=w_DD: jnp.tanh(x_BTD @ w_DD) for w_DD in layer]


def compare(config, dtype, remat):
    """Largest differences of output and gradients between the unrolled and the scanned form, over the largest entries."""
    router = build_router(config)

    def unrolled(params, layers, x_BTD):
        own = router.parameters().apply({"params": params})
        return run_depth(router, own, [site for layer in layers for site in sites(layer)], x_BTD)[0]

    def scanned(params, layers, x_BTD):
        return scan_streams(router, router.parameters().apply({"params": params}), sites, layers, x_BTD, remat)

    def both(form):
        def project(*args):
            out_BTD = form(*args)
            return jnp.sum(jnp.sin(out_BTD)), out_BTD

        return jax.jit(jax.grad(project, (0, 1, 2), has_aux=True))(*random_arguments(config, dtype))

    pairs = zip(jax.tree.leaves(both(unrolled)), jax.tree.leaves(both(scanned)), strict=True)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(a))) for a, b in pairs)


@pytest.mark.parametrize("case", [case if case in FAST else pytest.param(case, marks=pytest.mark.slow) for case in STREAMS])
def test_scanned_equals_unrolled_in_float64(case):
    with jax.enable_x64(True):
        assert compare(cases.tiny(**cases.CASES[case]), jnp.float64, remat=True) < 1e-10


@pytest.mark.parametrize("case", ["hyper_dynamic", "mhc"])
@pytest.mark.parametrize("remat", [False, True])
def test_scanned_equals_unrolled_in_float32(case, remat):
    assert compare(cases.tiny(**cases.CASES[case]), jnp.float32, remat) < 1e-5


def with_engine(config, **fields):
    return dataclasses.replace(config, engine=dataclasses.replace(config.engine, **fields))


@pytest.mark.parametrize("case", ["hyper_static", "mhc"])
def test_the_whole_model_is_the_same(built, case):
    it = built(case)
    model = depthroute.build(with_engine(it.config, history="buffer"))
    run = jax.jit(lambda params: (model.apply(params, it.tokens_BT), gradients(model, params, it.sequences_BT, 0.0, 1)))
    expected = jax.jit(lambda params: gradients(it.model, params, it.sequences_BT, 0.0, 1))(it.randomised)
    for a, b in zip(jax.tree.leaves((it.traced[0], expected)), jax.tree.leaves(run(it.randomised)), strict=True):
        assert np.max(np.abs(a - b)) <= 1e-5 * np.max(np.abs(a))


def test_one_stream_with_unit_matrices_is_the_residual_network(built):
    it = built("residual")
    config = cases.tiny(**{"router.preset": "hyper_static", "router.streams": 1})
    model = depthroute.build(config)
    params = {**it.randomised, "router": model.init(jax.random.key(0))["router"]}
    assert all(np.all(np.asarray(leaf) == 1) for leaf in jax.tree.leaves(params["router"]))
    np.testing.assert_allclose(model.apply(params, it.tokens_BT), it.traced[0], rtol=1e-5, atol=1e-5)


def streams_at_the_end(config):
    """The streams after all sites, at initial router parameters."""
    router = build_router(config)
    params = router.parameters().apply(router.parameters().init(jax.random.key(0)))
    _, layers, x_BTD = random_arguments(config, jnp.float32)
    own = router.split(params)
    state = router.init_state(own[0], x_BTD)
    for m, site in enumerate(site for layer in layers for site in sites(layer)):
        state = router.write(own[m], state, m, site(router.read(own[m], state, m).x_BTD))
    return np.asarray(state)


def test_mhc_starts_with_equal_streams_that_do_not_stay_equal():
    """Were all read alike, all would be written alike for ever; the first gradient tells them apart."""
    config = cases.tiny(**{"router.preset": "mhc"})
    state_BTND = streams_at_the_end(config)
    np.testing.assert_allclose(state_BTND, np.broadcast_to(state_BTND[:, :, :1], state_BTND.shape), rtol=1e-4, atol=1e-5)
    model = depthroute.build(config)
    _, grads = gradients(model, model.init(jax.random.key(0)), jnp.arange(24).reshape(3, 8), 0.0, 1)
    dwrite_MO = np.asarray(grads["router"]["write_logit"]["MO"])
    assert np.ptp(dwrite_MO, axis=1).max() > 1e-3 * np.abs(dwrite_MO).max()


def test_the_error_of_sinkhorn_carries_is_measured(built, monkeypatch):
    """Against the carries that an unrolled run makes; other routers have none."""
    it = built("mhc")
    seen = []
    coefficients = Streams.coefficients
    monkeypatch.setattr(
        Streams, "coefficients", lambda self, params, state: (seen.append(coefficients(self, params, state)), seen[-1])[1]
    )
    it.model.apply(it.randomised, it.tokens_BT)
    expected = max(float(np.max(np.abs(np.sum(np.asarray(by.carry_BTON, np.float64), axis=2) - 1))) for by in seen)
    monkeypatch.undo()
    assert expected > 1e-4
    np.testing.assert_allclose(it.model.carry_error(it.randomised, it.tokens_BT), expected, rtol=1e-2)
    assert all(
        built(case).model.carry_error(built(case).params, it.tokens_BT) is None for case in ("residual", "qd_ks", "kromhc")
    )
