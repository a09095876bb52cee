"""The training loop: from a config and a corpus to a finished run, resumable at any moment."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from depthroute.config import Config
from depthroute.data.batches import Batches, held_out
from depthroute.data.corpus import Corpus
from depthroute.errors import UserError
from depthroute.training.checkpoint import Checkpoints
from depthroute.training.parallel import Programs, make_programs
from depthroute.training.state import TrainState, params_sha256

ROUTING_SEQUENCES = 32  # enough for a mean over thousands of positions


class Observer(Protocol):
    """What the loop tells the outside world."""

    def metrics(self, record: dict[str, Any]) -> None:
        """A line for the metrics file."""

    def progress(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Called after every step."""


class Interrupted(Exception):
    """The loop was asked to stop, and has saved."""


class Diverged(UserError):
    """Loss or gradient is not finite."""


@dataclass(frozen=True)
class Outcome:
    """What a finished run found: loss in nats per token, bits per byte (None where bytes per token are unknown)."""

    val_loss: float
    bits_per_byte: float | None
    eval_sequences: int
    eval_tokens: int
    tokens_per_s: float
    params_sha256: str
    routing_MS: np.ndarray | None
    routing_sequences: int


@dataclass
class Evaluation:
    """Fixed held-out sequences and the programs that score them."""

    programs: Programs
    sequences_NT: np.ndarray
    batch: int
    token_bytes_V: np.ndarray | None

    def loss(self, params: Any) -> float:
        """Mean negative log-likelihood in nats per token."""
        nll_N = np.concatenate([self.programs.sequence_nll(params, rows) for rows in self._batches(self.sequences_NT)])
        return float(nll_N[: len(self.sequences_NT)].sum(dtype=np.float64)) / self.num_tokens

    def bits_per_byte(self, loss: float) -> float | None:
        """The loss spread over the bytes that the predicted tokens stand for, in bits."""
        if self.token_bytes_V is None:
            return None
        num_bytes = int(self.token_bytes_V[self.sequences_NT[:, 1:]].sum())
        return loss * self.num_tokens / (num_bytes * math.log(2))

    def routing(self, params: Any) -> np.ndarray | None:
        """Mean routing weights [M, S] over `routing_sequences` sequences, or None for a router without weights."""
        rows = self.sequences_NT[: self.routing_sequences]
        maps = [self.programs.sequence_routing(params, batch) for batch in self._batches(rows)]
        found = [np.asarray(weights_BMS) for weights_BMS in maps if weights_BMS is not None]
        return np.mean(np.concatenate(found)[: len(rows)], axis=0) if found else None

    def of_router(self, params: Any) -> dict[str, float]:
        """What is measured of the router on the first batch: the error of a Sinkhorn carry, if there is one."""
        error = self.programs.carry_error(params, self._batches(self.sequences_NT)[0])
        return {} if error is None else {"carry_error": float(error)}

    @property
    def routing_sequences(self) -> int:
        """How many sequences the routing is averaged over."""
        return min(ROUTING_SEQUENCES, len(self.sequences_NT))

    @property
    def num_tokens(self) -> int:
        """How many predictions are scored."""
        return self.sequences_NT[:, 1:].size

    def _batches(self, sequences_NT: np.ndarray) -> list[np.ndarray]:
        """Whole batches, the last one filled up with rows from the start."""
        count = -(-len(sequences_NT) // self.batch)
        return np.split(np.resize(sequences_NT, (count * self.batch, sequences_NT.shape[1])), count)


def train(config: Config, corpus: Corpus, folder: Path, observer: Observer, should_stop: Callable[[], bool]) -> Outcome:
    """Trains from the newest checkpoint in `folder`, or from the seed, to the last step.

    Order within a step, the same after a resume: stop if asked, batch, update, report the previous step, evaluate, checkpoint.
    Raises Interrupted after saving when `should_stop` says so, Diverged when loss or gradient stop being finite.
    """
    programs = make_programs(config)
    batches = Batches(corpus.split("train"), config.seed, config.data.batch, config.data.seq_len)
    sequences_NT = held_out(corpus.split(config.train.eval_split), config.data.seq_len, config.train.eval_sequences)
    evaluation = Evaluation(programs, sequences_NT, config.data.batch, corpus.token_bytes_V)
    checkpoints = Checkpoints(folder, config.train.keep_checkpoints)
    loop = Loop(config, programs, batches, evaluation, checkpoints, observer)
    try:
        state, first = loop.start()
        return loop.finish(loop.advance(state, first, config.train.steps, should_stop))
    finally:
        checkpoints.close()


@dataclass
class Loop:
    """The loop's parts and what it remembers between steps; `train` puts one together."""

    config: Config
    programs: Programs
    batches: Batches
    evaluation: Evaluation
    checkpoints: Checkpoints
    observer: Observer
    pending: tuple[int, Any] | None = None  # metrics still on the device: step and values
    saved: int = 0  # step of the newest checkpoint, 0 for none
    good: int = 0  # step of the newest checkpoint from which a finite loss has been computed since
    val_loss: float = math.nan
    seconds: float = 0.0  # in updates of this attempt, its first one left out because it compiles
    timed_steps: int = 0

    def start(self) -> tuple[TrainState, int]:
        """The newest checkpoint's state and step, or the initial state and 0."""
        latest = self.checkpoints.latest_step()
        if latest is None:
            return self.programs.init(jax.random.key(self.config.seed)), 0
        self.saved = latest
        return self.programs.all_copies(self.checkpoints.restore(self.programs.abstract)), latest

    def advance(self, state: TrainState, first: int, last: int, should_stop: Callable[[], bool]) -> TrainState:
        """Updates `first` to `last`, with whatever is due in between."""
        train = self.config.train
        for step in range(first, last):
            if should_stop():
                self._save(step, state)
                raise Interrupted(f"stopped at step {step} of {train.steps}; the checkpoint is saved")
            began = time.perf_counter()
            state, metrics = self.programs.step(state, self.programs.put(self.batches.batch(step)))
            self._report()
            self.pending = (step + 1, metrics)
            evaluate, save = self._due(step + 1, train.eval_every), self._due(step + 1, train.checkpoint_every)
            if evaluate or save:
                self._report()
            self._time(began)
            if evaluate:
                self._evaluate(step + 1, state)
            if save:
                self._save(step + 1, state)
        return state

    def finish(self, state: TrainState) -> Outcome:
        """What the run found, from its last state."""
        params = self.programs.one_copy(state).params
        if math.isnan(self.val_loss):  # the process that made the last checkpoint was killed before it wrote the result
            self._evaluate(self.config.train.steps, state)
        return Outcome(
            val_loss=self.val_loss,
            bits_per_byte=self.evaluation.bits_per_byte(self.val_loss),
            eval_sequences=len(self.evaluation.sequences_NT),
            eval_tokens=self.evaluation.num_tokens,
            tokens_per_s=self._tokens_per_s(),
            params_sha256=params_sha256(params),
            routing_MS=self.evaluation.routing(params),
            routing_sequences=self.evaluation.routing_sequences,
        )

    def _due(self, step: int, every: int) -> bool:
        return step % every == 0 or step == self.config.train.steps

    def _report(self) -> None:
        if self.pending is None:
            return
        step, metrics = self.pending
        self.pending = None
        values = {name: float(value) for name, value in metrics.items()}
        for name, value in values.items():
            if not math.isfinite(value):
                raise self._diverged(name, value, step)
        if step > self.saved:
            self.good = self.saved
        if step == 1 or self._due(step, self.config.train.log_every):
            self.observer.metrics({"step": step, "split": "train", **values, **self._counts(step)})
        self.observer.progress(step, values["loss"], self._tokens_per_s())

    def _diverged(self, name: str, value: float, step: int) -> Diverged:
        last = f"the last good checkpoint is step {self.good}" if self.good else "there is no good checkpoint yet"
        return Diverged(f"{name} is {value} at step {step}; {last}; lower train.lr or router.lr_multiplier")

    def _counts(self, step: int) -> dict[str, Any]:
        tokens = step * self.config.data.batch * self.config.data.seq_len
        return {"tokens": tokens, "tokens_per_s": round(self._tokens_per_s(), 1)}

    def _time(self, began: float) -> None:
        if self.timed_steps:
            self.seconds += time.perf_counter() - began
        self.timed_steps += 1

    def _tokens_per_s(self) -> float:
        tokens = (self.timed_steps - 1) * self.config.data.batch * self.config.data.seq_len
        return tokens / self.seconds if self.seconds else 0.0

    def _evaluate(self, step: int, state: TrainState) -> None:
        params = self.programs.one_copy(state).params
        self.val_loss = self.evaluation.loss(params)
        if not math.isfinite(self.val_loss):
            raise self._diverged("evaluation loss", self.val_loss, step)
        split = self.config.train.eval_split
        measured = {"loss": self.val_loss, **self.evaluation.of_router(params)}
        self.observer.metrics({"step": step, "split": split, **measured, **self._counts(step)})

    def _save(self, step: int, state: TrainState) -> None:
        self._report()
        self.checkpoints.save(step, self.programs.one_copy(state))
        self.saved = step
