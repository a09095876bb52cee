"""What the training loop costs over the bare compiled step: data, metrics, logging and checkpoints every 100 steps.

    python benchmarks/loop_overhead.py

The target is a ratio of at most 1.03 at the shape of configs/base.py (D=256, 12 layers, T=256, batch 4, float32, residual).
Stretches of the bare step and of the whole loop take turns in one process; the ratio of the fastest stretch of each counts.
Both advance the same kind of state from the same batches; compilation and evaluation are outside.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from depthroute import config as config_lib
from depthroute.data import corpus as corpus_lib
from depthroute.data.batches import Batches, held_out
from depthroute.runs.folder import RunFolder, Status
from depthroute.runs.run import Recorder
from depthroute.training.checkpoint import Checkpoints
from depthroute.training.loop import Evaluation, Loop
from depthroute.training.parallel import make_programs

BASE = Path(__file__).parents[1] / "configs" / "base.py"


def bare(programs, state, tokens_BT, steps):
    """Seconds of `steps` updates on one batch that is on the device already, and the state after them."""
    began = time.perf_counter()
    for _ in range(steps):
        state, _ = programs.step(state, tokens_BT)
    jax.block_until_ready(state)
    return time.perf_counter() - began, state


def main() -> None:
    """Prints seconds per step of both arms and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps per stretch; a checkpoint ends each stretch of the loop")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    overrides = {"train.checkpoint_every": options.steps, "train.steps": 10**6, "train.eval_every": 10**6}
    config = config_lib.resolve(config_lib.overlay(config_lib.load_file(BASE)[0], overrides))
    programs = make_programs(config)
    corpus = corpus_lib.load(config.data, config.model.vocab)
    batches = Batches(corpus.split("train"), config.seed, config.data.batch, config.data.seq_len)
    bare_state = programs.init(jax.random.key(0))
    tokens_BT = programs.put(batches.batch(0))
    _, bare_state = bare(programs, bare_state, tokens_BT, 3)

    with tempfile.TemporaryDirectory() as folder, RunFolder(Path(folder), config) as run_folder:
        recorder = Recorder(run_folder, Status(run_folder, config.train.steps), config, quiet=True)
        checkpoints = Checkpoints(Path(folder) / "checkpoints", config.train.keep_checkpoints)
        evaluation = Evaluation(programs, held_out(corpus.split("val"), config.data.seq_len, 1), config.data.batch, None)
        loop = Loop(config, programs, batches, evaluation, checkpoints, recorder)
        loop_state = loop.advance(programs.init(jax.random.key(0)), 0, 3, lambda: False)
        seconds = {"bare": [], "loop": []}
        for repeat in range(options.repeats):
            elapsed, bare_state = bare(programs, bare_state, tokens_BT, options.steps)
            seconds["bare"].append(elapsed)
            began = time.perf_counter()
            first = repeat * options.steps if repeat else 3
            loop_state = loop.advance(loop_state, first, (repeat + 1) * options.steps, lambda: False)
            jax.block_until_ready(loop_state)
            seconds["loop"].append((time.perf_counter() - began) * options.steps / ((repeat + 1) * options.steps - first))
            print(f"stretch {repeat + 1}: bare {seconds['bare'][-1]:.2f} s, loop {seconds['loop'][-1]:.2f} s", flush=True)
        checkpoints.close()
    fastest = {arm: np.min(times) / options.steps for arm, times in seconds.items()}
    print(
        f"per step: bare {fastest['bare']:.4f} s, loop {fastest['loop']:.4f} s, ratio {fastest['loop'] / fastest['bare']:.4f}"
    )


if __name__ == "__main__":
    main()
