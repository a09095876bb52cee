"""The local back end: how runs are grouped, started, continued and reported."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthroute import cli
from depthroute.config import load_file, overlay, parse_overrides, program_key, resolve, to_dict
from depthroute.errors import UserError
from depthroute.launch import local, worker
from depthroute.runs.folder import keep_config, read_json, write_json
from depthroute.runs.sweep import Run, plan

GOOD = {"residual": {}, "qs_ks": {"router.preset": "qs_ks"}}
BAD = {"too_fast": {"train.lr": 1e30}}
LAUNCH = [sys.executable, "-c", "import sys; from depthroute.cli import main; sys.exit(main())"]
JOBS = min(2, len(os.sched_getaffinity(0)))


def sweep(path, workdir, *options):
    return cli.main(["sweep", "--config", str(path), "--workdir", str(workdir), "--jobs", str(JOBS), *options])


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def quick_compiles(monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def make_runs(tiny):
    """make_runs(programs) -> a run per entry; runs with equal entries share a program."""
    config = tiny()

    def make(programs):
        configs = [replace(config, seed=i, train=replace(config.train, lr=1.0 + p)) for i, p in enumerate(programs)]
        return [Run(f"run-seed{i}", config) for i, config in enumerate(configs)]

    return make


@given(programs=st.lists(st.integers(0, 4), max_size=20), jobs=st.integers(1, 8))
def test_every_run_is_in_one_batch_with_runs_of_its_program(make_runs, programs, jobs):
    runs = make_runs(programs)
    batches = local.batches_of_runs(runs, jobs)
    assert sorted((run for batch in batches for run in batch), key=lambda run: run.config.seed) == runs
    for batch in batches:
        assert batch and len({program_key(run.config) for run in batch}) == 1
        assert [run.config.seed for run in batch] == sorted(run.config.seed for run in batch)
    if len(set(programs)) >= jobs:
        assert len(batches) == len(set(programs))
    if len(set(programs)) == 1:
        assert len(batches) == min(jobs, len(runs))


def test_few_programs_are_cut_up_for_many_jobs(make_runs):
    batches = local.batches_of_runs(make_runs([0, 0, 0, 0, 1, 1, 1, 1]), 4)
    assert [[run.config.seed for run in batch] for batch in batches] == [[0, 2], [1, 3], [4, 6], [5, 7]]


# --- commands --------------------------------------------------------------------------------------------------------


def test_dry_run_prints_commands_that_train_the_planned_configs_and_creates_nothing(write_sweep, tmp_path, capsys, monkeypatch):
    path, workdir = write_sweep(GOOD), tmp_path / "sweep"
    before = contents(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert sweep(path, workdir, "--dry-run") == 0
    assert contents(tmp_path) == before and not workdir.exists()
    lines = capsys.readouterr().out.splitlines()
    config, module = load_file(path)
    runs = plan(config, module).runs
    assert len(lines) == len(runs) == 4
    for line, run in zip(lines, runs, strict=True):
        words = shlex.split(line)
        assert words[:4] == ["depthroute", "train", "--config", str(path)]
        assert words[-2:] == ["--workdir", str(workdir / run.name)]
        assert resolve(overlay(config, parse_overrides(words[4:-2]))) == run.config


def test_slots_share_the_cores_without_overlap():
    cores = os.sched_getaffinity(0)
    for jobs in range(1, len(cores) + 1):
        shares = [local._cores(slot, jobs) for slot in range(jobs)]
        assert sorted(core for share in shares for core in share) == sorted(cores)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("jobs", ["-1", "100000"])
def test_more_jobs_than_cores_is_one_line(write_sweep, tmp_path, capsys, jobs):
    assert sweep(write_sweep(GOOD), tmp_path / "sweep", "--jobs", jobs) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"--jobs is {jobs}" in error


@pytest.mark.parametrize("accelerator", [True, False])
def test_an_accelerator_is_not_shared(monkeypatch, accelerator):
    monkeypatch.setattr(local.os.path, "exists", lambda path: accelerator)
    assert local.default_jobs() == (1 if accelerator else len(os.sched_getaffinity(0)))


# --- sweeps ----------------------------------------------------------------------------------------------------------


def test_a_sweep_runs_what_is_missing_and_a_failing_arm_leaves_the_others_alone(write_sweep, tmp_path, capsys, monkeypatch):
    workdir = tmp_path / "a sweep; touch hacked $(touch hacked)"  # a shell would see five words, and obey
    monkeypatch.chdir(tmp_path)
    assert sweep(write_sweep(GOOD), workdir) == 0
    out = capsys.readouterr().out
    names = [f"{arm}-seed{seed}" for arm in GOOD for seed in (0, 1)]
    assert all(f"{name}: done, val loss" in out for name in names) and "[4/4 runs done]" in out
    assert not (tmp_path / "hacked").exists()
    table = (workdir / "table.md").read_text()
    assert table in out and all(arm in table for arm in GOOD)
    assert (workdir / "report.html").stat().st_size > 1000
    assert [run["name"] for run in json.loads((workdir / "sweep.json").read_text())["runs"]] == names
    results = {name: read_json(workdir / name / "result.json") for name in names}
    assert len({result["params_sha256"] for result in results.values()}) == 4

    # Again: nothing to do.
    runs = {path: content for path, content in contents(workdir).items() if path.parent != workdir}
    with monkeypatch.context() as patch:
        patch.setattr(local, "_start", None)
        assert sweep(write_sweep(GOOD), workdir) == 0
    assert table in capsys.readouterr().out
    assert {path: path.read_bytes() for path in runs} == runs

    # One more arm, which fails.
    assert sweep(write_sweep(GOOD | BAD), workdir) == 1
    captured = capsys.readouterr()
    assert "some runs failed" in captured.err and "too_fast-seed0: failed, " in captured.out
    assert {path: path.read_bytes() for path in runs} == runs
    assert cli.main(["status", str(workdir)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    for seed in (0, 1):
        reason = read_json(workdir / f"too_fast-seed{seed}" / "status.json")["reason"]
        assert " is nan at step " in reason or " is inf at step " in reason
        assert "failed" in lines[f"too_fast-seed{seed}"] and reason[:30] in lines[f"too_fast-seed{seed}"]
        assert "done" in lines[f"residual-seed{seed}"]


def test_a_sweep_refuses_run_folders_of_another_config(write_sweep, tmp_path, capsys, monkeypatch):
    workdir = tmp_path / "sweep"
    monkeypatch.setattr(local, "_start", None)
    (workdir / "residual-seed1" / "checkpoints").mkdir(parents=True)
    other = resolve(overlay(load_file(write_sweep(GOOD))[0], {"arm": "residual", "seed": 1, "train.lr": 0.5}))
    write_json(workdir / "residual-seed1" / "config.json", to_dict(other))
    assert sweep(write_sweep(GOOD), workdir) == 2
    assert "train.lr was 0.5, now 0.004" in capsys.readouterr().err


def wait_for_metrics(process, workdir):
    """The metrics file of the first run that has a line of them."""
    while process.poll() is None:
        for path in workdir.glob("*/metrics.jsonl"):
            if path.stat().st_size:
                return path
        time.sleep(0.05)
    raise AssertionError("the sweep ended before it trained")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_goes_on(write_sweep, tmp_path, capsys, number):
    path, workdir = write_sweep(GOOD, steps=400), tmp_path / "sweep"
    command = [*LAUNCH, "sweep", "--config", str(path), "--workdir", str(workdir), "--jobs", str(JOBS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_metrics(process, workdir)
    process.send_signal(number)
    _, error = process.communicate()
    assert process.returncode == 75 and "run the same command to go on" in error
    states = [read_json(found)["state"] for found in workdir.glob("*/status.json")]
    assert states and set(states) <= {"interrupted", "done"} and "interrupted" in states
    assert sweep(path, workdir) == 0
    assert len(list(workdir.glob("*/result.json"))) == 4


@pytest.mark.slow
def test_workers_save_when_the_sweep_is_killed(write_sweep, tmp_path):
    path, workdir = write_sweep(GOOD, steps=400), tmp_path / "sweep"
    command = [*LAUNCH, "sweep", "--config", str(path), "--workdir", str(workdir), "--jobs", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    training = wait_for_metrics(process, workdir)
    process.kill()
    process.wait()
    status = training.with_name("status.json")
    for _ in range(600):
        if read_json(status)["state"] != "running":
            break
        time.sleep(0.1)
    assert read_json(status)["state"] == "interrupted"


# --- worker ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path, tiny, monkeypatch):
    """work(codes, parent) -> (exit code, names of the runs that were executed); a code may be an exception."""

    def run(codes, parent=None):
        executed = []

        def execute(config, folder, stop, quiet):
            executed.append(folder.name)
            if isinstance(codes[folder.name], Exception):
                raise codes[folder.name]
            return codes[folder.name]

        monkeypatch.setattr("depthroute.runs.run.execute", execute)
        for name in codes:
            keep_config(tmp_path / name, tiny())
        cores = ",".join(map(str, os.sched_getaffinity(0)))
        options = ["--parent", str(parent or os.getppid()), "--cores", cores]
        return worker.main([*options, *(str(tmp_path / name) for name in codes)]), executed

    return run


def test_a_worker_runs_its_folders_in_order(work):
    assert work({"a": 0, "b": 0}) == (0, ["a", "b"])


def test_a_worker_stops_at_an_interrupted_run(work):
    assert work({"a": 0, "b": 75, "c": 0}) == (75, ["a", "b"])


@pytest.mark.parametrize("kind", ["UserError", "RuntimeError"])
def test_a_failed_run_does_not_keep_a_worker_from_the_others(work, capsys, kind):
    error = {"UserError": UserError, "RuntimeError": RuntimeError}[kind]("out of luck")
    assert work({"a": error, "b": 0}) == (1, ["a", "b"])
    assert "out of luck" in capsys.readouterr().err


def test_a_worker_whose_parent_is_gone_starts_nothing(work):
    assert work({"a": 0}, parent=os.getpid()) == (75, [])


def test_a_worker_keeps_to_its_cores():
    one = min(os.sched_getaffinity(0))
    code = "import os; from depthroute.launch import worker; print(worker.main(), os.sched_getaffinity(0))"
    command = [sys.executable, "-c", code, "--parent", str(os.getpid()), "--cores", str(one), "missing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == f"1 {{{one}}}\n" and "missing" in done.stderr
