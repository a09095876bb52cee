import json

import pytest

from depthroute.errors import UserError
from depthroute.runs import registry, tables


def test_a_planned_sweep_knows_what_is_missing(make_sweep):
    folder = make_sweep()
    for file in (folder / "qs_ks-seed1").iterdir():
        file.unlink()
    (folder / "qs_ks-seed1").rmdir()
    record = registry.load_sweep(folder)
    assert [run.name for run in record.runs if run.result is None] == ["qs_ks-seed1"]
    assert record.of_arm("residual")[2].result["val_loss"] == 2.2
    assert record.of_arm("residual")[2].config.seed == 2


def test_a_folder_without_a_plan_is_read_from_its_configs(make_sweep):
    folder = make_sweep()
    (folder / "sweep.json").unlink()
    (folder / "notes").mkdir()
    record = registry.load_sweep(folder)
    assert (record.baseline, record.arms, record.factors) == ("residual", ("residual", "qs_ks"), ("arm", "seed"))
    assert len(record.runs) == 6


def test_a_copy_of_a_run_is_not_counted_twice(make_sweep, tmp_path):
    folder = make_sweep()
    (folder / "sweep.json").unlink()
    (folder / "residual-seed0").rename(folder / "z")
    (folder / "z2").mkdir()
    for file in (folder / "z").iterdir():
        (folder / "z2" / file.name).write_bytes(file.read_bytes())
    runs = {run.name: run for run in registry.load_sweep(folder).runs}
    assert runs["z"].result is not None
    assert runs["z2"].result is None and "repeats arm 'residual' seed 0 of z" in runs["z2"].problem


BROKEN = [b"{", b"\xff\xfe", b"[]", b"null", b'{"a": ' * 100000]
CASES = [(name, content) for name in ("config", "result", "provenance", "status") for content in BROKEN]


@pytest.mark.parametrize(("name", "content"), [*CASES, ("config", b"{}"), ("result", b"{}")])
def test_broken_files_flag_the_run_and_nothing_else(make_sweep, name, content):
    folder = make_sweep()
    (folder / "qs_ks-seed0" / f"{name}.json").write_bytes(content)
    record = registry.load_sweep(folder)
    flagged = [run for run in record.runs if run.problem]
    assert [run.name for run in flagged] == ["qs_ks-seed0"]
    assert flagged[0].problem.startswith(f"{name}.json") and flagged[0].result is None
    assert "missing: qs_ks-seed0" in tables.summarise(record).warnings[0]


@pytest.mark.parametrize(
    ("field", "value"), [("val_loss", float("nan")), ("val_loss", "2"), ("steps", 1.5), ("params", 10**400)]
)
def test_unusable_numbers_are_problems(make_sweep, field, value):
    record = registry.load_sweep(make_sweep(edit=lambda files, arm, seed: files["result"].update({field: value})))
    assert all(run.result is None and field in run.problem for run in record.runs)


def test_a_run_folder_of_another_arm_is_a_problem(make_sweep):
    record = registry.load_sweep(make_sweep(edit=lambda files, arm, seed: files["config"].update({"seed": 0})))
    assert [run.name for run in record.runs if run.problem] == [f"{arm}-seed{s}" for arm in record.arms for s in (1, 2)]


def test_symbolic_links_are_not_followed(make_sweep, tmp_path_factory):
    folder, outside = make_sweep(), tmp_path_factory.mktemp("outside")
    (folder / "qs_ks-seed0").rename(outside / "run")
    (folder / "qs_ks-seed0").symlink_to(outside / "run")
    (folder / "qs_ks-seed1" / "result.json").rename(outside / "result.json")
    (folder / "qs_ks-seed1" / "result.json").symlink_to(outside / "result.json")
    (folder / "qs_ks-seed2" / "metrics.jsonl").rename(outside / "metrics.jsonl")
    (folder / "qs_ks-seed2" / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    first, second, third = registry.load_sweep(folder).of_arm("qs_ks")
    assert "symbolic link" in first.problem and first.result is None
    assert "result.json is a symbolic link" in second.problem and second.result is None
    assert registry.read_metrics(first) == registry.read_metrics(third) == []
    assert len(registry.read_metrics(second)) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"runs": [{"name": "../x", "arm": "residual", "seed": 0}]},
        {"runs": [{"name": "x", "arm": "other", "seed": 0}]},
        {"runs": 2 * [{"name": "x", "arm": "residual", "seed": 0}]},
        {"runs": None},
        {"runs": [1]},
        {"arms": ["<script>"]},
        {"arms": 3},
        {"baseline": "other"},
        {"labels": []},
        {"title": 1},
    ],
)
def test_a_bad_plan_is_one_line(make_sweep, change):
    with pytest.raises(UserError) as error:
        registry.load_sweep(make_sweep(**change))
    assert "\n" not in str(error.value)


def test_no_folder_and_no_runs_are_one_line(tmp_path):
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(UserError):
            registry.load_sweep(folder)


def test_terminal_escapes_and_line_breaks_do_not_survive_reading(make_sweep):
    record = registry.load_sweep(make_sweep(title="a\x1b[31m\nb\u202e", labels={"qs_ks": "x\ty"}))
    assert record.title == "a?[31m b?"
    assert record.labels == {"residual": "residual", "qs_ks": "x y"}


GOOD = {
    "weights_MS": [[1.0, None], [0.5, 0.5]],
    "consumers": ["a", "b"],
    "sources": ["s", "t"],
    "kinds": ["attention", "read-out"],
}


@pytest.mark.parametrize(
    "change",
    [
        {"weights_MS": [[1.0], [0.5, 0.5]]},
        {"weights_MS": [[1.0, "x"], [0.5, 0.5]]},
        {"weights_MS": [[1.0, float("nan")], [0.5, 0.5]]},
        {"weights_MS": []},
        {"kinds": ["attention"]},
        {"kinds": ["attention", "other"]},
        {"kinds": ["read-out", "read-out"]},
        {"consumers": [{}, "b"]},
        {"sources": 1},
    ],
)
def test_only_a_whole_routing_table_is_read(make_sweep, change):
    run = registry.load_sweep(make_sweep()).runs[0]
    assert registry.read_routing(run) is None
    (run.path / "routing.json").write_text(json.dumps(GOOD))
    assert registry.read_routing(run) == registry.Routing(**GOOD)
    (run.path / "routing.json").write_text(json.dumps(GOOD | change))
    assert registry.read_routing(run) is None


def test_metrics_of_a_stranger_cannot_break_a_report(make_sweep):
    from depthroute.runs import metrics

    run = registry.load_sweep(make_sweep()).runs[0]
    path = run.path / "metrics.jsonl"
    path.write_bytes(metrics.encode({"loss": 1.0}))  # neither step nor split
    assert registry.read_metrics(run) == []
    path.write_bytes(metrics.encode({"step": 1, "split": "val", "loss": float("nan"), "tokens": 1}))
    assert registry.read_metrics(run) == []
