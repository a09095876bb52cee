"""The buffered history computes what the list form computes, forward and backward, in memory that grows with depth."""

import dataclasses
import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from toy import Toy

import depthroute
from depthroute.errors import UserError
from depthroute.model.history_scan import trace_history
from depthroute.routing.build import build_router
from depthroute.routing.depth_attention import DepthAttention
from depthroute.routing.presets import check
from depthroute.training.step import gradients

OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
HISTORY = [case for case in cases.CASES if isinstance(build_router(cases.tiny(**cases.CASES[case])), DepthAttention)]
FAST = (
    "attnres",
    "attnres_block",
    "denseformer",
    "qs_kd",
    "qd_ks",
    "qd_kh",
    "query_from_mean",
    "mudd",
    "lime_dynamic",
    "k_dca",
)
every_case = pytest.mark.parametrize("case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in HISTORY])


def check_equal(toy, tolerance, floor=0.0, form="by_buffer"):
    """The output and the gradient of each argument within `tolerance` of the largest entry of the list form's, or of `floor`.

    The router's parameters are one argument: the gradient of a lone gate is a sum in which almost everything cancels.
    """
    expected, found = (toy.outputs_and_gradients(form) for form in (toy.by_list, getattr(toy, form)))
    for part, other in zip((expected["out"], *expected["gradient"]), (found["out"], *found["gradient"]), strict=True):
        arrays = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(part)]
        largest = max([floor, *(np.max(np.abs(array), initial=0.0) for array in arrays)])
        for a, b in zip(arrays, jax.tree.leaves(other), strict=True):
            assert np.isfinite(b).all()
            assert np.max(np.abs(a - b), initial=0.0) <= tolerance * largest


def largest_score(toy):
    _, trace = trace_history(toy.router, toy.routing(toy.params), toy.sites, toy.layers, toy.x_BTD)
    return float(jnp.max(jnp.abs(trace.scores_BTMS)))


def random_point(rng, most_sites):
    """A random point of the routing space, of at most so many sites, and a batch size."""

    def pick(*values):
        return values[rng.integers(len(values))]

    query = pick("none", "static", "dynamic")
    key = pick("static", "static_per_consumer", "dynamic_full", "dynamic_projected", "hybrid") if query != "none" else "none"
    mixing = pick("softmax", "sigmoid", "free")
    sites = pick("sublayer", "layer")
    layers = int(rng.integers(1, most_sites // (1 if sites == "layer" else 2) + 1))
    memory = pick("full", "full", "blocks", "dilated")
    axes = {
        "query": query,
        "key": key,
        "mixing": mixing,
        "bias": "learned" if mixing == "free" or query == "none" else pick("none", "learned"),
        "bias_start": "one" if mixing == "free" else "zero",
        "memory": memory,
        "sources": {"blocks": "outputs", "dilated": "states"}.get(memory) or pick("outputs", "states"),
        "sites": sites,
        "query_input": pick("newest", "mean", "embedding"),
        "key_gain": key == "dynamic_full" and pick(True, False),
        "blocks": int(rng.integers(1, layers * (1 if sites == "layer" else 2) + 1)),
        "dilation": int(rng.integers(1, 4)),
        "period": min(int(rng.integers(1, 4)), layers),
    }
    config = cases.tiny(
        **{"router.preset": "qd_kd", "model.layers": layers}, **{f"router.{axis}": value for axis, value in axes.items()}
    )
    return config, pick(1, 3, 5)


AXES = {
    "query": ("none", "static", "dynamic", "input", "mlp"),
    "key": ("none", "static", "static_per_consumer", "dynamic_full", "dynamic_raw", "dynamic_projected", "dynamic_sliced")
    + ("emitted", "hybrid", "stop_gradient", "sinusoidal", "recurrent"),
    "bias": ("none", "learned", "per_channel"),
    "bias_start": ("zero", "one", "newest", "mean"),
    "mixing": ("softmax", "sigmoid", "relu", "free"),
    "sources": ("outputs", "states"),
    "source_norm": (False, True),
    "memory": ("full", "blocks", "window", "dilated", "ends"),
    "ways": ("one", "one", "kv", "qkv", "qkvr"),
    "heads": (1, 1, 2, 4),
    "placement": ("replace", "replace", "add"),
    "sites": ("sublayer", "layer"),
    "query_input": ("newest", "mean", "embedding"),
    "key_gain": (False, False, True),
    "blocks": (1, 2, 3),
    "dilation": (1, 2, 3),
    "period": (1, 2),
}


def random_wide_point(rng, most_layers):
    """A random point of the whole space: drawn until it is one that makes sense."""
    while True:
        axes = {f"router.{axis}": values[rng.integers(len(values))] for axis, values in AXES.items()}
        layers = int(rng.integers(1, most_layers + 1))
        config = cases.tiny(**{"router.preset": "qd_kd", "model.layers": layers}, **axes)
        try:
            check(config)
        except UserError:
            continue
        return config


SEEDS_OF_CORNERS = (25, 31)  # the read-out alone has no choice


@pytest.mark.parametrize(
    "seed",
    [*range(8), *SEEDS_OF_CORNERS]
    + [pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 100) if seed not in SEEDS_OF_CORNERS],
)
def test_appending_equals_the_list_form_anywhere_in_the_space(seed):
    with jax.enable_x64(True):
        config = random_wide_point(np.random.default_rng(seed), most_layers=3 if seed < 8 else 5)
        toy = Toy(config, 2, seed, dtype=np.float64)
        check_equal(toy, 1e-10, form="by_appending")
        expected, found = (form(toy.params, toy.layers, toy.x_BTD) for form in (toy.trace_by_list, toy.trace_by_appending))
        assert (expected is None) == (found is None)
        for a, b in zip(expected or (), found or (), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 112))])
def test_float64_equals_the_list_form_anywhere_in_the_space(seed):
    with jax.enable_x64(True):
        config, batch = random_point(np.random.default_rng(seed), most_sites=4 if seed < 12 else 9)
        check_equal(Toy(config, batch, seed, dtype=np.float64), 1e-10)


@pytest.mark.parametrize("case", ["attnres", "qd_ks", "qd_kh", "bias_and_query", "blocks_hybrid"])
def test_float32_is_close_for_large_scores(case):
    toy = Toy(cases.tiny(**cases.CASES[case], **{"model.layers": 4}), gain=4.0)
    for _ in range(4):  # scores of later consumers depend on earlier ones, so one scaling is not enough
        toy.scale(30 / largest_score(toy))
    assert 28 < largest_score(toy) < 32
    check_equal(toy, 1e-5)


@pytest.mark.parametrize("case", ["attnres", "qd_ks", "qs_kd", "qd_kd", "denseformer", "attnres_block"])
def test_bfloat16_is_close_to_the_list_form(case):
    """At scores of size one: larger ones make either form differ from float32 by more than they differ from each other."""
    toy = Toy(cases.tiny(**cases.CASES[case]))
    toy.scale(min(1.0, 1 / largest_score(toy)))
    toy.x_BTD = toy.x_BTD.astype(jnp.bfloat16)
    expected, found = (toy.outputs_and_gradients(form) for form in (toy.by_list, toy.by_buffer))
    assert found["out"].dtype == jnp.bfloat16
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.max(np.abs(a - b)) <= 2**-6 * np.max(np.abs(a))


@every_case
def test_the_whole_model_is_the_same(built, case):
    """Logits, trace and every gradient at random router parameters, jitted, in float32.

    Random weights of both signs, four ways at once, make the rounding of either form grow: in float64 they agree as others do.
    """
    tolerance = 1e-4 if case == "mudd" else 1e-5
    it = built(case)
    engine = dataclasses.replace(it.config.engine, history="buffer")
    model = depthroute.build(dataclasses.replace(it.config, engine=engine))

    @jax.jit
    def run(params):
        return *model.apply(params, it.tokens_BT, trace=True), gradients(model, params, it.sequences_BT, 0.0, 1)

    logits_BTV, trace, found = run(it.randomised)
    expected = jax.jit(lambda params: gradients(it.model, params, it.sequences_BT, 0.0, 1))(it.randomised)
    expected_logits_BTV, expected_trace = it.traced
    (loss, expected), (found_loss, found) = expected, found
    np.testing.assert_allclose(found_loss, loss, rtol=tolerance)
    assert np.max(np.abs(logits_BTV - expected_logits_BTV)) <= tolerance * np.max(np.abs(expected_logits_BTV))
    for part in expected:  # the router's gradient, for one: see `check_equal`
        leaves = list(zip(jax.tree.leaves(expected[part]), jax.tree.leaves(found[part]), strict=True))
        largest = max([0.0, *(np.max(np.abs(a)) for a, _ in leaves)])
        assert all(np.max(np.abs(a - b)) <= tolerance * largest for a, b in leaves)
    np.testing.assert_array_equal(trace.visible_MS, expected_trace.visible_MS)
    np.testing.assert_allclose(trace.scores_BTMS, expected_trace.scores_BTMS, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trace.weights_BTMS, expected_trace.weights_BTMS, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["attnres", "qd_ks", "qs_ks"])
def test_a_mix_of_equal_sources_is_that_source(case):
    """Softmax weights sum to one, so whatever the weights, the mix of equal sources is that source."""
    toy = Toy(cases.tiny(**cases.CASES[case]))
    toy.sites = lambda layer: [lambda x_BTD: x_BTD for _ in layer]
    out_BTD = toy.by_buffer(toy.params, toy.layers, toy.x_BTD)
    np.testing.assert_allclose(out_BTD, toy.x_BTD, rtol=1e-5)
    check_equal(toy, 1e-5, floor=1.0)


@pytest.mark.parametrize("case", ["attnres", "qs_kd", "qd_ks", "qd_kd"])
def test_scores_of_ten_thousand_stay_exact(case):
    """Weights against the float64 softmax of the same float32 scores; outputs and gradients are finite."""
    toy = Toy(cases.tiny(**cases.CASES[case], **{"model.layers": 3}), gain=1e4)
    _, trace = trace_history(toy.router, toy.routing(toy.params), toy.sites, toy.layers, toy.x_BTD)
    scores, visible_MS = np.asarray(trace.scores_BTMS, np.float64), np.asarray(trace.visible_MS)
    assert np.abs(scores).max() > 1e4
    scores[:, :, ~visible_MS] = -np.inf
    exact = np.exp(scores - scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(trace.weights_BTMS, exact / exact.sum(axis=-1, keepdims=True), atol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(toy.outputs_and_gradients(toy.by_buffer)))


@pytest.mark.parametrize("case", ["attnres", "qd_kh", "qs_ks"])
def test_seeds_can_be_mapped_over(case):
    toys = [Toy(cases.tiny(**cases.CASES[case]), seed=seed) for seed in range(3)]
    args = [(toy.params, toy.layers, toy.x_BTD) for toy in toys]

    def gradient(params, layers, x_BTD):
        return jax.grad(lambda *a: jnp.sum(jnp.sin(toys[0].by_buffer(*a))), (0, 1, 2))(params, layers, x_BTD)

    together = jax.jit(jax.vmap(gradient))(*jax.tree.map(lambda *parts: jnp.stack(parts), *args))
    for seed, own in enumerate(args):
        alone = gradient(*own)
        largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(alone))
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(b[seed], a, rtol=1e-4, atol=1e-5 * largest)


def shapes_in(text):
    """Shapes of all arrays of a compiled program."""
    return [tuple(map(int, dims.split(","))) for dims in re.findall(r"(?:f32|s32|pred|bf16)\[([\d,]+)\]", text)]


def gradient_program(toy, x_BTD):
    loss = jax.jit(jax.grad(lambda params, layers, x_BTD: jnp.sum(toy.by_buffer(params, layers, x_BTD)), (0, 1, 2)))
    return loss.lower(toy.params, toy.layers, x_BTD).compile(compiler_options=OPTIMISED)


@pytest.mark.parametrize("case", ["attnres", "qs_kd", "qd_ks", "qd_kd", "qs_ks", "denseformer", "attnres_block"])
def test_the_history_is_the_largest_array(case):
    """At 8 layers of width 32 on 64 tokens, parameters are smaller than the history, and so are all pairs of consumers."""
    config = cases.tiny(**cases.CASES[case], **{"model.layers": 8, "model.dim": 32})
    toy = Toy(config, batch=1)
    x_BTD = jnp.zeros((2, 32, 32))
    S = len(toy.layers) * toy.per_layer + 1
    sizes = [np.prod(shape) for shape in shapes_in(gradient_program(toy, x_BTD).as_text())]
    assert max(sizes) == S * x_BTD.size


@pytest.mark.parametrize("case", ["attnres", "qs_kd", "qd_ks", "qd_kd", "qs_ks", "attnres_block", "dca", "delta_attnres"])
def test_memory_grows_with_depth_and_not_with_its_square(case):
    def temp_bytes(layers):
        toy = Toy(cases.tiny(**cases.CASES[case], **{"model.layers": layers, "model.dim": 64}), batch=1)
        return gradient_program(toy, jnp.zeros((8, 64, 64))).memory_analysis().temp_size_in_bytes

    t8, t16, t32 = (temp_bytes(layers) for layers in (4, 8, 16))
    assert 1.9 < (t32 - t16) / (t16 - t8) < 2.1


@pytest.mark.parametrize("case", ["attnres", "qd_ks", "qs_ks"])
def test_the_history_is_sharded_over_the_batch(case):
    """On 8 devices every one holds its own rows of the history and no device all of them; results are those of one device."""
    toy = Toy(cases.tiny(**cases.CASES[case]), batch=8)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    loss = jax.jit(
        jax.value_and_grad(lambda params, layers, x_BTD: jnp.sum(jnp.sin(toy.by_buffer(params, layers, x_BTD))), (0, 1, 2))
    )
    everywhere = jax.device_put((toy.params, toy.layers), NamedSharding(mesh, P()))
    args = (*everywhere, jax.device_put(toy.x_BTD, NamedSharding(mesh, P("data"))))
    shapes = shapes_in(loss.lower(*args).compile().as_text())
    _, T, D = toy.x_BTD.shape
    S = len(toy.layers) * toy.per_layer + 1
    assert (S, 1, T, D) in shapes and (S, 8, T, D) not in shapes
    for a, b in zip(jax.tree.leaves(loss(toy.params, toy.layers, toy.x_BTD)), jax.tree.leaves(loss(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(a)))
