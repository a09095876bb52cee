"""Preset names, their expansion, and the combinations that are refused."""

import pytest
from expect import refused

import depthroute
from depthroute.routing import presets


def test_a_preset_sets_every_axis():
    expanded = presets.expand({"router.preset": "attnres"})
    assert expanded == {f"router.{axis}": value for axis, value in presets.AXES.items()} | {
        "router.preset": "attnres",
        "router.query": "static",
        "router.key": "dynamic_full",
        "router.mixing": "softmax",
        "router.key_gain": True,
    }


@pytest.mark.parametrize("order", [("router.preset", "router.key"), ("router.key", "router.preset")])
def test_an_explicit_axis_wins_in_either_order(order):
    values = {"router.preset": "qd_kd", "router.key": "hybrid"}
    expanded = presets.expand({name: values[name] for name in order})
    assert expanded["router.key"] == "hybrid"
    assert expanded["router.query"] == "dynamic"


def test_expand_leaves_overrides_without_a_preset_alone():
    overrides = {"router.key": "static", "seed": 3}
    assert presets.expand(overrides) == overrides


def test_changing_the_preset_leaves_no_axis_of_another_behind(tiny):
    for first in presets.names():
        assert presets.expand({"router.preset": first}).keys() == {
            "router.preset",
            *(f"router.{axis}" for axis in presets.AXES),
        }
    assert tiny(**{"router.preset": "residual"}) == tiny()


def test_names_are_public_and_in_table_order():
    assert depthroute.presets() == presets.names() == tuple(presets.PRESETS)
    grid = ("qs_ks", "qs_kd", "qd_ks", "qd_kd", "qd_kh")
    assert {"residual", "plain", "postnorm", "attnres", "attnres_block", "denseformer", *grid} <= set(presets.names())


def test_grid_cells_differ_in_query_and_key_alone():
    cells = {name: presets.expand({"router.preset": name}) for name in ("qs_ks", "qs_kd", "qd_ks", "qd_kd", "qd_kh")}
    assert {(cell["router.query"], cell["router.key"]) for cell in cells.values()} == {
        ("static", "static"),
        ("static", "dynamic_projected"),
        ("dynamic", "static"),
        ("dynamic", "dynamic_projected"),
        ("dynamic", "hybrid"),
    }
    rest = [
        {k: v for k, v in cell.items() if k not in ("router.preset", "router.query", "router.key")} for cell in cells.values()
    ]
    assert all(other == rest[0] for other in rest)


@pytest.mark.parametrize("call", [presets.find, lambda name: presets.expand({"router.preset": name})])
def test_an_unknown_preset_gets_the_nearest_name(call):
    refused(lambda: call("attnress"), "router.preset", "'attnress'", "did you mean 'attnres'?", "denseformer", "--config.")


def test_an_unknown_preset_is_refused_by_build(tiny):
    refused(lambda: depthroute.build(tiny(**{"router.preset": "qdkd"})), "router.preset", "'qdkd'", "'qd_kd'")


@pytest.mark.parametrize(
    "overrides, parts",
    [
        ({"router.preset": "qs_ks", "router.key": "none"}, ["router.key", "'none'", "router.query", "'static'"]),
        ({"router.preset": "qs_ks", "router.query": "none"}, ["router.key", "'static'", "router.query"]),
        ({"router.preset": "qs_ks", "router.mixing": "free"}, ["router.bias", "'none'", "'learned'", "router.mixing='free'"]),
        ({"router.preset": "qs_ks", "router.rank": 17}, ["router.rank", "17", "model.dim=16"]),
        ({"router.preset": "attnres_block", "router.blocks": 5}, ["router.blocks", "5", "sublayers, 4"]),
        ({"router.preset": "attnres_block", "router.blocks": 3, "router.sites": "layer"}, ["router.blocks", "3", "layers, 2"]),
        (
            {"router.preset": "attnres_block", "router.sources": "states"},
            ["router.sources", "'states'", "router.memory='blocks'"],
        ),
        ({"router.preset": "qs_kd", "router.key_gain": True}, ["router.key_gain", "True", "router.key='dynamic_projected'"]),
        ({"router.preset": "residual", "router.key": "static"}, ["router.key", "'static'", "router.preset='residual'"]),
        ({"router.preset": "mudd", "router.memory": "blocks"}, ["router.sources", "'states'", "router.memory='blocks'"]),
        ({"router.preset": "hyper_static", "router.ways": "qkvr"}, ["router.ways", "'qkvr'", "router.preset='hyper_static'"]),
        (
            {"router.preset": "denseformer", "router.memory": "dilated", "router.period": 5},
            ["router.period", "5", "layers, 2", "no consumer would mix"],
        ),
        ({"router.preset": "lr_attnres_sliced", "router.rank": 17}, ["router.rank", "17", "model.dim=16"]),
        ({"router.preset": "qd_kd", "router.ways": "qkv"}, ["router.ways", "'qkv'", "router.sites='sublayer'"]),
        ({"router.preset": "attnres", "router.heads": 3}, ["router.heads", "3", "model.dim=16"]),
        ({"router.preset": "dca", "router.heads": 2}, ["router.heads", "2", "router.ways='qkv'"]),
        ({"router.preset": "dca", "router.mixing": "softmax"}, ["router.bias", "'per_channel'", "router.mixing='softmax'"]),
        ({"router.preset": "grn_v1", "router.bias_start": "zero"}, ["router.bias_start", "'zero'", "router.mixing='free'"]),
        ({"router.preset": "attnres", "router.bias_start": "one"}, ["router.bias_start", "'one'", "router.bias='none'"]),
        ({"router.preset": "mudd", "router.key": "static"}, ["router.key", "'static'", "router.query='mlp'"]),
        ({"router.preset": "k_dca", "router.key": "dynamic_full"}, ["router.key", "'dynamic_full'", "router.memory='ends'"]),
        ({"router.preset": "lime_static", "router.sources": "outputs"}, ["router.ways", "'kv'", "router.sources='states'"]),
        ({"router.preset": "denseformer", "router.placement": "add"}, ["router.placement", "'add'", "router.sources='states'"]),
        ({"router.preset": "qd_centred", "router.memory": "blocks"}, ["router.key", "'centred'", "router.memory='blocks'"]),
        (
            {"router.preset": "lr_attnres_projected", "router.sites": "layer"},
            ["router.sites", "'layer'", "router.key='emitted'"],
        ),
        ({"router.preset": "plain", "router.sites": "layer"}, ["router.sites", "'layer'", "router.preset='plain'"]),
    ],
)
def test_senseless_combinations_are_refused_with_both_fields(tiny, overrides, parts):
    config = tiny(**overrides)
    refused(lambda: presets.check(config), *parts, "--config.router.")
    refused(lambda: depthroute.build(config), *parts)


def test_unused_settings_of_other_arms_are_no_error(tiny):
    """A sweep sets rank and blocks once for all arms."""
    presets.check(tiny(**{"router.preset": "residual", "router.rank": 17, "router.blocks": 99}))
    presets.check(tiny(**{"router.preset": "qs_ks", "router.blocks": 99}))
    presets.check(tiny(**{"router.preset": "qs_ks", "router.rank": 16}))
