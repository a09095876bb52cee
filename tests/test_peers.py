"""The benchmark against other implementations, with made-up workers: its protocol, its turns, and its page. No PyTorch."""

import importlib
import json
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
WORKER = """
import sys, time
from benchmarks.peers.protocol import serve
name, behaviour, log = sys.argv[1:]

def start():
    print("a library prints this")
    if behaviour == "broken":
        raise RuntimeError("no compiler found\\nand a long story")
    if behaviour == "killed":
        sys.exit(9)
    return {"params": 10, "threads": 2}, turn

def turn():
    with open(log, "a") as file:
        print(name, file=file)
    if behaviour == "dies":
        sys.exit(3)
    return {"loss": 1.0}

serve(start)
"""


@pytest.fixture(scope="module")
def peers():
    """peers(module) -> benchmarks.peers.module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY)
        yield lambda module: importlib.import_module(f"benchmarks.peers.{module}")


@pytest.fixture
def command(tmp_path):
    """command(name, behaviour) -> what starts a made-up worker; its turns are written to tmp_path / "turns"."""
    return lambda name, behaviour="works": [sys.executable, "-c", WORKER, name, behaviour, str(tmp_path / "turns")]


@pytest.fixture
def record(peers):
    """record(implementation, variant, step_s, peak_mib, **more) -> a record of a router `mhc`, measured without disturbance."""

    def make(implementation, variant, step_s=0.1, peak_mib=100, **more):
        answers = [
            {"step_s": s, "peak_bytes": peak_mib * 2**20, "preemptions": 0, "idle_cpu_s": 0.0, **more}
            for s in (3 * step_s, step_s, 2 * step_s)
        ]
        arm = {"router": "mhc", "implementation": implementation, "variant": variant}
        return {**arm, "params": 10_000_000, "threads": 2, **peers("run").summary(answers)}

    return make


@pytest.fixture
def document(peers, record):
    """A rejected run of one of our arms, a peer, and a peer that does not work."""
    broken = {"router": "mhc", "implementation": "hyper-connections, mHC", "variant": "compiled", "failed": "no compiler"}
    peer = record("x-transformers, mHC", "eager", 0.2, 50)
    return {
        "rejected": "peak_flops moved",
        "shape": {"batch": 4, "seq_len": 256, "layers": 12, "dim": 256, "heads": 4, "mlp_dim": 704, "vocab": 257},
        "dtype": "float32",
        "threads": [2],
        "repeats": 2,
        "load_before": 0.1,
        "peak_flops": {"before": 2e11, "after": 1e11},
        "bandwidth": {"before": 3e10, "after": 3e10},
        "parity": {"PyTorch": {"ours": 5.5, "theirs": 5.5, "gradient_error": 2e-6}},
        "notes": {"x-transformers, mHC": "num_residual_streams=4"},
        "provenance": {
            "versions": {"depthroute": "1.0", "jax": "0.10", "hyper-connections": "0.4", "x-transformers": "2.31"},
            "python": "3.11",
            "platform": "Linux",
            "environment": {"GLIBC_TUNABLES": "x=1"},
        },
        "records": peers("run").with_ratios([record("depthroute", "remat"), peer, broken]),
    }


def test_workers_take_turns_forwards_and_backwards_and_the_first_round_is_not_kept(peers, command, tmp_path):
    arms = {peers("arms").Arm("mhc", name, "eager"): command(name) for name in "abc"}
    records = peers("run").measure(arms, 2, lambda _: None)
    assert (tmp_path / "turns").read_text().split() == list("abccbaabc")
    assert [record["implementation"] for record in records] == list("abc")
    for record in records:
        assert (record["params"], len(record["steps_s"])) == (10, 2)
        assert record["step_s"] == min(record["steps_s"]) > 0
        assert record["peak_bytes"] > 2**20


def test_an_arm_that_cannot_start_says_why_and_the_others_are_measured(peers, command):
    arms = {peers("arms").Arm("mhc", name, "eager"): command(name, name) for name in ("broken", "killed", "works")}
    broken, killed, works = peers("run").measure(arms, 1, lambda _: None)
    assert broken["failed"] == "RuntimeError: no compiler found"
    assert killed["failed"] == "ended with exit code 9"
    assert works["step_s"] > 0


def test_a_worker_that_ends_between_turns_is_noticed(peers, command):
    protocol = peers("protocol")
    with protocol.Worker(command("a", "dies")) as worker:
        for _ in range(2):  # while it takes its turn, and when it is gone
            with pytest.raises(protocol.WorkerFailed, match="exit code 3"):
                worker.ask()


def test_a_waiting_worker_sleeps_and_says_so(peers, command):
    with peers("protocol").Worker(command("a")) as worker:
        worker.ask()
        assert worker.ask()["idle_cpu_s"] < 0.01


def test_a_loss_that_is_not_finite_is_refused(peers):
    assert peers("protocol").checked(1.5) == {"loss": 1.5}
    with pytest.raises(peers("protocol").UserError, match="loss is nan"):
        peers("protocol").checked(float("nan"))


def test_ratios_are_of_fastest_steps_and_of_peaks_to_both_of_ours(peers, record):
    ours = [record("depthroute", "no remat", 0.3, 300), record("depthroute", "remat", 0.4, 200)]
    done = peers("run").with_ratios([*ours, record("PyTorch", "eager", 0.8, 400)])
    assert done[2]["time_ratio"] == pytest.approx({"no remat": 0.375, "remat": 0.5})
    assert done[2]["peak_ratio"] == pytest.approx({"no remat": 0.75, "remat": 0.5})
    assert "time_ratio" not in done[0]


def test_a_busy_machine_and_workers_that_do_not_sleep_are_told(peers, record):
    disturbance = peers("run").disturbance
    assert disturbance([record("PyTorch", "eager")]) is None
    assert "lost a core 500 times a second" in disturbance([record("PyTorch", "eager", 0.1, preemptions=100)])
    assert "used 0.30 s of CPU in 0.60 s" in disturbance([record("PyTorch", "eager", idle_cpu_s=0.1)])


def test_the_page_shows_every_arm_and_why_one_does_not_work(peers, document):
    page = peers("table").page(document)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| mhc")]
    assert rows == [
        ["mhc", "depthroute", "1.0", "remat", "10.00", "100.0", "200.0", "100", "-", "-"],
        ["mhc", "x-transformers, mHC", "2.31", "eager", "10.00", "200.0", "400.0", "50", "0.50", "2.00"],
        ["mhc", "hyper-connections, mHC", "0.4", "compiled", "-", "-", "-", "-", "-", "-"],
    ]
    assert "hyper-connections, mHC, compiled (mhc) does not work: no compiler" in page
    assert "**REJECTED: peak_flops moved**" in page


def test_a_rejected_run_is_written_and_fails(peers, document, monkeypatch, tmp_path, capsys):
    run = peers("run")
    monkeypatch.setattr(run, "run", lambda routers, overrides, repeats, tick, save: (save(document), document)[1])
    monkeypatch.setattr(sys, "argv", ["run", "--json", "--out", str(tmp_path / "new" / "folder")])
    assert run.main() == 1
    assert (
        json.loads(capsys.readouterr().out) == document == json.loads((tmp_path / "new" / "folder" / "peers.json").read_text())
    )
    assert (tmp_path / "new" / "folder" / "peers.md").read_text() == peers("table").page(document)


def test_every_peer_is_compared_with_a_router_that_has_both_of_our_arms(peers):
    arms = peers("arms")
    for router in arms.ROUTERS:
        found = arms.arms(router)
        assert [arm.variant for arm in found if arm.implementation == arms.OURS] == ["no remat", "remat"]
    named = [arm.implementation for router in arms.ROUTERS for arm in arms.arms(router)]
    assert all(named.count(peer) == 2 for peer in arms.PEERS)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--routers", "atres"], "unknown router 'atres'"),
        (["--repeats", "0"], "repeats is 0"),
        (["--config.model.layer=2"], "unknown config field 'model.layer'"),
        (["--fast"], "unknown argument '--fast'"),
    ],
)
def test_wrong_arguments_are_one_line(peers, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    assert peers("run").main() == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
