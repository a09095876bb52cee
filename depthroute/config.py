"""Configuration: a Python file's ConfigDict, dotted overrides on it, and the frozen dataclasses the library works with.

A config file defines ``get_config(arg)`` and returns a ConfigDict with every field visible. This module is the only place
where it becomes typed: `resolve` checks each field and returns a hashable `Config`, which is what every other room takes.
Files are code and are only ever loaded because the user named them; run folders hold the resolved values as data.
"""

import ast
import dataclasses
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from depthroute.errors import UserError, bad_value, unknown_name

WHERE = "the config file or --config.{}=..."


def _one_of(*names: str) -> Any:
    return field(metadata={"allowed": names})


def _between(low: float, high: float = float("inf")) -> Any:
    return field(metadata={"low": low, "high": high})


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the decoder. `layers` counts attention + MLP pairs, so there are 2 x layers sublayers."""

    layers: int = _between(1)
    dim: int = _between(1)
    heads: int = _between(1)
    kv_heads: int = _between(1)
    mlp: str = _one_of("swiglu", "gelu")
    mlp_dim: int = _between(1)
    vocab: int = _between(2)
    tied_head: bool
    rope_base: float = _between(1.0)
    embed_std: float = _between(0.0)
    stream_eps: float = _between(0.0)
    dtype: str = _one_of("float32", "bfloat16")
    remat: bool


@dataclass(frozen=True)
class RouterConfig:
    """A point in the space of depth routers; `preset` names it, the axes spell it out (see routing/presets.py)."""

    preset: str
    query: str = _one_of("none", "static", "dynamic")
    key: str = _one_of("none", "static", "static_per_consumer", "dynamic_full", "dynamic_projected", "hybrid")
    bias: str = _one_of("none", "learned")
    mixing: str = _one_of("softmax", "sigmoid", "free")
    sources: str = _one_of("outputs", "states")
    memory: str = _one_of("full", "blocks")
    blocks: int = _between(1)
    sites: str = _one_of("sublayer", "layer")
    rank: int = _between(1)
    query_input: str = _one_of("newest", "mean", "embedding")
    key_gain: bool
    key_eps: float = _between(0.0)
    lr_multiplier: float = _between(0.0)
    lr_trials: int = _between(0)
    lr_tuned: bool
    weight_decay: float = _between(0.0)


@dataclass(frozen=True)
class DataConfig:
    """What is read and how it is cut into sequences."""

    source: str = _one_of("embedded", "text", "bin")
    files: str
    tokenizer: str
    seq_len: int = _between(1)
    batch: int = _between(1)


@dataclass(frozen=True)
class TrainConfig:
    """Optimizer, schedule and how often things happen (in steps)."""

    steps: int = _between(1)
    optimizer: str = _one_of("adamw", "muon")
    lr: float = _between(0.0)
    schedule: str = _one_of("cosine", "wsd")
    warmup: int = _between(0)
    decay: int = _between(0)
    final_lr: float = _between(0.0, 1.0)
    beta1: float = _between(0.0, 1.0)
    beta2: float = _between(0.0, 1.0)
    adam_eps: float = _between(0.0)
    weight_decay: float = _between(0.0)
    clip_norm: float = _between(0.0)
    z_loss: float = _between(0.0)
    accumulate: int = _between(1)
    eval_split: str = _one_of("tune", "val")
    eval_every: int = _between(1)
    eval_sequences: int = _between(1)
    log_every: int = _between(1)
    checkpoint_every: int = _between(1)
    keep_checkpoints: int = _between(1)


@dataclass(frozen=True)
class EngineConfig:
    """How the depth history is held. `list` is the reference form."""

    history: str = _one_of("list")


@dataclass(frozen=True)
class ParallelConfig:
    """Devices used: `data` x `fsdp`. Both shard the batch; `fsdp` also shards parameters and optimizer state."""

    strategy: str = _one_of("jit", "pmap")
    data: int = _between(1)
    fsdp: int = _between(1)


@dataclass(frozen=True)
class Config:
    """Everything that determines a run."""

    arm: str
    seed: int = _between(0)
    model: ModelConfig
    router: RouterConfig
    data: DataConfig
    train: TrainConfig
    engine: EngineConfig
    parallel: ParallelConfig


# --- from files and the command line ---------------------------------------------------------------------------------


def load_module(path: str | Path) -> ModuleType:
    """Executes a config file and returns it as a module. Raises UserError if it cannot be read or has no get_config."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"config file {str(path)!r} does not exist; give an existing Python file to --config FILE[:arg]")
    spec = importlib.util.spec_from_file_location(f"depthroute_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"config file {str(path)!r} is not a .py file; give a Python file to --config FILE[:arg]")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"config file {str(path)!r} defines no get_config(arg); see configs/base.py for the form")
    return module


def load_file(spec: str | Path) -> tuple[ConfigDict, ModuleType]:
    """Loads ``FILE`` or ``FILE:arg`` and returns its locked ConfigDict and the module it came from."""
    path, _, arg = str(spec).partition(":")
    module = load_module(path)
    return module.get_config(arg).lock(), module


def parse_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """Turns ``--config.model.dim=64`` arguments into ``{"model.dim": "64"}``. Anything else is refused."""
    overrides = {}
    for argument in arguments:
        match = re.fullmatch(r"--config\.([\w.]+)=(.*)", argument, re.DOTALL)
        if match is None:
            raise UserError(f"unknown argument {argument!r}; settings are given as --config.section.field=value")
        overrides[match[1]] = match[2]
    return overrides


def _literal(text: str, like: object) -> object:
    if isinstance(like, str):
        return text
    word = {"true": "True", "false": "False"}.get(text, text)
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return text


def overlay(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A copy of `config` with flat dotted overrides applied; strings are read as literals of the field's type."""
    config = config.copy_and_resolve_references()
    known = dict(flatten(config.to_dict()))
    for name, value in overrides.items():
        if name not in known:
            section = name.rpartition(".")[0]
            siblings = [field for field in known if field.rpartition(".")[0] == section]
            raise unknown_name("config field", name, siblings or known, "--config.FIELD=... or the sweep")
        like = known[name]
        value = _literal(value, like) if isinstance(value, str) else value
        if isinstance(like, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(like):
            raise bad_value(name, value, f"a value of type {type(like).__name__}", WHERE.format(name))
        config.update_from_flattened_dict({name: value})
    return config.lock()


# --- to typed values and back ----------------------------------------------------------------------------------------


def resolve(config: ConfigDict | Mapping[str, Any]) -> Config:
    """The typed, checked form of a ConfigDict or of the nested dictionary stored in a run folder."""
    nested = config.to_dict() if isinstance(config, ConfigDict) else config
    resolved = _build(Config, nested, "")
    _check_shapes(resolved)
    return resolved


def _build(cls: type, nested: object, prefix: str) -> Any:
    if not isinstance(nested, Mapping):
        raise bad_value(prefix.rstrip("."), nested, "a section with fields", "the config file")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in nested:
        if name not in fields:
            raise unknown_name("config field", prefix + str(name), [prefix + f for f in fields], "the config file")
    values = {}
    for name, spec in fields.items():
        full = prefix + name
        if name not in nested:
            raise UserError(f"config field {full!r} is missing; every field must be visible; add it to the config file")
        if dataclasses.is_dataclass(spec.type):
            values[name] = _build(spec.type, nested[name], full + ".")  # type: ignore[arg-type]
        else:
            values[name] = _check_field(full, nested[name], spec)
    return cls(**values)


def _check_field(name: str, value: Any, spec: dataclasses.Field) -> Any:
    where = WHERE.format(name)
    if spec.type is float and type(value) is int:
        value = float(value)
    if type(value) is not spec.type:
        raise bad_value(name, value, f"a value of type {getattr(spec.type, '__name__', spec.type)}", where)
    if "allowed" in spec.metadata and value not in spec.metadata["allowed"]:
        raise unknown_name(name, value, spec.metadata["allowed"], where)
    if "low" in spec.metadata and not spec.metadata["low"] <= value <= spec.metadata["high"]:
        low, high = spec.metadata["low"], spec.metadata["high"]
        allowed = f"at least {low}" if high == float("inf") else f"{low} to {high}"
        raise bad_value(name, value, allowed, where)
    return value


def _check_shapes(c: Config) -> None:
    m, p, t = c.model, c.parallel, c.train
    if m.dim % m.heads:
        raise bad_value("model.heads", m.heads, f"a divisor of model.dim={m.dim}", WHERE.format("model.heads"))
    if m.dim // m.heads % 2:
        allowed = f"a number that leaves an even head width (RoPE turns pairs); model.dim={m.dim}"
        raise bad_value("model.heads", m.heads, allowed, WHERE.format("model.heads"))
    if m.heads % m.kv_heads:
        raise bad_value("model.kv_heads", m.kv_heads, f"a divisor of model.heads={m.heads}", WHERE.format("model.kv_heads"))
    if t.warmup + t.decay > t.steps:
        allowed = f"warmup + decay of at most train.steps={t.steps}"
        raise bad_value("train.warmup", t.warmup, allowed, WHERE.format("train.warmup"))
    shards = t.accumulate * p.data * p.fsdp
    if c.data.batch % shards:
        allowed = f"a multiple of train.accumulate x parallel.data x parallel.fsdp = {shards}"
        raise bad_value("data.batch", c.data.batch, allowed, WHERE.format("data.batch"))
    if p.strategy == "pmap" and p.fsdp != 1:
        raise bad_value("parallel.fsdp", p.fsdp, "1 with parallel.strategy='pmap'", WHERE.format("parallel.fsdp"))


def to_dict(config: Config) -> dict[str, Any]:
    """Nested plain dictionary, as stored in a run folder; `resolve` is its inverse."""
    return dataclasses.asdict(config)


def flatten(nested: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) for every leaf of a nested dictionary."""
    for name, value in nested.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def program_key(config: Config) -> Config:
    """`config` without the fields that change no compiled program: runs that agree in it compile once."""
    router = dataclasses.replace(config.router, lr_trials=0, lr_tuned=False)
    return dataclasses.replace(config, arm="", seed=0, router=router)


def differences(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted names of the fields in which two configs differ, with both values."""
    flat_a, flat_b = dict(flatten(to_dict(a))), dict(flatten(to_dict(b)))
    return {name: (flat_a[name], flat_b[name]) for name in flat_a if flat_a[name] != flat_b[name]}
