"""The local back end: a pool of worker processes, each with cores of its own."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from depthroute.config import Config, differences, program_key
from depthroute.errors import bad_value
from depthroute.launch.progress import make_display
from depthroute.runs.folder import EXIT_REQUEUE
from depthroute.runs.provenance import visible_cores
from depthroute.runs.sweep import Run, Sweep, prepare

POLL_S = 0.25
# Large pages: a step's temporary arrays are freed and mapped again, and small pages cost a tenth of the time of a CPU step.
MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
ACCELERATORS = ("/dev/nvidia0", "/dev/accel0", "/dev/vfio/0", "/dev/kfd")


@dataclass
class _Worker:
    process: subprocess.Popen
    slot: int
    runs: tuple[Run, ...]


def default_jobs() -> int:
    """One job per core, or a single one where an accelerator would be shared."""
    if any(os.path.exists(device) for device in ACCELERATORS):
        return 1
    return len(visible_cores())


def batches_of_runs(runs: Sequence[Run], jobs: int) -> list[tuple[Run, ...]]:
    """Runs that share a compiled program, together; cut up where there would be fewer batches than jobs."""
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(program_key(run.config), []).append(run)
    parts = -(-jobs // max(len(groups), 1))
    return [tuple(group[i::parts]) for group in groups.values() for i in range(min(parts, len(group)))]


def commands(sweep: Sweep, config_file: str, base: Config, workdir: Path) -> list[str]:
    """For every run that is missing, the `depthroute train` command that is the same as what a worker does."""
    lines = []
    for run in _missing(sweep, workdir):
        settings = [f"--config.{name}={value}" for name, (_, value) in differences(base, run.config).items()]
        command = ["depthroute", "train", "--config", config_file, *settings, "--workdir", str(workdir / run.name)]
        lines.append(shlex.join(command))
    return lines


def check_jobs(jobs: int) -> None:
    """Raises UserError unless every job gets a core."""
    cores = len(visible_cores())
    if not 1 <= jobs <= cores:
        raise bad_value("--jobs", jobs, f"1 to {cores}, the cores of this machine", "--jobs")


def run_sweep(sweep: Sweep, workdir: Path, jobs: int) -> int:
    """Runs what is missing and shows progress. Returns 0 when all runs are done, 75 when interrupted, 1 when any failed.

    Ctrl-C and SIGTERM are passed on to the workers, which save; a second Ctrl-C kills them.
    """
    check_jobs(jobs)
    prepare(sweep, workdir)
    missing = _missing(sweep, workdir)
    if not missing:
        return 0
    waiting = batches_of_runs(missing, jobs)
    free: list[int] = list(range(jobs))
    active: list[_Worker] = []
    interrupted = _Interrupt()
    with make_display(workdir, [run.name for run in sweep.runs]) as display:
        while waiting or active:
            if interrupted.count and waiting:
                waiting = []
            while waiting and free:
                active.append(_start(workdir, waiting.pop(0), free.pop(), jobs))
            interrupted.pass_on([worker.process for worker in active])
            time.sleep(POLL_S)
            for worker in [worker for worker in active if worker.process.poll() is not None]:
                active.remove(worker)
                free.append(worker.slot)
            display.update([run.name for worker in active for run in worker.runs])
    if interrupted.count:
        return EXIT_REQUEUE
    return 0 if not _missing(sweep, workdir) else 1


def _missing(sweep: Sweep, workdir: Path) -> list[Run]:
    return [run for run in sweep.runs if not (workdir / run.name / "result.json").exists()]


def _cores(slot: int, jobs: int) -> list[int]:
    return visible_cores()[slot::jobs]


def _command(workdir: Path, runs: Sequence[Run], cores: Sequence[int]) -> list[str]:
    options = ["--parent", str(os.getpid()), "--cores", ",".join(map(str, cores))]
    return [sys.executable, "-m", "depthroute.launch.worker", *options, *(str(workdir / run.name) for run in runs)]


def _start(workdir: Path, runs: tuple[Run, ...], slot: int, jobs: int) -> _Worker:
    with (workdir / runs[0].name / "worker.log").open("ab") as log:
        # A session of its own, so that a Ctrl-C in the terminal reaches the workers through us, once.
        command = _command(workdir, runs, _cores(slot, jobs))
        environment = {**MEMORY, **os.environ}
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
        )
    return _Worker(process, slot, runs)


class _Interrupt:
    """Counts SIGINT and SIGTERM, and passes the first on as SIGTERM, the second as SIGKILL."""

    def __init__(self) -> None:
        self.count = self._passed = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.count += 1

    def pass_on(self, processes: Sequence[subprocess.Popen]) -> None:
        if self.count > self._passed:
            self._passed = self.count
            for process in processes:
                process.send_signal(signal.SIGTERM if self.count == 1 else signal.SIGKILL)
