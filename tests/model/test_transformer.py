"""Initial values: arms of an ablation share what they have in common."""

from collections import defaultdict

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depthroute


def by_path(params):
    """{path: array}, with paths such as layers/attention/query/DHK."""
    return {"/".join(entry.key for entry in path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(params)}


def test_arms_share_the_initial_value_of_every_parameter_they_have_in_common(built):
    """Bit for bit, whatever else an arm adds. Full-width keys give a query another shape, and so another parameter; biases are
    told where to start, and keys of a query that does not start at zero do. DeepNorm shrinks some matrices by a constant.
    """
    owners = defaultdict(dict)
    for preset in cases.PRESETS:
        router = built(preset).config.router
        own_start = {"router/bias": router.bias_start, "router/key": str(router.query == "input")}
        for path, value in by_path(built(preset).params).items():
            owners[path, value.shape, own_start.get(path.rpartition("/")[0], "")][preset] = value
    for (path, *_), values in owners.items():
        shrunk = values.pop("deepnorm", None)
        first, *others = values.values() or [shrunk]
        assert all(np.array_equal(first, other) for other in others), path
        if shrunk is not None:
            factor = np.max(np.abs(shrunk)) / np.max(np.abs(first))
            np.testing.assert_allclose(shrunk, factor * first, rtol=1e-6)
            values["deepnorm"] = shrunk
    shared = defaultdict(set)
    for (path, *_), values in owners.items():
        shared[path] |= set(values)
    assert {"qs_ks", "qd_ks", "qd_kh"} <= shared["router/key/SR"]
    assert {"qs_kd", "qd_kd", "qd_kh"} <= shared["router/key_map/DR"]
    outside_the_norms = {path for path in by_path(built("residual").params) if "norm" not in path}
    assert all(shared[path] == set(cases.PRESETS) for path in outside_the_norms)


def test_parameters_differ_from_each_other_and_between_seeds(built):
    it = built("residual")
    drawn = {path: value for path, value in by_path(it.params).items() if "gain" not in path}
    other = by_path(it.model.init(jax.random.key(1)))
    assert not any(np.array_equal(value, other[path]) for path, value in drawn.items())
    for path, value in drawn.items():
        if path.startswith("layers/"):
            assert not np.array_equal(value[0], value[1]), path
    np.testing.assert_allclose(len({value.flat[0] / value.std() for value in drawn.values()}), len(drawn))


def test_a_layer_starts_the_same_however_many_layers_there_are(tiny):
    """Up to the factor sqrt(2 x layers) that output projections are divided by."""
    shallow, deep = (by_path(depthroute.build(tiny(**{"model.layers": layers})).init(jax.random.key(0))) for layers in (2, 4))
    for path, value in shallow.items():
        if path in ("layers/attention/out/HKD", "layers/mlp/down/FD"):
            np.testing.assert_allclose(value * np.sqrt(4), deep[path][:2] * np.sqrt(8), rtol=1e-6)
        elif path.startswith("layers/"):
            np.testing.assert_array_equal(value, deep[path][:2], path)
        else:
            np.testing.assert_array_equal(value, deep[path], path)


def test_embedding_and_head_start_as_configured(tiny):
    config = tiny(**{"model.tied_head": False, "model.embed_std": 0.5})
    params = depthroute.build(config).init(jax.random.key(0))
    for name in ("embed", "head"):
        assert params[name]["VD"].shape == (64, 16)
        assert float(jnp.std(params[name]["VD"])) == pytest.approx(0.5, rel=0.1)
    assert not np.array_equal(params["embed"]["VD"], params["head"]["VD"])
    assert "head" not in depthroute.build(tiny()).init(jax.random.key(0))


def test_build_takes_a_config_dict_and_a_nested_dictionary(tiny):
    from depthroute.config import to_dict

    config = tiny(**{"router.preset": "qd_ks"})
    assert depthroute.build(to_dict(config)) == depthroute.build(config)
