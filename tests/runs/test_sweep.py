import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from depthroute import config
from depthroute.errors import UserError
from depthroute.runs import sweep

BASE = Path(__file__).parents[2] / "configs" / "base.py"
A, B = sweep.grid("a", [1, 2]), sweep.grid("b", "xyz")


def plan(points, **constants):
    base, _ = config.load_file(BASE)
    return sweep.plan(base, SimpleNamespace(__file__="configs/x.py", sweep=lambda config: points, **constants))


def test_product_and_chain_have_their_units_and_associate():
    one, none = sweep.fixed({}), []
    assert sweep.product(A, one) == sweep.product(one, A) == A == sweep.product(A)
    assert sweep.product() == one
    assert sweep.product(A, none) == none == sweep.chain()
    assert sweep.chain(A, none) == A
    c = sweep.grid("c", [0, 1])
    assert sweep.product(A, sweep.product(B, c)) == sweep.product(A, B, c)
    assert sweep.product(sweep.chain(A, c), B) == sweep.chain(sweep.product(A, B), sweep.product(c, B))


def test_product_lets_the_last_sweep_vary_fastest():
    assert sweep.product(A, B)[:3] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "z"}]
    assert len(sweep.product(A, B)) == 6


def test_where_keeps_what_holds():
    assert sweep.where(sweep.product(A, B), lambda p: p["a"] == 2 and p["b"] != "x") == [{"a": 2, "b": "y"}, {"a": 2, "b": "z"}]


def test_zip_pairs_and_refuses_unequal_lengths():
    assert sweep.zip_(A, sweep.grid("b", "xy")) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    with pytest.raises(UserError, match=r"\[2, 3\]"):
        sweep.zip_(A, B)


@pytest.mark.parametrize("combine", [sweep.product, sweep.zip_])
def test_a_field_set_twice_must_agree(combine):
    assert combine(sweep.fixed({"a": 1}), sweep.fixed({"a": 1, "b": 2})) == [{"a": 1, "b": 2}]
    with pytest.raises(UserError, match=r"a of one sweep point is \(1, 2\)"):
        combine(sweep.fixed({"a": 1}), sweep.fixed({"a": 2}))


def test_sweeps_do_not_share_dictionaries():
    point = {"a": 1}
    sweep.chain([point])[0]["a"] = sweep.fixed(point)[0]["a"] = sweep.where([point], bool)[0]["a"] = 2
    assert point == {"a": 1}


def test_plan_expands_presets_and_declares_what_varies():
    arms = sweep.chain(sweep.fixed({"arm": "residual"}), sweep.fixed({"arm": "qs_ks", "router.preset": "qs_ks"}))
    planned = plan(sweep.product(arms, sweep.grid("seed", range(2))), TITLE="T", LABELS={"qs_ks": "static"})
    assert [run.name for run in planned.runs] == ["residual-seed0", "residual-seed1", "qs_ks-seed0", "qs_ks-seed1"]
    assert planned.runs[2].config.router.key == "static"
    assert planned.factors == ("arm", "router.key", "router.mixing", "router.preset", "router.query", "seed")
    assert (planned.baseline, planned.arms) == ("residual", ("residual", "qs_ks"))
    record = json.loads(sweep.to_json(planned))
    assert record["labels"] == {"residual": "residual", "qs_ks": "static"}
    assert record["runs"][3] == {"name": "qs_ks-seed1", "arm": "qs_ks", "seed": 1}


@pytest.mark.parametrize(
    ("points", "constants", "message"),
    [
        ([], {}, "yields no runs"),
        ([{"arm": "a"}, {"arm": "a", "model.layers": 3}], {}, "run name is 'a-seed0'"),
        ([{"arm": "a", "model.depth": 3}], {}, "unknown config field 'model.depth'"),
        ([{"arm": "a"}], {"BASELINE": "b"}, "unknown baseline 'b'"),
        ([{"arm": "../a"}], {}, "run name is '../a-seed0'"),
        ([{"arm": "a", "router.preset": "residul"}], {}, "did you mean 'residual'"),
        ([{"arm": "a", "router.preset": "qs_ks", "router.rank": 10**6}], {}, "router.rank"),
    ],
)
def test_bad_sweeps_are_refused_before_anything_starts(points, constants, message):
    with pytest.raises(UserError, match=message) as error:
        plan(points, **constants)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["", ".a", "-a", "a/b", "a..b", "a b", "a\n", "ä", "a" * 101, "a\\b"])
def test_unsafe_names_are_refused(name):
    with pytest.raises(UserError):
        sweep.check_name(name)


def test_safe_names_are_returned():
    assert sweep.check_name("qs_ks-seed0.b") == "qs_ks-seed0.b"
