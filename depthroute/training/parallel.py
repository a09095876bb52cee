"""Devices: the mesh, where arrays live on it, and the compiled programs of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from depthroute.config import Config, program_key
from depthroute.errors import bad_value
from depthroute.model.transformer import Model, build
from depthroute.training import step as step_lib
from depthroute.training.optimizer import make_optimizer
from depthroute.training.state import TrainState


def make_mesh(data: int, fsdp: int) -> Mesh:
    """A mesh with axes ``data`` and ``fsdp`` over the first data x fsdp devices; the compiler places what is not stated."""
    found = jax.device_count()
    if data * fsdp > found:
        allowed = f"data x fsdp of at most the {found} devices found"
        raise bad_value("parallel.data", data, allowed, "the config file or --config.parallel.data=...")
    devices = jax.devices()[: data * fsdp]
    return jax.make_mesh((data, fsdp), ("data", "fsdp"), (AxisType.Auto,) * 2, devices=devices)


def fsdp_spec(shape: tuple[int, ...], fsdp: int) -> P:
    """Shards the longest axis that `fsdp` divides; replicates when there is none."""
    axes = [axis for axis, size in enumerate(shape) if fsdp > 1 and size % fsdp == 0]
    if not axes:
        return P()
    longest = max(axes, key=lambda axis: shape[axis])
    return P(*("fsdp" if axis == longest else None for axis in range(len(shape))))


@dataclass(frozen=True)
class Programs:
    """The compiled functions of a run. States are placed on devices; `put` places a global batch of token ids [B, T+1]."""

    init: Callable[[jax.Array], TrainState]
    step: Callable[[TrainState, jax.typing.ArrayLike], tuple[TrainState, step_lib.Metrics]]
    sequence_nll: Callable[[Any, jax.typing.ArrayLike], jax.Array]
    sequence_routing: Callable[[Any, jax.typing.ArrayLike], jax.Array | None]
    carry_error: Callable[[Any, jax.typing.ArrayLike], jax.Array | None]
    put: Callable[[np.ndarray], jax.typing.ArrayLike]
    one_copy: Callable[[TrainState], TrainState]
    all_copies: Callable[[TrainState], TrainState]
    abstract: TrainState


def make_programs(config: Config) -> Programs:
    """The programs of `config`; runs that differ in seed or name alone share them, and so compile once."""
    return _make_programs(program_key(config))


@lru_cache(maxsize=8)
def _make_programs(config: Config) -> Programs:
    return STRATEGIES[config.parallel.strategy](config, build(config))


def _jit_programs(config: Config, model: Model) -> Programs:
    parallel = config.parallel
    mesh = make_mesh(parallel.data, parallel.fsdp)
    optimizer = make_optimizer(config)
    init = partial(step_lib.init_state, model, optimizer)
    shapes = jax.eval_shape(init, jax.random.key(0))
    placed = jax.tree.map(lambda x: NamedSharding(mesh, fsdp_spec(x.shape, parallel.fsdp)), shapes)
    batch = NamedSharding(mesh, P(("data", "fsdp")))
    train_step = step_lib.make_train_step(model, optimizer, average=lambda x: x)
    abstract = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, placed)
    return Programs(
        init=jax.jit(init, out_shardings=placed),
        step=jax.jit(train_step, in_shardings=(placed, batch), out_shardings=(placed, None), donate_argnums=0),
        sequence_nll=jax.jit(partial(step_lib.sequence_nll, model), in_shardings=(placed.params, batch)),
        sequence_routing=jax.jit(partial(step_lib.sequence_routing, model), in_shardings=(placed.params, batch)),
        carry_error=jax.jit(partial(step_lib.carry_error, model), in_shardings=(placed.params, batch)),
        put=lambda tokens_BT: jax.device_put(tokens_BT, batch),
        one_copy=lambda state: state,
        all_copies=lambda state: state,
        abstract=abstract,
    )


def _pmap_programs(config: Config, model: Model) -> Programs:
    """Plain data parallelism: every device holds a copy of the state and a share of the batch."""
    count = config.parallel.data
    devices = list(make_mesh(count, 1).devices.flat)
    optimizer = make_optimizer(config)
    init = jax.jit(partial(step_lib.init_state, model, optimizer))
    train_step = step_lib.make_train_step(model, optimizer, average=partial(jax.lax.pmean, axis_name="data"))
    copy_each = jax.pmap(lambda state, _: state, in_axes=(None, 0), devices=devices)

    def replicate(state: TrainState) -> TrainState:
        return copy_each(state, np.arange(count))

    place = jax.sharding.SingleDeviceSharding(devices[0])
    shapes = jax.eval_shape(init, jax.random.key(0))
    return Programs(
        init=lambda key: replicate(init(key)),
        step=_first_of_each(jax.pmap(train_step, axis_name="data", devices=devices, donate_argnums=0)),
        sequence_nll=jax.jit(partial(step_lib.sequence_nll, model)),
        sequence_routing=jax.jit(partial(step_lib.sequence_routing, model)),
        carry_error=jax.jit(partial(step_lib.carry_error, model)),
        put=lambda tokens_BT: tokens_BT.reshape(count, -1, tokens_BT.shape[-1]),
        one_copy=lambda state: jax.tree.map(lambda x: x[0], state),
        all_copies=replicate,
        abstract=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes),
    )


def _first_of_each(step: Callable) -> Callable:
    def run(state: TrainState, tokens: jax.Array) -> tuple[TrainState, step_lib.Metrics]:
        state, metrics = step(state, tokens)
        return state, {name: value[0] for name, value in metrics.items()}

    return run


STRATEGIES = {"jit": _jit_programs, "pmap": _pmap_programs}
