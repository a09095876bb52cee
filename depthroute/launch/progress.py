"""What a person sees while a sweep runs: a bar and a line per run on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from depthroute.errors import UserError
from depthroute.runs.folder import read_json

PLAIN_LINE_EVERY_S = 15.0


class Display(Protocol):
    """Shows the runs of a sweep; a context manager."""

    def update(self, active: Sequence[str]) -> None:
        """Called a few times per second with the names of the runs that workers hold."""

    def __enter__(self) -> "Display": ...

    def __exit__(self, *exception: object) -> None: ...


def make_display(workdir: Path, names: Sequence[str]) -> Display:
    """A live display on a terminal, plain lines elsewhere."""
    return _Terminal(workdir, names) if sys.stdout.isatty() else _Lines(workdir, names)


def read_status(folder: Path) -> dict[str, Any]:
    """The run's status, or an empty dictionary while there is none."""
    try:
        return read_json(folder / "status.json")
    except UserError:
        return {}


def line_of(name: str, status: dict[str, Any]) -> str:
    """One line about a running run: step, loss, tokens per second, time left."""
    if status["step"] == 0:
        return f"{name}: compiling"
    eta = f", {status['eta_s']:.0f} s left" if status["eta_s"] is not None else ""
    speed = f"{status['tokens_per_s']:,.0f} tokens/s"
    return f"{name}: step {status['step']}/{status['steps']}, loss {status['loss']:.3f} nats/token, {speed}{eta}"


def end_line(name: str, status: dict[str, Any], folder: Path) -> str:
    """One line about a run that is over."""
    if status["state"] == "done":
        result = read_json(folder / "result.json")
        speed = f"{result['tokens_per_s']:,.0f} tokens/s"
        return f"{name}: done, {result['eval_split']} loss {result['val_loss']:.4f} nats/token, {speed}"
    reason = status["reason"].strip().splitlines()[-1:] or [""]
    return f"{name}: {status['state']}, {reason[0]}"


class _Board:
    """Follows the run folders: which runs are over, which are running."""

    def __init__(self, workdir: Path, names: Sequence[str]):
        self._workdir, self._names = workdir, names
        self._over = {name for name in names if (workdir / name / "result.json").exists()}
        self._started: set[str] = set()

    @property
    def count(self) -> str:
        return f"{len(self._over)}/{len(self._names)} runs done"

    def look(self, active: Sequence[str]) -> tuple[list[str], list[str]]:
        """Lines about runs that ended since the last look, and about those that are running."""
        ended, running = [], []
        for name in self._names:
            if name in self._over:
                continue
            status = read_status(self._workdir / name)
            state = status.get("state")
            if state == "running" and name in active:
                running.append(line_of(name, status))
                self._started.add(name)
            elif state == "done" or (name in self._started and state in ("failed", "interrupted")):
                self._started.discard(name)
                self._over |= {name} if state == "done" else set()
                ended.append(end_line(name, status, self._workdir / name))
        return ended, running


class _Lines:
    def __init__(self, workdir: Path, names: Sequence[str]):
        self._board = _Board(workdir, names)
        self._printed = time.monotonic()

    def update(self, active: Sequence[str]) -> None:
        ended, running = self._board.look(active)
        for line in ended:
            print(f"[{self._board.count}] {line}", flush=True)
        if time.monotonic() - self._printed > PLAIN_LINE_EVERY_S:
            self._printed = time.monotonic()
            for line in running:
                print(f"[{self._board.count}] {line}", flush=True)

    def __enter__(self) -> "_Lines":
        print(self._board.count, flush=True)
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class _Terminal:
    def __init__(self, workdir: Path, names: Sequence[str]):
        self._board = _Board(workdir, names)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns)
        self._task = self._progress.add_task("sweep", total=len(names))
        self._console = Console()
        self._live = Live(self._progress, console=self._console, refresh_per_second=4)

    def update(self, active: Sequence[str]) -> None:
        ended, running = self._board.look(active)
        for line in ended:
            self._console.print(Text(line))
        self._progress.update(self._task, completed=int(self._board.count.partition("/")[0]))
        self._live.update(Group(self._progress, *(Text("  " + line) for line in running)))

    def __enter__(self) -> "_Terminal":
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
