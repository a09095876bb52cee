"""The run folder's lock, config and status."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from depthroute.config import resolve, to_dict
from depthroute.errors import UserError
from depthroute.runs import folder as folder_lib
from depthroute.runs.folder import RunFolder, Status, keep_config, read_json, write_json

HOLD = """
import sys, time
from pathlib import Path
from depthroute.config import resolve
from depthroute.runs.folder import RunFolder, read_json
config = resolve(read_json(Path(sys.argv[1])))
with RunFolder(Path(sys.argv[2]), config):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def config(tiny):
    return tiny()


@pytest.fixture
def other_process(config, tmp_path):
    """Another process that holds tmp_path / "run"."""
    write_json(tmp_path / "config.json", to_dict(config))
    arguments = [sys.executable, "-c", HOLD, str(tmp_path / "config.json"), str(tmp_path / "run")]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_json_is_replaced_whole_and_nothing_else_is_left(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": [1, None, "x"]})
    assert read_json(path) == {"a": [1, None, "x"]}

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_lib.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": [1, None, "x"]}


@pytest.mark.parametrize("content", [None, "", '{"a": ', "\xff"])
def test_json_that_cannot_be_read_is_one_line_with_its_path(tmp_path, content):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match="a.json") as error:
        read_json(path)
    assert "\n" not in str(error.value)


def test_config_is_kept_as_data(config, tmp_path):
    keep_config(tmp_path / "deep" / "run", config)
    keep_config(tmp_path / "deep" / "run", config)
    assert resolve(json.loads((tmp_path / "deep" / "run" / "config.json").read_text())) == config


def test_a_config_may_be_mended_until_training_began(config, tmp_path):
    keep_config(tmp_path, config)
    keep_config(tmp_path, replace(config, seed=5))
    assert resolve(read_json(tmp_path / "config.json")).seed == 5


def test_a_config_of_something_else_is_never_replaced(config, tmp_path):
    write_json(tmp_path / "config.json", {"mine": 1})
    with pytest.raises(UserError, match="mine"):
        keep_config(tmp_path, config)
    assert read_json(tmp_path / "config.json") == {"mine": 1}


def test_a_result_without_its_config_is_not_given_another(config, tmp_path):
    write_json(tmp_path / "result.json", {})
    with pytest.raises(UserError, match="no config.json"):
        keep_config(tmp_path, config)


def test_a_damaged_status_does_not_keep_a_run_from_going_on(config, tmp_path):
    with RunFolder(tmp_path, config) as folder:
        (tmp_path / "status.json").write_text("{")
        assert Status(folder, 1).attempt == 1
        assert Status(folder, 1).attempt == 2


def test_another_config_is_refused_with_every_difference(config, tmp_path):
    with RunFolder(tmp_path, config):
        (tmp_path / "checkpoints").mkdir()
    changed = replace(config, seed=5, model=replace(config.model, layers=3), train=replace(config.train, lr=0.5))
    with pytest.raises(UserError) as error:
        RunFolder(tmp_path, changed)
    message = str(error.value)
    assert "\n" not in message and str(tmp_path) in message
    expected = {
        "seed": (config.seed, 5),
        "model.layers": (config.model.layers, 3),
        "train.lr": (config.train.lr, 0.5),
    }
    for name, (old, new) in expected.items():
        assert f"{name} was {old!r}, now {new!r}" in message
    assert message.count(" was ") == 3
    assert read_json(tmp_path / "config.json") == to_dict(config)


def test_a_folder_in_use_is_refused_by_pid_and_free_once_its_process_is_gone(config, tmp_path, other_process):
    with pytest.raises(UserError, match=f"in use by pid {other_process.pid} on ") as error:
        RunFolder(tmp_path / "run", config)
    assert "\n" not in str(error.value)
    os.kill(other_process.pid, signal.SIGKILL)
    other_process.wait()
    with RunFolder(tmp_path / "run", config):  # the file is still there, and names a dead process
        with pytest.raises(UserError, match=f"in use by pid {os.getpid()} on "):
            RunFolder(tmp_path / "run", config)
    RunFolder(tmp_path / "run", config).close()


def test_a_run_is_finished_when_it_has_a_result(config, tmp_path):
    with RunFolder(tmp_path, config) as folder:
        assert not folder.finished()
        folder.write("result.json", {})
        assert folder.finished()


def test_status_counts_attempts_and_keeps_its_fields(config, tmp_path):
    with RunFolder(tmp_path, config) as folder:
        Status(folder, 60).update(state="interrupted", step=7, reason="stopped")
        first = read_json(tmp_path / "status.json")
        assert (first["state"], first["step"], first["steps"], first["attempt"]) == ("interrupted", 7, 60, 1)
        assert (first["pid"], first["reason"]) == (os.getpid(), "stopped")
        second = Status(folder, 60)
        assert second.attempt == 2
        found = read_json(tmp_path / "status.json")
        assert (found["state"], found["reason"], found["attempt"]) == ("running", "", 2)


def test_status_is_written_at_most_twice_a_second_and_loses_nothing(config, tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(folder_lib.time, "time", lambda: now)
    with RunFolder(tmp_path, config) as folder:
        status = Status(folder, 60)
        seen = []
        for step in range(1, 9):
            now += 0.2
            status.tick(step=step)
            seen.append(read_json(tmp_path / "status.json")["step"])
        assert seen == [0, 0, 3, 3, 3, 6, 6, 6]
        assert read_json(tmp_path / "status.json")["heartbeat"] == pytest.approx(1001.2)
        status.update(state="failed")
        assert read_json(tmp_path / "status.json")["step"] == 8
