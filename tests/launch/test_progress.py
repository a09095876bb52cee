"""What a person sees while a sweep runs, from status files alone."""

import io
import json

import pytest

from depthroute.launch import progress

RUNNING = {
    "state": "running", "step": 30, "steps": 60, "loss": 2.34567, "tokens_per_s": 12345.6, "eta_s": 7.4, "reason": "",
}  # fmt: skip
RESULT = {"val_loss": 1.23456, "tokens_per_s": 2000.4, "eval_split": "tune"}
NAMES = ("a", "b", "c")


@pytest.fixture
def put(tmp_path):
    """put(run, state, result=None, **fields): writes a run's status, and its result."""

    def write(name, state, result=None, **fields):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "status.json").write_text(json.dumps({**RUNNING, "state": state, **fields}))
        if result:
            (tmp_path / name / "result.json").write_text(json.dumps(result))

    return write


def test_the_line_of_a_running_run():
    assert progress.line_of("a", RUNNING) == "a: step 30/60, loss 2.346 nats/token, 12,346 tokens/s, 7 s left"
    assert progress.line_of("a", {**RUNNING, "eta_s": None}) == "a: step 30/60, loss 2.346 nats/token, 12,346 tokens/s"
    assert progress.line_of("a", {**RUNNING, "step": 0, "loss": None}) == "a: compiling"


def test_the_line_of_a_run_that_is_over(put, tmp_path):
    put("a", "done", RESULT)
    status = progress.read_status(tmp_path / "a")
    assert progress.end_line("a", status, tmp_path / "a") == "a: done, tune loss 1.2346 nats/token, 2,000 tokens/s"
    failed = {**RUNNING, "state": "failed", "reason": "Traceback\n  File x\nValueError: no"}
    assert progress.end_line("a", failed, tmp_path) == "a: failed, ValueError: no"
    assert progress.end_line("a", {**failed, "reason": ""}, tmp_path) == "a: failed, "


def test_a_missing_or_torn_status_is_no_status(put, tmp_path):
    assert progress.read_status(tmp_path / "a") == {}
    put("a", "running")
    (tmp_path / "a" / "status.json").write_text('{"state": ')
    assert progress.read_status(tmp_path / "a") == {}


def test_lines_count_what_is_done_and_tell_every_end_once(put, tmp_path, capsys):
    put("a", "done", RESULT)  # by an earlier sweep
    put("b", "failed", reason="by an earlier sweep")
    display = progress.make_display(tmp_path, NAMES)
    with display:
        display.update([])
        assert capsys.readouterr().out == "1/3 runs done\n"
        put("b", "running")
        display.update(["b"])
        put("b", "done", RESULT)
        display.update(["b"])
        display.update([])
        assert capsys.readouterr().out == "[2/3 runs done] b: done, tune loss 1.2346 nats/token, 2,000 tokens/s\n"
        put("c", "running")
        display.update(["c"])
        put("c", "failed", reason="loss is nan")
        display.update(["c"])
        display.update([])
        assert capsys.readouterr().out == "[2/3 runs done] c: failed, loss is nan\n"


def test_a_run_that_is_done_between_two_looks_is_told(put, tmp_path, capsys):
    display = progress.make_display(tmp_path, NAMES)
    put("a", "done", RESULT)
    display.update(["a"])
    assert "[1/3 runs done] a: done" in capsys.readouterr().out


def test_plain_lines_about_running_runs_come_now_and_then(put, tmp_path, capsys, monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    display = progress.make_display(tmp_path, NAMES)
    put("a", "running")
    put("b", "running")  # as a killed worker left it
    for now in (101.0, 116.0, 117.0):  # noqa: B007
        display.update(["a"])
    assert capsys.readouterr().out == "[0/3 runs done] a: step 30/60, loss 2.346 nats/token, 12,346 tokens/s, 7 s left\n"


def test_a_terminal_shows_a_bar_and_a_line_per_run(put, tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(progress.sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    put("a", "running")
    with progress.make_display(tmp_path, NAMES) as display:
        display.update(["a"])
        put("a", "done", RESULT)
        put("b", "running")
        display.update(["b"])
    shown = terminal.getvalue()
    assert "b: step 30/60, loss 2.346" in shown and "a: done, tune loss 1.2346" in shown and "1/3" in shown
