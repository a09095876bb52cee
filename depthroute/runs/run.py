"""One run from start to finish in its folder. With load.py the only module of this room that imports JAX."""

import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from depthroute.config import Config
from depthroute.data import corpus as corpus_lib
from depthroute.errors import UserError
from depthroute.model.counts import num_params, training_flops
from depthroute.routing.counts import router_params
from depthroute.routing.topology import consumer_names, source_names, visible_sources
from depthroute.runs import provenance
from depthroute.runs.folder import EXIT_REQUEUE, RunFolder, Status, has_begun, read_json
from depthroute.runs.metrics import MetricsFile, read
from depthroute.training.loop import Interrupted, Outcome, train

LINE_EVERY_S = 5.0


class StopRequest:
    """Turns the first SIGTERM or Ctrl-C into a request to save and stop; a second one ends the process at once.

    With `parent`, the death of that process is such a request too.
    """

    def __init__(self, parent: int | None = None) -> None:
        self.asked = False
        self._parent = parent
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True
        signal.signal(number, signal.SIG_DFL)

    def __call__(self) -> bool:
        return self.asked or (self._parent is not None and os.getppid() != self._parent)


class Recorder:
    """The loop's observer: metrics file, status file, and a plain line now and then."""

    def __init__(self, folder: RunFolder, status: Status, config: Config, quiet: bool):
        self._metrics = MetricsFile(folder.path / "metrics.jsonl")
        self._status, self._config, self._quiet = status, config, quiet
        self._printed = time.monotonic()

    def metrics(self, record: dict[str, Any]) -> None:
        """Appends to metrics.jsonl."""
        self._metrics.write({**record, "attempt": self._status.attempt, "time": round(time.time(), 3)})
        if record["split"] != "train":
            self._print(f"step {record['step']}: {record['split']} loss {record['loss']:.4f} nats/token")

    def progress(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Keeps status.json fresh."""
        train, data = self._config.train, self._config.data
        left = (train.steps - step) * data.batch * data.seq_len
        eta = left / tokens_per_s if tokens_per_s else None
        self._status.tick(step=step, loss=loss, tokens_per_s=tokens_per_s, eta_s=eta)
        if time.monotonic() - self._printed > LINE_EVERY_S:
            self._print(
                f"step {step}/{train.steps}: loss {loss:.4f} nats/token, {tokens_per_s:,.0f} tokens/s"
                + (f", {eta:.0f} s left" if eta is not None else "")
            )

    def close(self) -> None:
        """Closes metrics.jsonl."""
        self._metrics.close()

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        if not self._quiet:
            print(line, flush=True)


def execute(config: Config, workdir: Path, stop: StopRequest, quiet: bool = False) -> int:
    """Runs `config` in `workdir`, going on from where an earlier attempt stopped. Returns the process' exit code.

    0: done, or was done already. 75: stopped on request, saved; run the same command again. Errors are raised after their
    reason is written to status.json.
    """
    with RunFolder(workdir, config) as folder:
        if folder.finished():
            return 0
        status = Status(folder, config.train.steps)
        recorder = Recorder(folder, status, config, quiet)
        try:
            corpus = corpus_lib.load(config.data, config.model.vocab)
            _check_data(folder.path, corpus.fingerprint)
            devices = [f"{device.platform}:{device.device_kind}" for device in jax.devices()]
            folder.write("provenance.json", provenance.collect(corpus.fingerprint, corpus.description, devices))
            outcome = train(config, corpus, workdir / "checkpoints", recorder, stop)
            _write_results(folder, config, outcome, corpus.fingerprint)
            status.update(state="done", step=config.train.steps, eta_s=0.0)
        except Interrupted as interruption:
            status.update(state="interrupted", reason=str(interruption))
            if not quiet:
                print(f"{interruption}; run the same command to go on", file=sys.stderr)
            return EXIT_REQUEUE
        except BaseException as error:
            reason = str(error) if isinstance(error, UserError) else traceback.format_exc()
            status.update(state="failed", reason=reason)
            raise
        finally:
            recorder.close()
        return 0


def _check_data(folder: Path, fingerprint: str) -> None:
    path = folder / "provenance.json"
    if has_begun(folder) and path.exists() and read_json(path)["data_fingerprint"] != fingerprint:
        raise UserError(
            f"data of run folder {str(folder)!r} has changed: its fingerprint was {read_json(path)['data_fingerprint']}, "
            f"now {fingerprint}; restore the data, or give another --workdir"
        )


def _write_results(folder: RunFolder, config: Config, outcome: Outcome, fingerprint: str) -> None:
    if outcome.routing_MS is not None:
        folder.write("routing.json", _routing(config, outcome))
    fields = {name: value for name, value in asdict(outcome).items() if not name.startswith("routing")}
    tokens = config.train.steps * config.data.batch * config.data.seq_len
    result = {
        "arm": config.arm,
        "seed": config.seed,
        **fields,
        "eval_split": config.train.eval_split,
        "steps": config.train.steps,
        "tokens": tokens,
        "params": num_params(config),
        "router_params": router_params(config),
        "flops_per_token": training_flops(config),
        "tokens_per_s": outcome.tokens_per_s or _last_speed(folder.path),
        "data_fingerprint": fingerprint,
    }
    folder.write("result.json", result)


def _last_speed(folder: Path) -> float:
    """Speed of the last attempt that trained, for one that only had the result left to write."""
    speeds = [record["tokens_per_s"] for record in read(folder / "metrics.jsonl")]
    return next((speed for speed in reversed(speeds) if speed), 0.0)


def _routing(config: Config, outcome: Outcome) -> dict[str, Any]:
    consumers = consumer_names(config)
    weights = outcome.routing_MS.tolist()  # type: ignore[union-attr]
    for row, visible in zip(weights, visible_sources(config), strict=True):
        row[:] = [weight if source in visible else None for source, weight in enumerate(row)]
    return {
        "weights_MS": weights,
        "consumers": consumers,
        "kinds": [name.split()[0] for name in consumers],
        "sources": source_names(config),
        "sequences": outcome.routing_sequences,
        "split": config.train.eval_split,
    }
