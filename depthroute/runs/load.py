"""Opening a run for analysis: its config, its parameters, and what its router does with given tokens."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from depthroute.config import Config, resolve
from depthroute.errors import UserError
from depthroute.model.depth import Trace
from depthroute.model.transformer import Model, build
from depthroute.runs.folder import read_json
from depthroute.training.checkpoint import Checkpoints
from depthroute.training.optimizer import make_optimizer
from depthroute.training.step import init_state


@dataclass(frozen=True)
class LoadedRun:
    """A run as it was at its newest checkpoint."""

    path: Path
    config: Config
    step: int
    params: Any

    @cached_property
    def model(self) -> Model:
        """The run's model."""
        return build(self.config)

    def trace(self, tokens_BT: np.ndarray) -> tuple[jax.Array, Trace | None]:
        """Logits [B, T, V] of the tokens, and the scores and weights of every consumer (None without a router's weights)."""
        return jax.jit(self.model.apply, static_argnames="trace")(self.params, tokens_BT, trace=True)


def load_run(path: str | Path) -> LoadedRun:
    """Reads a run folder; nothing in it is executed. Raises UserError if it has no config or no checkpoint."""
    path = Path(path)
    config = resolve(read_json(path / "config.json"))
    no_checkpoint = UserError(f"run folder {str(path)!r} has no checkpoint; train it with `depthroute train --workdir {path}`")
    if not (path / "checkpoints").is_dir():
        raise no_checkpoint
    checkpoints = Checkpoints(path / "checkpoints", config.train.keep_checkpoints, read_only=True)
    try:
        step = checkpoints.latest_step()
        if step is None:
            raise no_checkpoint
        place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shapes = jax.eval_shape(lambda: init_state(build(config), make_optimizer(config), jax.random.key(0)))
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)
        return LoadedRun(path, config, step, checkpoints.restore(abstract).params)
    finally:
        checkpoints.close()
