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
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from ml_collections import ConfigDict

from depthroute.errors import UserError, bad_value, unknown_name

WHERE = "the config file or --config.{}=..."


@dataclass(frozen=True)
class Range:
    """Allowed numbers, both ends included."""

    low: float
    high: float = float("inf")


Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]
Size = Annotated[float, Range(0.0)]
Fraction = Annotated[float, Range(0.0, 1.0)]
Momentum = Annotated[float, Range(0.0, 0.999999)]


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the decoder. `layers` counts attention + MLP pairs, so there are 2 x layers sublayers."""

    layers: Count
    dim: Count
    heads: Count
    kv_heads: Count
    mlp: Literal["swiglu", "gelu"]
    mlp_dim: Count
    vocab: Annotated[int, Range(2)]
    tied_head: bool
    rope_base: Annotated[float, Range(1.0)]
    embed_std: Size
    stream_eps: Size
    dtype: Literal["float32", "bfloat16"]
    remat: bool


@dataclass(frozen=True)
class RouterConfig:
    """A point in the space of depth routers; `preset` names it, the axes spell it out (see routing/presets.py)."""

    preset: str
    query: Literal["none", "static", "dynamic", "input", "mlp"]
    key: Literal[
        "none",
        "static",
        "static_per_consumer",
        "dynamic_full",
        "dynamic_raw",
        "dynamic_projected",
        "dynamic_sliced",
        "emitted",
        "hybrid",
        "centred",
        "stop_gradient",
        "sinusoidal",
        "recurrent",
    ]
    bias: Literal["none", "learned", "per_channel"]
    bias_start: Literal["zero", "one", "newest", "mean"]
    mixing: Literal["softmax", "sigmoid", "relu", "free"]
    sources: Literal["outputs", "states"]
    source_norm: bool
    memory: Literal["full", "blocks", "window", "dilated", "ends"]
    blocks: Count
    window: Count
    dilation: Count
    period: Count
    ways: Literal["one", "kv", "qkv", "qkvr"]
    heads: Count
    placement: Literal["replace", "add"]
    sites: Literal["sublayer", "layer"]
    rank: Count
    query_input: Literal["newest", "mean", "embedding"]
    key_gain: bool
    key_eps: Size
    key_mean_rate: Fraction
    skip_scale: Size
    skip_fraction: Fraction
    stages: Count
    value_share: Fraction
    read: Literal["none", "static", "dynamic"]
    carry: Literal["none", "static", "dynamic"]
    write: Literal["none", "static", "dynamic"]
    carry_form: Literal["free", "identity", "sinkhorn", "permutations", "kronecker", "orthogonal"]
    split_width: bool
    squash: bool
    streams: Count
    stream_index: Literal["sublayer", "layer"]
    stream_start: Literal["one_hot", "random_maps"]
    stream_readout: Literal["sum", "learned"]
    sinkhorn_iterations: Count
    lr_multiplier: Size
    lr_trials: CountOrZero
    lr_tuned: bool
    weight_decay: Size


@dataclass(frozen=True)
class DataConfig:
    """What is read and how it is cut into sequences."""

    source: Literal["embedded", "text", "bin"]
    files: str
    tokenizer: str
    seq_len: Count
    batch: Count


@dataclass(frozen=True)
class TrainConfig:
    """Optimizer, schedule and how often things happen (in steps)."""

    steps: Count
    optimizer: Literal["adamw", "muon"]
    lr: Size
    schedule: Literal["cosine", "wsd"]
    warmup: CountOrZero
    decay: CountOrZero
    final_lr: Fraction
    beta1: Momentum
    beta2: Momentum
    adam_eps: Size
    weight_decay: Size
    clip_norm: Annotated[float, Range(1e-9)]
    z_loss: Size
    accumulate: Count
    eval_split: Literal["tune", "val"]
    eval_every: Count
    eval_sequences: Count
    log_every: Count
    checkpoint_every: Count
    keep_checkpoints: Count


@dataclass(frozen=True)
class EngineConfig:
    """How depth is run: `buffer` scans over layers with the history in one array, `list` is the unrolled reference."""

    history: Literal["buffer", "list"]


@dataclass(frozen=True)
class ParallelConfig:
    """Devices used: `data` x `fsdp`. Both shard the batch; `fsdp` also shards parameters and optimizer state."""

    strategy: Literal["jit", "pmap"]
    data: Count
    fsdp: Count


@dataclass(frozen=True)
class Config:
    """Everything that determines a run."""

    arm: str
    seed: Annotated[int, Range(0, 2**32 - 1)]
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
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"config file {str(path)!r} is not valid Python ({error.msg}, line {error.lineno}); mend it") from error
    if not callable(getattr(module, "get_config", None)):
        raise UserError(f"config file {str(path)!r} defines no get_config(arg); see configs/base.py for the form")
    return module


def load_file(spec: str | Path) -> tuple[ConfigDict, ModuleType]:
    """Loads ``FILE`` or ``FILE:arg`` and returns its locked ConfigDict and the module it came from."""
    path, _, arg = str(spec).partition(":")
    module = load_module(path)
    config = module.get_config(arg)
    if not isinstance(config, ConfigDict):
        raise bad_value("result of get_config", type(config).__name__, "an ml_collections.ConfigDict", path)
    return config.lock(), module


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
    hints = get_type_hints(cls, include_extras=True)
    for name in nested:
        if name not in hints:
            raise unknown_name("config field", prefix + str(name), [prefix + field for field in hints], "the config file")
    values = {}
    for name, hint in hints.items():
        full = prefix + name
        if name not in nested:
            raise UserError(f"config field {full!r} is missing; every field must be visible; add it to the config file")
        is_section = dataclasses.is_dataclass(hint)
        values[name] = _build(hint, nested[name], full + ".") if is_section else _check_field(full, nested[name], hint)
    return cls(**values)


def _check_field(name: str, value: Any, hint: Any) -> Any:
    where = WHERE.format(name)
    if get_origin(hint) is Literal:
        kind, names, limits = str, get_args(hint), None
    else:
        kind, limits = get_args(hint) if get_origin(hint) is Annotated else (hint, None)
        names = None
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise bad_value(name, value, f"a value of type {kind.__name__}", where)
    if names is not None and value not in names:
        raise unknown_name(name, value, names, where)
    if limits is not None and not limits.low <= value <= limits.high:
        allowed = f"at least {limits.low}" if limits.high == float("inf") else f"{limits.low} to {limits.high}"
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
