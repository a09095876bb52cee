"""The schedule in closed form, AdamW against float64, and which parameter is updated how."""

import dataclasses
from functools import cache

import jax
import numpy as np
import optax
import pytest

import depthroute
from depthroute.routing.counts import router_params
from depthroute.training.optimizer import group_of, learning_rate, make_optimizer, muon

GROUPS = {
    "layers/attention/emit/FR": "router",
    "layers/mlp/emit/FR": "router",
    "embed/VD": "embedding",
    "head/VD": "embedding",
    "norm/gain/D": "gain",
    "layers/attention/norm/gain/D": "gain",
    "layers/attention/query/DHK": "matrix",
    "layers/attention/key/DGK": "matrix",
    "layers/attention/value/DGK": "matrix",
    "layers/attention/out/HKD": "matrix",
    "layers/mlp/norm/gain/D": "gain",
    "layers/mlp/gate/DF": "matrix",
    "layers/mlp/up/DF": "matrix",
    "layers/mlp/down/FD": "matrix",
}


def with_train(config, **changes):
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def with_router(config, **changes):
    return dataclasses.replace(config, router=dataclasses.replace(config.router, **changes))


def random_like(shapes, seed):
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: random.standard_normal(leaf.shape).astype(np.float32), shapes)


def shapes_of(config):
    return jax.eval_shape(depthroute.build(config).init, jax.random.key(0))


def named(tree):
    return {"/".join(entry.key for entry in path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


@cache
def first_update(config):
    """Parameters and their first update, by name, for random parameters and gradients."""
    params, grads = random_like(shapes_of(config), 1), random_like(shapes_of(config), 2)
    optimizer = make_optimizer(config)
    updates, _ = jax.jit(optimizer.update)(grads, jax.jit(optimizer.init)(params), params)
    return named(params), named(updates)


def groups_that_differ(config_a, config_b):
    (_, a), (_, b) = first_update(config_a), first_update(config_b)
    return {"router" if name.startswith("router/") else GROUPS[name] for name in a if not np.array_equal(a[name], b[name])}


# --- schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_cosine_schedule(small, warmup):
    train = with_train(small(), steps=50, warmup=warmup, lr=2.0, final_lr=0.1, schedule="cosine").train
    rate = learning_rate(train)
    for step in range(warmup):
        assert rate(step) == pytest.approx(2.0 * (step + 1) / (warmup + 1), rel=1e-5)
    for step in range(warmup, 51):
        turned = np.pi * (step - warmup) / (50 - warmup)
        assert rate(step) == pytest.approx(0.2 + 1.8 * (1 + np.cos(turned)) / 2, rel=1e-5)
    assert (float(rate(warmup)), float(rate(50))) == (pytest.approx(2.0), pytest.approx(0.2))


@pytest.mark.parametrize(("warmup", "decay"), [(0, 0), (0, 20), (10, 20), (10, 40)])
def test_wsd_schedule(small, warmup, decay):
    train = with_train(small(), steps=50, warmup=warmup, decay=decay, lr=2.0, final_lr=0.1, schedule="wsd").train
    rate = learning_rate(train)
    for step in range(warmup):
        assert rate(step) == pytest.approx(2.0 * (step + 1) / (warmup + 1), rel=1e-5)
    for step in range(warmup, 50 - decay):
        assert rate(step) == pytest.approx(2.0)
    for step in range(50 - decay, 50):
        assert rate(step) == pytest.approx(2.0 - 1.8 * (step - 50 + decay) / decay, rel=1e-5)
    assert not decay or float(rate(50)) == pytest.approx(0.2)


def test_multiplier_scales_the_whole_schedule(small):
    train = small().train
    for step in range(train.steps + 1):
        assert float(learning_rate(train, 0.25)(step)) == 0.25 * float(learning_rate(train)(step))


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("preset", depthroute.presets())
def test_every_parameter_is_in_its_group(tiny, preset, tied_head):
    config = tiny(**{"router.preset": preset, "model.tied_head": tied_head})
    found = jax.tree.leaves_with_path(shapes_of(config))
    routed = 0
    for path, leaf in found:
        name = "/".join(entry.key for entry in path)
        if name.startswith("router/"):
            assert group_of(path) == ("key_mean" if name == "router/key_mean/SD" else "router")
            routed += leaf.size
        else:
            assert group_of(path) == GROUPS[name]
    assert routed == router_params(config)


def test_router_multiplier_scales_the_router_and_nothing_else(small):
    config = small(**{"router.preset": "qd_kh", "router.weight_decay": 0.5})
    _, once = first_update(with_router(config, lr_multiplier=1.0))
    _, fourfold = first_update(with_router(config, lr_multiplier=4.0))
    for name, update in once.items():
        factor = 4 if name.startswith("router/") else 1
        assert np.array_equal(fourfold[name], factor * update), name
        assert np.any(update)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_decay_is_of_matrices_and_embeddings(small, optimizer):
    config = with_train(small(**{"router.preset": "attnres", "train.optimizer": optimizer}), weight_decay=0.0)
    decayed = with_train(config, weight_decay=10.0)
    assert groups_that_differ(config, decayed) == {"matrix", "embedding"}
    (params, without), (_, with_decay) = first_update(config), first_update(decayed)
    rate = float(learning_rate(config.train)(0))
    for name in ("embed/VD", "layers/mlp/down/FD", "layers/attention/out/HKD"):
        np.testing.assert_allclose(with_decay[name] - without[name], -rate * 10 * params[name], rtol=1e-4, atol=1e-6)


def test_router_has_its_own_decay(small):
    config = small(**{"router.preset": "attnres"})
    assert groups_that_differ(config, with_router(config, weight_decay=1.0)) == {"router"}


# --- updates ---------------------------------------------------------------------------------------------------------


def test_adamw_with_clipping_against_float64(small):
    config = small(**{"router.preset": "qd_kd", "router.lr_multiplier": 0.3})
    train, shapes = config.train, shapes_of(config)
    params = random_like(shapes, 1)
    exact = {name: leaf.astype(np.float64) for name, leaf in named(params).items()}
    mean, square = ({name: np.zeros(leaf.shape) for name, leaf in exact.items()} for _ in range(2))
    optimizer = make_optimizer(config)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for step, size in enumerate((100.0, 1e-6, 1.0)):  # clipped, far too small to clip, clipped
        grads = jax.tree.map(lambda g, size=size: np.float32(size) * g, random_like(shapes, 10 + step))
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in jax.tree.leaves(grads)))
        for name, g in named(grads).items():
            g = g.astype(np.float64) * min(1.0, train.clip_norm / norm)
            mean[name] = train.beta1 * mean[name] + (1 - train.beta1) * g
            square[name] = train.beta2 * square[name] + (1 - train.beta2) * g**2
            corrected = mean[name] / (1 - train.beta1 ** (step + 1))
            direction = corrected / (np.sqrt(square[name] / (1 - train.beta2 ** (step + 1))) + train.adam_eps)
            router = name.startswith("router/")
            decay = 0.0 if router or GROUPS[name] == "gain" else train.weight_decay
            rate = train.lr * (0.3 if router else 1.0) * min(1.0, (step + 1) / (train.warmup + 1))
            exact[name] = exact[name] - rate * (direction + decay * exact[name])
    for name, leaf in named(params).items():
        np.testing.assert_allclose(leaf, exact[name], rtol=2e-5, atol=2e-6, err_msg=name)


def matrices(leaves):
    """The 2-D matrices (in, out) of every layer, by name and layer, from stacked leaves by name."""
    found = {}
    for name in leaves.keys() & {name for name, group in GROUPS.items() if group == "matrix"}:
        axes = 2 if name.endswith("HKD") else 1
        for layer, matrix in enumerate(leaves[name]):
            found[f"{name}/{layer}"] = matrix.reshape(int(np.prod(matrix.shape[:axes])), -1)
    return found


def test_muon_treats_every_layer_as_a_matrix_of_its_own(tiny):
    train = with_train(tiny(), weight_decay=0.3).train
    layers = shapes_of(tiny(**{"model.layers": 3}))["layers"]
    shapes = {"layers": {part: {k: v for k, v in layers[part].items() if k != "norm"} for part in layers}}
    params, alone = random_like(shapes, 1), optax.contrib.muon(learning_rate(train), weight_decay=0.3, consistent_rms=0.2)
    single = matrices(named(params))
    state, state_alone = muon(train).init(params), alone.init(single)
    update, update_alone = jax.jit(muon(train).update), jax.jit(alone.update)
    for step in range(2):
        grads = random_like(shapes, 10 + step)
        updates, state = update(grads, state, params)
        expected, state_alone = update_alone(matrices(named(grads)), state_alone, single)
        found = matrices(named(updates))
        assert found.keys() == expected.keys() and len(found) == 3 * 7
        for name in found:
            np.testing.assert_allclose(found[name], expected[name], atol=1e-4 * np.abs(expected[name]).max(), err_msg=name)
            # Without the decay: nearly orthogonal, and as large as AdamW's.
            rate = train.lr * (step + 1) / (train.warmup + 1)
            singular = np.linalg.svd(found[name] + rate * 0.3 * single[name], compute_uv=False)
            singular /= 0.2 * rate * max(single[name].shape) ** 0.5
            assert 0.6 < np.median(singular) < 1.2 and singular.max() < 1.3, name
