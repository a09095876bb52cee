"""Sweeps: which runs answer a question, as flat dotted overrides on one config.

A config file defines `sweep()` beside `get_config`; it returns points, dictionaries such as ``{"arm": "qs_ks", "seed": 0,
"router.preset": "qs_ks"}``, most easily made with the functions here:

    product(chain(fixed({"arm": "residual"}), fixed({"arm": "qs_ks", "router.preset": "qs_ks"})), grid("seed", range(3)))
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from depthroute.config import Config, differences, overlay, resolve
from depthroute.errors import UserError, bad_value, unknown_name
from depthroute.routing import presets
from depthroute.runs.folder import keep_config

Points = list[dict[str, Any]]

NAME = re.compile(r"(?![.-])[A-Za-z0-9._-]{1,100}")


# --- algebra ---------------------------------------------------------------------------------------------------------


def fixed(overrides: Mapping[str, Any]) -> Points:
    """One point."""
    return [dict(overrides)]


def grid(field: str, values: Iterable[Any]) -> Points:
    """One point per value of one field."""
    return [{field: value} for value in values]


def product(*sweeps: Iterable[Mapping[str, Any]]) -> Points:
    """Every combination of one point from each sweep; the last sweep varies fastest. A field set twice must agree."""
    return functools.reduce(lambda left, right: [_merge(a, b) for a in left for b in right], map(list, sweeps), fixed({}))


def zip_(*sweeps: Iterable[Mapping[str, Any]]) -> Points:
    """First point of each sweep together, then the second of each, and so on; all sweeps must be equally long."""
    columns = [list(sweep) for sweep in sweeps]
    if len({len(column) for column in columns}) > 1:
        found = [len(column) for column in columns]
        raise bad_value("the lengths of the sweeps given to zip_", found, "equal lengths", "sweep() of the config file")
    return [functools.reduce(_merge, points, {}) for points in zip(*columns, strict=True)]


def chain(*sweeps: Iterable[Mapping[str, Any]]) -> Points:
    """The points of one sweep after those of another."""
    return [dict(point) for sweep in sweeps for point in sweep]


def where(sweep: Iterable[Mapping[str, Any]], keep: Callable[[Mapping[str, Any]], bool]) -> Points:
    """The points for which `keep(point)` holds."""
    return [dict(point) for point in sweep if keep(point)]


def _merge(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    for field in a.keys() & b.keys():
        if a[field] != b[field]:
            raise bad_value(f"{field} of one sweep point", (a[field], b[field]), "one value", "sweep() of the config file")
    return {**a, **b}


# --- plan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One planned run; `name` is its folder inside the sweep's folder."""

    name: str
    config: Config


@dataclass(frozen=True)
class Sweep:
    """A checked plan. `arms` are in row order; `factors` are the config fields that differ between its runs."""

    title: str
    question: str
    note: str
    baseline: str
    arms: tuple[str, ...]
    labels: dict[str, str]
    factors: tuple[str, ...]
    runs: tuple[Run, ...]
    config_file: str


def check_name(name: str) -> str:
    """Returns a run or arm name that is safe as a folder name; anything else is a UserError."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or ".." in name:
        allowed = "1 to 100 letters, digits, '.', '_' or '-', not starting with '.' or '-', without '..'"
        raise bad_value("run name", name, allowed, "the config file (arm) or --config.arm=...")
    return name


def run_name(config: Config) -> str:
    """``<arm>-seed<seed>``, checked."""
    return check_name(f"{config.arm}-seed{config.seed}")


def plan(config: ConfigDict, module: ModuleType) -> Sweep:
    """Expands and checks every run of the config file's `sweep()`, so that nothing starts unless all of it can."""
    if not callable(getattr(module, "sweep", None)):
        raise UserError(f"config file {_file(module)!r} defines no sweep(config); see configs/ablations for the form")
    points = list(module.sweep(config))
    if not points:
        raise UserError(f"sweep() of {_file(module)!r} yields no runs; it must yield at least one dictionary of overrides")
    configs = [resolve(overlay(config, presets.expand(point))) for point in points]
    runs = tuple(Run(run_name(c), c) for c in configs)
    for run in runs:
        presets.check(run.config)
    _check_unique(runs)
    arms = tuple(dict.fromkeys(c.arm for c in configs))
    labels = getattr(module, "LABELS", {})
    return Sweep(
        title=getattr(module, "TITLE", Path(_file(module)).stem),
        question=getattr(module, "QUESTION", ""),
        note=getattr(module, "NOTE", ""),
        baseline=_baseline(module, arms),
        arms=arms,
        labels={arm: labels[arm] if arm in labels else arm for arm in arms},
        factors=factors(configs),
        runs=runs,
        config_file=_file(module),
    )


def factors(configs: Iterable[Config]) -> tuple[str, ...]:
    """Dotted names, sorted, of the fields that are not the same in all configs."""
    first, *others = configs
    return tuple(sorted({field for other in others for field in differences(first, other)}))


def to_json(sweep: Sweep) -> str:
    """The text of `sweep.json`: the plan without the configs, which stand in the run folders."""
    record = {field.name: getattr(sweep, field.name) for field in dataclasses.fields(sweep)}
    record["runs"] = [{"name": run.name, "arm": run.config.arm, "seed": run.config.seed} for run in sweep.runs]
    return json.dumps(record, indent=2) + "\n"


def prepare(sweep: Sweep, workdir: Path) -> None:
    """Writes the plan and every run's config into the sweep's folder. Raises UserError if a run there has another config."""
    for run in sweep.runs:
        keep_config(workdir / run.name, run.config)
    (workdir / "sweep.json").write_text(to_json(sweep))


def _file(module: ModuleType) -> str:
    return os.path.relpath(str(module.__file__))


def _check_unique(runs: Iterable[Run]) -> None:
    seen = set()
    for run in runs:
        if run.name in seen:
            raise bad_value("run name", run.name, "one run per arm and seed", "sweep() of the config file (arm, seed)")
        seen.add(run.name)


def _baseline(module: ModuleType, arms: tuple[str, ...]) -> str:
    if hasattr(module, "BASELINE"):
        if module.BASELINE not in arms:
            raise unknown_name("baseline", module.BASELINE, arms, "BASELINE of the config file")
        return module.BASELINE
    return "residual" if "residual" in arms else arms[0]
