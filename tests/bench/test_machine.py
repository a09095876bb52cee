import jax.numpy as jnp
import pytest

from depthroute.bench import machine
from depthroute.bench.machine import Probe, drift


@pytest.mark.parametrize(
    ("after", "moved"),
    [
        (Probe(100.0, 10.0), None),
        (Probe(114.9, 10.0), None),
        (Probe(86.96, 11.49), None),
        (Probe(115.1, 10.0), "peak_flops"),
        (Probe(100.0, 8.69), "bandwidth"),
    ],
)
def test_a_run_is_rejected_when_the_machine_moved_by_more_than_15_percent(after, moved):
    reason = drift([Probe(100.0, 10.0), after])
    assert reason is None if moved is None else reason.startswith(f"{moved} moved by more than 15%")


def test_a_probe_in_the_middle_counts():
    assert drift([Probe(1e9, 1e9), Probe(2e9, 1e9), Probe(1e9, 1e9)]) == (
        "peak_flops moved by more than 15% during the run (1.0, 2.0, 1.0 GFLOP/s); the machine was not quiet"
    )


def test_the_fastest_stretch_counts_and_calls_follow_each_other(monkeypatch):
    """A clock that says how long each of the stretches took: a first call, then stretches of calls that last STRETCH_S."""
    durations = iter([machine.STRETCH_S / 4] + [8.0] * 3 + [2.0] + [8.0] * (machine.REPEATS - 4))
    now = [0.0]

    def clock():
        now.append(now[-1] + (next(durations) if len(now) % 2 == 0 else 0.0))
        return now[-1]

    monkeypatch.setattr(machine.time, "perf_counter", clock)
    seen = []
    seconds, _ = machine._fastest(lambda x: seen.append(int(x)) or x + 1, jnp.array(0))
    assert seconds == pytest.approx(2.0 / 4)
    assert seen == list(range(2 + 4 * machine.REPEATS))


def test_a_probe_measures_both(plan, monkeypatch):
    monkeypatch.setattr(machine, "TRIAD_ELEMENTS", 1024)
    monkeypatch.setattr(machine, "REPEATS", 1)
    found = machine.Prober(plan()[2]["residual"]).measure()
    assert all(value > 0 for value in found)
