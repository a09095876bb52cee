"""Routers that are the same function where their equations say so, with weights copied; and traps of history routers."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import Toy

import depthroute
from depthroute.model.depth import run_depth
from depthroute.routing.build import build_router
from depthroute.training.optimizer import make_optimizer
from depthroute.training.step import gradients, init_state, make_train_step

LAYERS = {"model.layers": 4}


def outputs(case, params=None, dtype=np.float64, **overrides):
    """What the read-out sees of a toy with these axes, its own parameters or given ones, and the parameters."""
    config = cases.tiny(**cases.CASES[case], **LAYERS, **overrides)
    toy = Toy(config, dtype=dtype)
    if params is not None:
        toy.params = params
    return np.asarray(toy.by_list(toy.params, toy.layers, toy.x_BTD)), toy.params


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-12)])
@pytest.mark.parametrize(
    "first, second",
    [
        (("attnres", {}), ("attnres_block", {"router.blocks": 8})),
        (("attnres", {}), ("attnres_window", {"router.window": 8})),
        (("attnres_block", {}), ("attnres_multihead", {"router.heads": 1})),
        (("dca", {}), ("k_dca", {"router.window": 4})),
        (("denseformer", {}), ("mudd_static", {})),
        (("denseformer", {}), ("denseformer", {"router.memory": "dilated"})),
        (("grn_v1", {}), ("qs_ks", {**{f"router.{a}": "none" for a in ("query", "key")}, "router.mixing": "free"}
            | {"router.bias": "learned", "router.bias_start": "one", "router.sites": "layer"})),
    ],
)  # fmt: skip
def test_one_is_a_special_case_of_the_other(first, second, dtype, tolerance):
    with jax.enable_x64(dtype is np.float64):
        expected, params = outputs(first[0], dtype=dtype, **first[1])
        found, own = outputs(second[0], params, dtype, **second[1])
        assert jax.tree.structure(params) == jax.tree.structure(own)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def denseformer(bias_P, layers, x):
    """As the paper's code runs it: Y_i = sum_{j <= i} a_ij X_j after block i, and the read-out sees the last Y."""
    states, pair = [x], 0
    for i, w_DD in enumerate(layers):
        y = states[0] if i == 0 else sum(bias_P[pair - i - 1 + j] * states[j] for j in range(i + 1))
        states.append(y + np.tanh(y @ w_DD))
        pair += i + 2
    return sum(bias_P[pair - len(states) + j] * state for j, state in enumerate(states))


def test_free_mixing_of_states_at_layers_is_denseformer():
    with jax.enable_x64(True):
        toy = Toy(cases.tiny(**{"router.preset": "denseformer"}, **LAYERS), dtype=np.float64)
        bias_P, layers = np.asarray(toy.params["bias"]["P"]), np.asarray(toy.layers)[:, 0]
        found = toy.by_list(toy.params, toy.layers, toy.x_BTD)
        np.testing.assert_allclose(found, denseformer(bias_P, layers, np.asarray(toy.x_BTD)), rtol=1e-12, atol=1e-12)


def test_one_way_mudd_without_its_dynamic_part_is_denseformer():
    with jax.enable_x64(True):
        dense, mudd = (
            Toy(cases.tiny(**cases.CASES[case], **LAYERS), dtype=np.float64) for case in ("denseformer", "mudd_dynamic")
        )
        params = {**mudd.params, **dense.params, "mlp_out": jax.tree.map(jnp.zeros_like, mudd.params["mlp_out"])}
        expected = dense.by_list(dense.params, dense.layers, dense.x_BTD)
        np.testing.assert_allclose(mudd.by_list(params, dense.layers, dense.x_BTD), expected, rtol=1e-12, atol=1e-12)


def test_delta_attention_residuals_are_the_residual_stream_plus_attention_residuals():
    """Of one and the same history: what a consumer reads, less what it reads without the stream."""
    toys = [Toy(cases.tiny(**{"router.preset": preset}, **LAYERS)) for preset in ("attnres", "delta_attnres")]
    states = []
    for toy in toys:
        own = toy.router.split(toy.routing(toys[0].params))
        state = toy.router.init_state(own[0], toy.x_BTD)
        for m in range(3):
            state = toy.router.write(own[m], state, m, jnp.sin(toy.x_BTD + m))
        states.append(toy.router.read(own[3], state, 3).x_BTD)
    stream_BTD = toys[0].x_BTD + sum(jnp.sin(toys[0].x_BTD + m) for m in range(3))
    np.testing.assert_allclose(states[1] - states[0], stream_BTD, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_block_attention_residuals_count_the_embedding_once(blocks):
    """If sites write nothing, every consumer with uniform weights over n sources sees the embedding over n."""
    config = cases.tiny(**{"router.preset": "attnres_block", "router.blocks": blocks}, **LAYERS)
    router, x_BTD = build_router(config), jnp.ones((1, 2, 16))
    params = router.parameters().apply(router.parameters().init(jax.random.key(0)))
    seen = []
    run_depth(router, params, [lambda x: (seen.append(x), 0 * x)[1]] * 8, x_BTD)
    for m, read_BTD in enumerate(seen):
        sources = 1 if m == 0 else 2 + min((m - 1) // (8 // blocks), blocks - 1)
        np.testing.assert_allclose(read_BTD, x_BTD / sources, rtol=1e-6)


def query_gradient(it, params):
    _, grads = gradients(it.model, params, it.sequences_BT, 0.0, 1)
    return max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(grads["router"]["query"]))


def test_scores_through_a_relu_can_leave_zero(built, monkeypatch):
    """With the ReLU of zero slope at zero the query's gradient is exactly zero, and stays so."""
    it = built("grn_v3")
    assert query_gradient(it, it.params) > 0
    monkeypatch.setattr("depthroute.routing.mixing.jnp.maximum", lambda x, _: jax.nn.relu(x))
    assert query_gradient(it, it.params) == 0


def test_no_router_starts_with_a_zero_query_and_zero_keys(built):
    """There both gradients would be exactly zero for ever, as the same router shows if its keys are set to zero."""
    it = built("qd_ks")
    assert query_gradient(it, it.params) > 0
    dead = {**it.params, "router": {**it.params["router"], "key": {"SR": 0 * it.params["router"]["key"]["SR"]}}}
    _, grads = gradients(it.model, dead, it.sequences_BT, 0.0, 1)
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(grads["router"]))
    for case in cases.CASES:
        config = cases.tiny(**cases.CASES[case])
        if config.router.query in ("static", "dynamic"):
            params = depthroute.build(config).router.parameters().init(jax.random.key(0))["params"]
            zeros = {name for name, tree in params.items() if all(np.all(x == 0) for x in jax.tree.leaves(tree))}
            assert "query" in zeros and not zeros & {"key", "key_map"}


def test_running_means_move_as_averages_and_centre_what_they_describe(built):
    """The gradient of a mean is its distance from the batch's, whatever the loss."""
    it = built("qd_centred")
    _, grads = gradients(it.model, it.randomised, it.sequences_BT, 0.0, 1)
    tokens_BT = it.sequences_BT[:, :-1]
    embedded_BTD = it.randomised["embed"]["VD"][tokens_BT]
    mean_SD = it.randomised["router"]["key_mean"]["SD"]
    np.testing.assert_allclose(
        grads["router"]["key_mean"]["SD"][0], mean_SD[0] - embedded_BTD.mean((0, 1)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_keeps_running_means_as_exponential_averages(tiny, accumulate):
    """Three steps of the whole update, gradient clipping and all, against the average written out, for the embedding's mean."""
    config = tiny(**{"router.preset": "qd_centred", "router.key_mean_rate": 0.25, "train.accumulate": accumulate})
    model, optimizer = depthroute.build(config), make_optimizer(config)
    state = init_state(model, optimizer, jax.random.key(0))
    step = make_train_step(model, optimizer, average=lambda x: x)
    expected_D = np.zeros(config.model.dim)
    for seed in range(3):
        tokens_BT = jnp.asarray(np.random.default_rng(seed).integers(0, 64, (8, 9)))
        embedded_BTD = np.asarray(state.params["embed"]["VD"], np.float64)[tokens_BT[:, :-1]]
        expected_D = 0.75 * expected_D + 0.25 * embedded_BTD.mean(axis=(0, 1))
        state, _ = step(state, tokens_BT)
    np.testing.assert_allclose(state.params["router"]["key_mean"]["SD"][0], expected_D, rtol=1e-4, atol=1e-7)
