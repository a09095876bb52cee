"""What is measured: routers by name, at several depths. Plain arithmetic on configs, without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from depthroute.config import Config, overlay, resolve
from depthroute.errors import UserError, bad_value, unknown_name
from depthroute.routing.presets import PRESETS, check, expand

BASELINE = "residual"
VARIANTS: dict[str, dict[str, Any]] = {
    "denseformer_4x5": {
        "router.preset": "denseformer",
        "router.memory": "dilated",
        "router.dilation": 4,
        "router.period": 5,
    },
}
ARMS = {name: {"router.preset": name} for name in PRESETS} | VARIANTS
DEFAULT_ROUTERS = (
    "residual",
    "attnres",
    "qd_ks",
    "qd_kd",
    "qs_ks",
    "attnres_block",
    "denseformer",
    "denseformer_4x5",
    "hyper_dynamic",
    "mhc",
)
ENGINE = {"engine.history": "buffer", "model.remat": True}  # of all arms, unless overridden
OPTIONS = {"router.preset": "--routers", "model.layers": "--layers"}  # fields that options of the command set

Plan = dict[int, dict[str, Config]]


def make_plan(base: ConfigDict, overrides: Mapping[str, Any], routers: Sequence[str], layers: Sequence[int]) -> Plan:
    """The config of every arm at every depth, the baseline first, shallowest depth first; all are checked.

    On top of `base` stand `ENGINE`, then the arm's axes, then `overrides`.
    """
    for name, option in OPTIONS.items():
        if name in overrides:
            raise UserError(f"{name} is given as --config.{name}; the benchmark compares several values; give {option} instead")
    for name in routers:
        if name not in ARMS:
            raise unknown_name("router", name, ARMS, "--routers")
    names = dict.fromkeys((BASELINE, *routers))
    return {depth: {name: _arm(base, overrides, name, depth) for name in names} for depth in sorted(set(layers))}


def _arm(base: ConfigDict, overrides: Mapping[str, Any], name: str, layers: int) -> Config:
    config = resolve(overlay(base, {**ENGINE, **expand(ARMS[name]), "model.layers": layers, "arm": name, **overrides}))
    check(config)
    if config.parallel.strategy != "jit":
        raise bad_value("parallel.strategy", config.parallel.strategy, "'jit' in benchmarks", "--config.parallel.strategy=...")
    return config


def parse_names(text: str) -> tuple[str, ...]:
    """The names in a list like ``a,b,c``."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_layers(text: str) -> tuple[int, ...]:
    """The numbers in a list like ``12,24,48``."""
    names = parse_names(text)
    if not names or not all(name.isascii() and name.isdigit() and int(name) for name in names):
        raise bad_value("layers", text, "positive whole numbers with commas between them, such as 12,24,48", "--layers")
    return tuple(map(int, names))
