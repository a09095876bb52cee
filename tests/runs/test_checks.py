import pytest

from depthroute.runs import registry, tables


def warnings(folder):
    return tables.summarise(registry.load_sweep(folder))


def lines(table, word):
    return [line for line in table.warnings if word in line]


def edit_one(section, arm, seed, change):
    def edit(files, a, s):
        if (a, s) == (arm, seed):
            for name, value in change.items():
                files[section][name] = files[section][name] | value if isinstance(value, dict) else value

    return edit


def test_a_clean_sweep_has_no_warnings(make_sweep):
    assert warnings(make_sweep()).warnings == ()


def test_missing_seeds_are_named_with_state_and_reason(make_sweep):
    def edit(files, arm, seed):
        if arm == "qs_ks" and seed > 0:
            del files["result"]
            files["status"] = {"state": "failed", "step": 7, "steps": 100, "reason": "loss is NaN"}

    table = warnings(make_sweep(edit=edit))
    assert table.warnings == ("missing: qs_ks-seed1, qs_ks-seed2 (failed at step 7 of 100: loss is NaN)",)
    assert (table.rows[1].n, table.rows[1].pairs, table.rows[1].ci_low) == (1, 1, None)


def test_seeds_that_were_never_planned_are_missing_too(make_sweep):
    table = warnings(make_sweep({"residual": (2.0, 2.1, 2.2), "qs_ks": (1.9, 2.0)}))
    assert table.warnings == ("missing: qs_ks-seed2 (no run folder)",)
    assert table.rows[1].pairs == 2


@pytest.mark.parametrize(
    ("field", "value"), [("steps", 99), ("tokens", 1), ("data_fingerprint", "z"), ("eval_split", "tune"), ("eval_tokens", 5)]
)
def test_unequal_conditions_leave_the_pair_out(make_sweep, field, value):
    table = warnings(make_sweep(edit=edit_one("result", "qs_ks", 1, {field: value})))
    (line,) = lines(table, "refused")
    assert f"{field} differs" in line and "(qs_ks-seed1)" in line and "(all others)" in line
    assert table.rows[1].pairs == 2 and table.rows[1].n == 3
    assert table.rows[1].delta == pytest.approx(-0.105)


def test_an_undeclared_difference_is_a_confound_and_draws_no_verdict(make_sweep):
    def edit(files, arm, seed):
        if arm == "qs_ks":
            files["config"]["train"]["lr"] = 0.002

    table = warnings(make_sweep(edit=edit))
    (line,) = table.warnings
    assert "train.lr differs outside the declared factors: 0.001 (residual-seed0, residual-seed1, residual-seed2)" in line
    assert table.rows[1].verdict == "" and table.rows[1].flags == table.warnings
    assert table.rows[0].flags == ()


def test_a_declared_difference_is_no_confound(make_sweep):
    def edit(files, arm, seed):
        if arm == "qs_ks":
            files["config"]["router"]["rank"] = 8

    declared = registry.load_sweep(make_sweep(edit=edit)).factors
    table = warnings(make_sweep(edit=edit, factors=[*declared, "router.rank"]))
    assert table.warnings == () and table.rows[1].verdict == "better"


def test_seeds_of_one_arm_may_differ_in_the_seed_only(make_sweep):
    def edit(files, arm, seed):
        if arm == "qs_ks":
            files["config"]["router"]["lr_multiplier"] = 0.1 * (seed + 1)

    table = warnings(make_sweep(edit=edit))
    assert table.warnings == ("no verdict: the seeds of qs_ks differ in more than the seed: router.lr_multiplier",)
    assert table.rows[1].verdict == ""


def test_one_untuned_rate_for_all_draws_no_verdict(make_sweep):
    def edit(files, arm, seed):
        files["config"]["router"] |= {"lr_multiplier": 1.0, "lr_trials": 0, "lr_tuned": False}

    table = warnings(make_sweep(edit=edit))
    (line,) = table.warnings
    assert line.startswith("no verdict: untuned")
    assert table.rows[1].verdict == "" and table.rows[1].ci_high < 0


def test_origins_are_flagged_and_keep_their_verdict(make_sweep):
    change = {"versions": {"jax": "0.11.0"}, "git_commit": "beef", "git_dirty": True, "devices": ["gpu"]}
    table = warnings(make_sweep(edit=edit_one("provenance", "qs_ks", 0, change)))
    assert lines(table, "git_commit") == ['different git_commit: "beef" (qs_ks-seed0), "c0ffee" (all others)']
    assert lines(table, "version of jax") == ['different version of jax: "0.11.0" (qs_ks-seed0), "0.10.2" (all others)']
    assert lines(table, "devices") and lines(table, "uncommitted changes in the code of qs_ks-seed0")
    assert table.rows[1].verdict == "better"


def test_a_missing_provenance_is_flagged(make_sweep):
    def edit(files, arm, seed):
        if (arm, seed) == ("qs_ks", 0):
            del files["provenance"]

    assert lines(warnings(make_sweep(edit=edit)), "git_commit") == [
        'different git_commit: null (qs_ks-seed0), "c0ffee" (all others)'
    ]
