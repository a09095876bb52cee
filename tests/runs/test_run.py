"""Whole runs: what they leave behind, and that a killed one ends bit for bit where an undisturbed one does."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from depthroute import cli
from depthroute.config import resolve
from depthroute.data import corpus as corpus_lib
from depthroute.model.counts import num_params, training_flops
from depthroute.routing.counts import router_params
from depthroute.runs import metrics
from depthroute.runs import run as run_lib
from depthroute.runs.folder import RunFolder, read_json, write_json

TINY = Path(__file__).parents[2] / "configs" / "tiny.py"
SMALL = {
    "model.layers": 1,
    "model.dim": 16,
    "model.mlp_dim": 16,
    "router.rank": 4,
    "router.preset": "qd_kd",
    "data.seq_len": 16,
    "train.steps": 12,
    "train.warmup": 2,
    "train.eval_every": 6,
    "train.eval_sequences": 20,
    "train.checkpoint_every": 4,
    "train.log_every": 1,
}


def arguments(workdir, **overrides):
    settings = [f"--config.{name}={value}" for name, value in {**SMALL, **overrides}.items()]
    return ["train", "--config", str(TINY), *settings, "--workdir", str(workdir)]


@pytest.fixture(autouse=True)
def handlers():
    """Runs take over the signals; tests give them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of an undisturbed run in this process."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    assert cli.main(arguments(workdir)) == 0
    return workdir


def losses(workdir):
    return {(r["step"], r["split"]): r["loss"] for r in metrics.read(workdir / "metrics.jsonl")}


# --- what a run leaves -----------------------------------------------------------------------------------------------


def test_a_result_has_the_promised_fields(finished):
    config, result = resolve(read_json(finished / "config.json")), read_json(finished / "result.json")
    assert (result["arm"], result["seed"], result["steps"], result["eval_split"]) == ("tiny", 0, 12, "val")
    assert result["tokens"] == 12 * 8 * 16
    assert (result["params"], result["router_params"]) == (num_params(config), router_params(config))
    assert result["flops_per_token"] == training_flops(config)
    assert result["tokens_per_s"] > 0
    assert len(bytes.fromhex(result["params_sha256"])) == 32
    assert (result["eval_sequences"], result["eval_tokens"]) == (20, 20 * 16)
    assert 2 < result["val_loss"] < 7
    assert result["val_loss"] == losses(finished)[12, "val"]


def test_bits_per_byte_by_hand(finished):
    config, result = resolve(read_json(finished / "config.json")), read_json(finished / "result.json")
    corpus = corpus_lib.load(config.data, config.model.vocab)
    val = corpus.split("val")
    available = (len(val) - 1) // 16
    predicted = [val.window(i * available // 20 * 16, 17)[1:] for i in range(20)]
    num_bytes = sum(int((row < 256).sum()) for row in predicted)  # the separator stands for no byte
    assert result["bits_per_byte"] == pytest.approx(result["val_loss"] * 320 / num_bytes / np.log(2))
    assert result["data_fingerprint"] == corpus.fingerprint


def test_routing_rows_are_distributions_over_what_is_visible(finished):
    routing = read_json(finished / "routing.json")
    assert routing["consumers"] == ["attention 0", "mlp 0", "read-out"]
    assert routing["kinds"] == ["attention", "mlp", "read-out"]
    assert routing["sources"] == ["embedding", "attention 0", "mlp 0"]
    rows = routing["weights_MS"]
    assert [[value is None for value in row] for row in rows] == [[False, True, True], [False, False, True], [False] * 3]
    for row in rows:
        assert sum(value for value in row if value is not None) == pytest.approx(1, abs=1e-5)
    assert (routing["split"], routing["sequences"]) == ("val", 20)


def test_metrics_status_and_provenance(finished):
    records = metrics.read(finished / "metrics.jsonl")
    assert [r["step"] for r in records if r["split"] == "train"] == list(range(1, 13))
    assert [r["step"] for r in records if r["split"] == "val"] == [6, 12]
    assert all(r["tokens"] == r["step"] * 8 * 16 and r["attempt"] == 1 for r in records)
    assert all(r["grad_norm"] > 0 for r in records if r["split"] == "train")
    status = read_json(finished / "status.json")
    assert (status["state"], status["step"], status["steps"], status["reason"]) == ("done", 12, 12, "")
    assert (status["pid"], status["attempt"]) == (os.getpid(), 1)
    provenance = read_json(finished / "provenance.json")
    assert {"git_commit", "git_dirty", "git_diff", "argv", "environment", "data"} <= provenance.keys()
    assert provenance["versions"]["jax"] and provenance["devices"] == ["cpu:cpu"] * 8
    assert provenance["data_fingerprint"] == read_json(finished / "result.json")["data_fingerprint"]


def test_provenance_keeps_no_environment_but_what_steers_jax(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    monkeypatch.setenv("API_KEY", "secret")
    found = run_lib.provenance.collect("f", "d", [])
    assert found["environment"]["XLA_FLAGS"] == "--xla_dump_to=x"
    assert "secret" not in json.dumps({k: v for k, v in found.items() if k != "git_diff"})


def test_provenance_of_a_checkout(tmp_path):
    def git(*words):
        subprocess.run(
            ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True
        )

    nothing = {"git_commit": None, "git_dirty": None, "git_diff": None}
    assert run_lib.provenance.git_state(tmp_path / "a") == nothing
    git("init")
    (tmp_path / "a").write_text("one\n")
    git("add", "a")
    git("commit", "-m", "first")
    clean = run_lib.provenance.git_state(tmp_path / "a")
    assert len(clean["git_commit"]) == 40 and (clean["git_dirty"], clean["git_diff"]) == (False, None)
    (tmp_path / "new").write_text("untracked\n")
    assert run_lib.provenance.git_state(tmp_path / "a")["git_dirty"]
    assert run_lib.provenance.git_state(tmp_path / "new") == nothing
    (tmp_path / "a").write_text("two\n")
    dirty = run_lib.provenance.git_state(tmp_path / "a")
    assert dirty["git_dirty"] and "-one\n+two" in dirty["git_diff"]


def test_a_finished_run_is_left_alone(finished, capsys):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and path.name != "lock"}
    assert cli.main(arguments(finished)) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert read_json(finished / "result.json")["params_sha256"] in capsys.readouterr().out


# --- runs that stop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_asks_to_be_run_again(finished, tmp_path, monkeypatch, capsys, number):
    told = run_lib.Recorder.progress

    def progress(self, step, *values):
        told(self, step, *values)
        if step == 6 and self._status.attempt == 1:
            signal.raise_signal(number)

    monkeypatch.setattr(run_lib.Recorder, "progress", progress)
    assert cli.main(arguments(tmp_path)) == 75
    assert "run the same command to go on" in capsys.readouterr().err
    status = read_json(tmp_path / "status.json")
    assert (status["state"], status["attempt"]) == ("interrupted", 1)
    assert status["reason"].startswith("stopped at step ") and not (tmp_path / "result.json").exists()
    assert cli.main(arguments(tmp_path)) == 0
    assert read_json(tmp_path / "result.json")["params_sha256"] == read_json(finished / "result.json")["params_sha256"]
    assert read_json(tmp_path / "status.json")["attempt"] == 2
    assert losses(tmp_path) == losses(finished)


def test_a_second_signal_ends_the_process_at_once():
    stop = run_lib.StopRequest()
    assert not stop()
    signal.raise_signal(signal.SIGTERM)
    assert stop() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_worker_stops_when_its_parent_is_gone():
    assert not run_lib.StopRequest(parent=os.getppid())()
    assert run_lib.StopRequest(parent=os.getpid())()


def test_divergence_is_one_line_and_keeps_earlier_checkpoints(tmp_path, capsys):
    overrides = {"router.preset": "residual", "train.lr": 1e30, "train.warmup": 0, "train.checkpoint_every": 1}
    assert cli.main(arguments(tmp_path, **overrides)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    status = read_json(tmp_path / "status.json")
    assert status["state"] == "failed" and status["reason"] in error
    step = int(status["reason"].partition(" at step ")[2].partition(";")[0])
    assert "there is no good checkpoint yet" in status["reason"]  # what was saved leads straight to this
    assert (tmp_path / "checkpoints" / str(step - 1)).is_dir() and not (tmp_path / "checkpoints" / str(step)).exists()
    assert not (tmp_path / "result.json").exists()


def test_data_that_changed_since_the_run_began_is_refused(finished, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "result.json").unlink()
    provenance = read_json(folder / "provenance.json")
    write_json(folder / "provenance.json", {**provenance, "data_fingerprint": "other"})
    assert cli.main(arguments(folder)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "was other" in error and provenance["data_fingerprint"] in error
    assert not (folder / "result.json").exists()


def test_an_attempt_with_only_the_result_to_write_reports_the_speed_of_the_one_that_trained(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    before = read_json(folder / "result.json")
    (folder / "result.json").unlink()
    assert cli.main(arguments(folder)) == 0
    after = read_json(folder / "result.json")
    assert after["params_sha256"] == before["params_sha256"] and after["val_loss"] == before["val_loss"]
    recorded = {record["tokens_per_s"] for record in metrics.read(finished / "metrics.jsonl")}
    assert after["tokens_per_s"] in recorded - {0.0}


def test_a_folder_in_use_is_refused(finished, tmp_path, tiny, capsys):
    config = resolve(read_json(finished / "config.json"))
    with RunFolder(tmp_path, config):
        assert cli.main(arguments(tmp_path)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"pid {os.getpid()}" in error
    assert not (tmp_path / "status.json").exists()


def test_another_config_in_the_folder_is_refused(finished, capsys):
    assert cli.main(arguments(finished, **{"seed": 4, "train.lr": 0.5})) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "seed was 0, now 4" in error and "train.lr was 0.004, now 0.5" in error


# --- processes that are killed ---------------------------------------------------------------------------------------

LONG = {"train.steps": 80, "train.checkpoint_every": 5, "train.eval_every": 20, "router.preset": "residual"}
LAUNCH = [sys.executable, "-c", "import sys; from depthroute.cli import main; sys.exit(main())"]


def start(workdir):
    return subprocess.Popen(LAUNCH + arguments(workdir, **LONG), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process, step, number, workdir):
    """Sends the signal once the run has recorded `step`; returns the exit code."""
    recorded = workdir / "metrics.jsonl"
    while process.poll() is None and (
        not recorded.exists() or f'{{"step": {step}, "split": "train"' not in recorded.read_text()
    ):
        time.sleep(0.001)
    process.send_signal(number)
    process.communicate()
    return process.returncode


@pytest.fixture
def quick_compiles(monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


def test_a_run_killed_three_times_ends_where_an_undisturbed_one_does(tmp_path, quick_compiles):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(whole)
    assert process.communicate() and process.returncode == 0
    chosen = random.Random(0)
    for attempt in range(3):
        step = chosen.randrange(15 * attempt + 3, 15 * attempt + 15)
        assert end(start(killed), step, signal.SIGKILL, killed) == -signal.SIGKILL
        assert read_json(killed / "status.json")["state"] == "running" and not (killed / "result.json").exists()
    process = start(killed)
    assert process.communicate() and process.returncode == 0
    results = [read_json(workdir / "result.json") for workdir in (whole, killed)]
    for name in ("params_sha256", "val_loss", "bits_per_byte"):
        assert results[0][name] == results[1][name]
    assert losses(killed) == losses(whole)
    assert read_json(killed / "status.json")["attempt"] == 4


@pytest.mark.slow
def test_sigterm_ends_a_process_with_75(tmp_path, quick_compiles):
    assert end(start(tmp_path), 10, signal.SIGTERM, tmp_path) == 75
    assert read_json(tmp_path / "status.json")["state"] == "interrupted"
    process = start(tmp_path)
    out, _ = process.communicate()
    assert process.returncode == 0 and read_json(tmp_path / "result.json")["params_sha256"] in out


@pytest.mark.slow
def test_two_processes_in_one_folder_do_not_meet(tmp_path, quick_compiles):
    processes = [start(tmp_path), start(tmp_path)]
    errors = [process.communicate()[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 2]
    winner, loser = codes.index(0), codes.index(2)
    assert f"in use by pid {processes[winner].pid}" in errors[loser]
