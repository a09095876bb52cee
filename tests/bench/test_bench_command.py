"""The command: the machine's probes are made up, and in all tests but one so are the measurements."""

import json
from pathlib import Path

import pytest

from depthroute import cli
from depthroute.bench import machine
from depthroute.bench import run as run_lib
from depthroute.bench.machine import Probe

TINY = str(Path(__file__).parents[2] / "configs" / "tiny.py")
QUIET, BUSY = Probe(1e9, 1e9), Probe(1e9, 0.8e9)


@pytest.fixture
def bench(capsys, monkeypatch):
    """bench(probes, *arguments) -> (exit code, standard output, standard error)."""

    def run(probes, *arguments):
        probes = iter(probes)
        monkeypatch.setattr(machine.Prober, "__init__", lambda self, config: None)
        monkeypatch.setattr(machine.Prober, "measure", lambda self: next(probes))
        code = cli.main(["bench", "--config", TINY, *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def made_up(measured, monkeypatch):
    """Arguments of a run whose measurements are made up."""
    monkeypatch.setattr(run_lib, "compile_step", lambda config: None)
    monkeypatch.setattr(run_lib, "measure", lambda configs, repeats, tick: measured[configs["residual"].model.layers])
    return ["--routers", "attnres,qd_ks", "--layers", "4,2", "--repeats", "3"]


def test_the_whole_command_at_a_tiny_shape(bench):
    small = ["--config.model.dim=8", "--config.data.batch=2", "--config.data.seq_len=8"]
    code, out, err = bench([QUIET] * 2, *small, "--routers", "residual", "--layers", "1", "--repeats", "1", "--json")
    (record,) = json.loads(out)["records"]
    assert code == 0 and err == ""
    assert record["step_s"] == record["steps_s"][0] > 0 and record["compile_s"] > 0 and record["temp_bytes"] > 0


def test_json_holds_the_machine_and_a_record_per_router_and_depth(bench, made_up, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("<!-- bench --><!-- /bench -->")
    code, out, err = bench([QUIET] * 3, *made_up, "--json", "--out", tmp_path / "out", "--readme", readme)
    document = json.loads(out)
    assert code == 0 and err == "" and document["rejected"] is None
    assert [(r["layers"], r["router"]) for r in document["records"]] == [
        (layers, router) for layers in (2, 4) for router in ("residual", "attnres", "qd_ks")
    ]
    for record in document["records"]:
        numbers = ("step_s", "median_s", "step_ratio", "compile_s", "temp_bytes", "slope_btd", "exponent", "mfu")
        assert all(isinstance(record[name], (int, float)) for name in numbers)
        assert len(record["steps_s"]) == document["repeats"] == 3
    assert document["shape"] == {"batch": 8, "seq_len": 64, "dim": 32, "heads": 2, "mlp_dim": 64, "vocab": 257}
    assert document["dtype"] == "float32" and document["history"] == "buffer" and document["remat"] is True
    assert document["peak_flops"] == {"before": 1e9, "after": 1e9, "best": 1e9}
    assert "git_commit" in document["provenance"] and document["config"]["model"]["dim"] == 32
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == document
    assert "(out/bench.png)" in readme.read_text()


def test_a_run_on_a_busy_machine_prints_its_results_and_fails(bench, made_up, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("<!-- bench --><!-- /bench -->")
    code, out, err = bench([QUIET, QUIET, BUSY], *made_up, "--out", tmp_path / "out", "--readme", readme)
    assert code == 1
    assert err.startswith("depthroute: rejected: bandwidth moved by more than 15%") and len(err.splitlines()) == 1
    assert "| residual |" in out and "REJECTED" in out
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["rejected"].startswith("bandwidth moved")
    assert readme.read_text() == "<!-- bench --><!-- /bench -->"


def test_what_was_measured_is_kept_when_a_deeper_model_fails(bench, made_up, tmp_path):
    code, out, err = bench([QUIET] * 2, *made_up, "--out", tmp_path / "out")
    assert code == 1 and out == "" and "StopIteration" in err
    kept = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert {r["layers"] for r in kept["records"]} == {2} and kept["records"][0]["slope_btd"] is None
