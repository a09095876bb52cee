"""Parent and workers: a worker prepares an arm, says so in one line of JSON, and then answers every line it gets with one turn.

A waiting worker is blocked on its standard input. Each answer says how much CPU time was used while waiting, and how often the
system took a core away during the turn, so that a measurement on a busy machine can be told. What a worker's libraries print
goes to the standard error.
"""

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from depthroute.errors import UserError

REPOSITORY = Path(__file__).parents[2]
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
Facts = dict[str, Any]
Turn = Callable[[], Facts]


class WorkerFailed(UserError):
    """A worker could not prepare its arm, or ended."""


def serve(start: Callable[[], tuple[Facts, Turn]]) -> None:
    """The worker's side: prepares with `start`, says the facts it returns, and takes a turn for every line that comes in.

    Every answer is the turn's own facts, its `step_s` and `preemptions`, `idle_cpu_s` of waiting before it, and `peak_bytes`
    resident so far. An exception is said as `error` and ends the worker.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        try:
            facts, turn = start()
            print(json.dumps(facts), file=answers)
            slept = time.process_time()
            for _ in sys.stdin:
                idle_cpu_s = time.process_time() - slept
                print(json.dumps({**_timed(turn), "idle_cpu_s": idle_cpu_s}), file=answers)
                slept = time.process_time()
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {first_line(str(error))}"}), file=answers)


def _timed(turn: Turn) -> Facts:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    facts = turn()
    step_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    preemptions = after.ru_nivcsw - before.ru_nivcsw
    return {**facts, "step_s": step_s, "preemptions": preemptions, "peak_bytes": after.ru_maxrss * RSS_UNIT}


def checked(loss: float) -> Facts:
    """A turn's facts; refuses a loss that is not finite, since such a step may take another time."""
    if not math.isfinite(loss):
        raise UserError(f"loss is {loss} in the benchmark")
    return {"loss": loss}


def first_line(text: str) -> str:
    """The first line that is not blank, or nothing."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


class Worker:
    """The parent's side of one worker; a context manager that ends it. `facts` is what it said when it was ready."""

    def __init__(self, command: Sequence[str]):
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=REPOSITORY, bufsize=0, stdin=pipe, stdout=pipe)
        try:
            self.facts = self._hear()
        except WorkerFailed:
            self.__exit__()
            raise

    def ask(self) -> Facts:
        """One turn. Raises WorkerFailed if the worker says so, or ends."""
        assert self._process.stdin
        try:
            self._process.stdin.write(b"turn\n")
        except BrokenPipeError:
            pass  # it ended while it was waiting; hearing nothing says so
        return self._hear()

    def _hear(self) -> Facts:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"ended with exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes the pipes, which ends the worker, and waits
            pass
