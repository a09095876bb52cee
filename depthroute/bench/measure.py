"""Compiles and times the training steps of all arms at one depth, in turn, in one process."""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from depthroute.config import Config
from depthroute.errors import UserError
from depthroute.training.parallel import Programs, make_programs

WARMUP = 2  # rounds that are not kept
Tick = Callable[[str], None]


class Measured(NamedTuple):
    """Seconds of every step, of lowering and of compiling; bytes of temporary arrays of the compiled step, on one device."""

    steps_s: Sequence[float]
    lower_s: float
    compile_s: float
    temp_bytes: int


def measure(configs: Mapping[str, Config], repeats: int, tick: Tick) -> dict[str, Measured]:
    """Measures the arms `configs`, which share a depth and a batch; `tick` is told before every compilation and round."""
    compiled = {}
    for name, config in configs.items():
        tick(f"compiling {name}")
        compiled[name] = compile_step(config)
    pool = StatePool({name: make_programs(config) for name, config in configs.items()})
    turns = {name: _turn(name, compiled[name].step, pool, random_tokens(config)) for name, config in configs.items()}
    times = interleave(turns, repeats, tick)
    return {
        name: Measured(times[name], c.lower_s, c.compile_s, c.step.memory_analysis().temp_size_in_bytes)
        for name, c in compiled.items()
    }


def random_tokens(config: Config) -> Any:
    """A batch on the device; which tokens it has does not matter to time."""
    shape = (config.data.batch, config.data.seq_len + 1)
    tokens_BT = np.random.default_rng(0).integers(config.model.vocab, size=shape, dtype=np.int32)
    return make_programs(config).put(tokens_BT)


class Compiled(NamedTuple):
    """A compiled training step, and the seconds that lowering and compiling took."""

    step: Any
    lower_s: float
    compile_s: float


def compile_step(config: Config) -> Compiled:
    """Lowers and compiles the training step afresh."""
    programs, tokens_BT = make_programs(config), random_tokens(config)
    jax.clear_caches()
    began = time.perf_counter()
    lowered = programs.step.lower(programs.abstract, tokens_BT)  # type: ignore[attr-defined]
    lowered_at = time.perf_counter()
    return Compiled(lowered.compile(), lowered_at - began, time.perf_counter() - lowered_at)


class StatePool:
    """One training state for all arms: arrays that have path, shape and dtype in common are held once.

    Steps are donated their state, and each passes its arrays on to the next arm that has them. So a deep model needs its
    memory once and not once per arm; values do not matter to time as long as they are finite.
    """

    def __init__(self, programs: Mapping[str, Programs]):
        self._arrays: dict[str, jax.Array] = {}
        self._structures = {name: jax.tree.structure(p.abstract) for name, p in programs.items()}
        self._keys = {name: tuple(_by_key(p.abstract)) for name, p in programs.items()}
        for p in programs.values():
            missing = {key: x.sharding for key, x in _by_key(p.abstract).items() if key not in self._arrays}
            self._arrays |= jax.jit(partial(_init, p, tuple(missing)), out_shardings=missing)(jax.random.key(0))

    def take(self, name: str) -> Any:
        """The state of an arm, for its step to use up."""
        return jax.tree.unflatten(self._structures[name], [self._arrays.pop(key) for key in self._keys[name]])

    def give(self, name: str, state: Any) -> None:
        """Puts the state after a step back."""
        self._arrays |= zip(self._keys[name], jax.tree.leaves(state), strict=True)


def _by_key(state: Any) -> dict[str, Any]:
    return {f"{jax.tree_util.keystr(path)} {x.shape} {x.dtype}": x for path, x in jax.tree.leaves_with_path(state)}


def _init(programs: Programs, keys: Sequence[str], seed: jax.Array) -> dict[str, jax.Array]:
    arrays = _by_key(programs.init(seed))
    return {key: arrays[key] for key in keys}


def _turn(name: str, step: Callable[..., Any], pool: StatePool, tokens_BT: Any) -> Callable[[], float]:
    def turn() -> float:
        state = pool.take(name)
        began = time.perf_counter()
        state, metrics = jax.block_until_ready(step(state, tokens_BT))
        seconds = time.perf_counter() - began
        pool.give(name, state)
        if not math.isfinite(metrics["loss"]):
            raise UserError(
                f"loss of router {name!r} is {float(metrics['loss'])} in the benchmark; lower --config.train.lr=..."
            )
        return seconds

    return turn


def interleave(turns: Mapping[str, Callable[[], float]], repeats: int, tick: Tick) -> dict[str, list[float]]:
    """Seconds of `repeats` turns of every arm after `WARMUP` more. Rounds go over the arms forwards and backwards by turns."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    gc.collect()
    gc.disable()
    try:
        for count in range(WARMUP + repeats):
            tick(f"round {count + 1} of {WARMUP + repeats}")
            for name in reversed(list(turns)) if count % 2 else turns:
                seconds = turns[name]()
                if count >= WARMUP:
                    times[name].append(seconds)
    finally:
        gc.enable()
    return times
