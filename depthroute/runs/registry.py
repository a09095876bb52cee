"""Reads what runs left in their folders: the plan of a sweep and, per run, config, result, status and provenance.

A folder may come from a stranger: only JSON is read, symbolic links are not followed, names are checked before they become
paths, and a file that is missing or broken becomes a `problem` of its run, never an exception.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from depthroute.config import Config, resolve
from depthroute.errors import UserError
from depthroute.runs import metrics
from depthroute.runs.sweep import NAME, check_name

INTEGERS = ("steps", "tokens", "params", "router_params", "eval_tokens", "eval_sequences")
NUMBERS = ("val_loss", "flops_per_token", "tokens_per_s", *INTEGERS)
KINDS = ("attention", "mlp", "layer", "read-out")
LARGEST = 1e300  # above it, and for NaN, a number in a file is not usable
STRINGS = ("data_fingerprint", "eval_split")


@dataclass(frozen=True)
class RunRecord:
    """One planned or found run. `result` is None until it is done; `problem` says what is wrong with the folder."""

    name: str
    path: Path
    arm: str
    seed: int
    config: Config | None = None
    result: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    provenance: dict[str, Any] | None = None
    problem: str | None = None


@dataclass(frozen=True)
class SweepRecord:
    """A sweep folder. `arms` are in row order, `factors` are the config fields that its runs vary on purpose."""

    path: Path
    title: str
    question: str
    note: str
    baseline: str
    arms: tuple[str, ...]
    labels: dict[str, str]
    factors: tuple[str, ...]
    runs: tuple[RunRecord, ...]
    config_file: str

    def of_arm(self, arm: str) -> list[RunRecord]:
        """The runs of one arm, in the plan's order."""
        return [run for run in self.runs if run.arm == arm]


@dataclass(frozen=True)
class Routing:
    """Mean routing weight of each consumer on each source over a run's evaluation; None where it may not look."""

    weights_MS: list[list[float | None]]
    consumers: list[str]
    sources: list[str]
    kinds: list[str]


class _Broken(Exception):
    """A file that cannot be used; the message says why in a few words."""


# --- folders ---------------------------------------------------------------------------------------------------------


def load_sweep(folder: str | Path) -> SweepRecord:
    """The sweep in `folder`: by its `sweep.json`, or without one, every run folder that lies directly inside."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"sweep folder {str(folder)!r} does not exist; give a folder made by `depthroute sweep --workdir DIR`")
    if (folder / "sweep.json").exists():
        return _planned(folder)
    return _found(folder)


def _planned(folder: Path) -> SweepRecord:
    try:
        plan = _read_object(folder, "sweep.json")
        texts = {name: _typed(plan, name, str) for name in ("title", "question", "note", "baseline", "config_file")}
        arms = tuple(check_name(arm) for arm in _typed(plan, "arms", list))
        labels = _typed(plan, "labels", dict)
        entries = [(check_name(_typed(r, "name", str)), _typed(r, "arm", str), _typed(r, "seed", int)) for r in plan["runs"]]
        factors = tuple(str(factor) for factor in _typed(plan, "factors", list))
    except (_Broken, KeyError, TypeError) as error:
        raise UserError(f"{str(folder / 'sweep.json')!r} is not a sweep's plan ({error}); rerun `depthroute sweep`") from None
    strays = {texts["baseline"], *(arm for _, arm, _ in entries)} - set(arms)
    if strays or min(len({entry[0] for entry in entries}), len({entry[1:] for entry in entries})) < len(entries):
        why = f"unlisted arms {sorted(strays)}" if strays else "a run is listed twice"
        raise UserError(f"{str(folder / 'sweep.json')!r} is not a sweep's plan ({why}); rerun `depthroute sweep`")
    return SweepRecord(
        path=folder,
        arms=arms,
        labels={arm: str(labels[arm]) if arm in labels else arm for arm in arms},
        factors=factors,
        runs=tuple(_run(folder, name, arm, seed) for name, arm, seed in entries),
        **texts,
    )


def _found(folder: Path) -> SweepRecord:
    names = sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name) and (path / "config.json").is_file())
    runs = [_run(folder, name, "", 0) for name in names]
    if not runs:
        raise UserError(f"{str(folder)!r} holds no run folders; give the folder that was the --workdir of a sweep")
    runs.sort(key=lambda run: (run.arm != "residual", run.arm, run.seed))
    arms = tuple(dict.fromkeys(run.arm for run in runs))
    return SweepRecord(
        path=folder,
        title=folder.resolve().name,
        question="",
        note="",
        baseline="residual" if "residual" in arms else arms[0],
        arms=arms,
        labels={arm: arm for arm in arms},
        factors=("arm", "seed"),
        runs=_once(runs),
        config_file="",
    )


def _once(runs: Iterable[RunRecord]) -> tuple[RunRecord, ...]:
    """The runs, where only the first of an arm and seed keeps its result."""
    first: dict[tuple[str, int], str] = {}
    kept = []
    for run in runs:
        name = first.setdefault((run.arm, run.seed), run.name)
        repeat = replace(run, result=None, problem=f"repeats arm {run.arm!r} seed {run.seed} of {name}")
        kept.append(run if name == run.name or run.problem else repeat)
    return tuple(kept)


def _run(folder: Path, name: str, arm: str, seed: int) -> RunRecord:
    """Reads one run folder; an empty `arm` takes arm and seed from its config, or if that is broken, arm from its name."""
    path = folder / name
    if path.is_symlink():
        return RunRecord(name, path, arm or name, seed, problem="the run folder is a symbolic link")
    if not path.is_dir():
        return RunRecord(name, path, arm, seed)
    files: dict[str, Any] = {}
    problems = []
    readers = {"config": _config, "status": _read_object, "provenance": _read_object, "result": _result}
    for kind, reader in readers.items():
        try:
            files[kind] = reader(path, f"{kind}.json")
        except FileNotFoundError:
            files[kind] = None
        except _Broken as error:
            files[kind] = None
            problems.append(f"{kind}.json {error}")
    if files["config"] is not None:
        found = files["config"].arm, files["config"].seed
        arm, seed = (arm, seed) if arm else found
        if found != (arm, seed):
            problems.append(f"config.json is of arm {found[0]!r} seed {found[1]}")
    elif files["result"] is not None and not problems:
        problems.append("config.json is missing")
    arm = arm or name.partition("-seed")[0]
    if problems:
        files["result"] = None
    return RunRecord(name, path, arm, seed, **files, problem="; ".join(problems) or None)


# --- files -----------------------------------------------------------------------------------------------------------


def read_metrics(run: RunRecord) -> list[dict[str, Any]]:
    """The run's usable metrics (step, split, loss and tokens are there and finite), in file order; [] if it has none."""
    path = run.path / "metrics.jsonl"
    if run.path.is_symlink() or path.is_symlink() or not path.is_file():
        return []
    try:
        records = metrics.read(path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # lines may be whole and yet not be ours
        return []
    return [r for r in records if isinstance(r.get("split"), str) and all(_finite(r.get(k)) for k in ("loss", "tokens"))]


def read_routing(run: RunRecord) -> Routing | None:
    """The run's mean routing weights; None if it has none or the file does not hold a consumer x source table."""
    try:
        found = _read_object(run.path, "routing.json")
        routing = Routing(*(_typed(found, name, list) for name in ("weights_MS", "consumers", "sources", "kinds")))
    except (FileNotFoundError, _Broken):
        return None
    names = [*routing.consumers, *routing.sources, *routing.kinds]
    if not all(isinstance(name, str) for name in names):
        return None
    rows = [row for row in routing.weights_MS if isinstance(row, list) and len(row) == len(routing.sources)]
    fits = len(rows) == len(routing.weights_MS) == len(routing.consumers) == len(routing.kinds)
    numbers = all(value is None or _finite(value) for row in rows for value in row)
    known = set(KINDS).issuperset(routing.kinds) and set(routing.kinds) != {"read-out"}
    return routing if fits and rows and routing.sources and numbers and known else None


def _config(path: Path, name: str) -> Config:
    try:
        return resolve(_read_object(path, name))
    except UserError as error:
        raise _Broken(str(error)) from None


def _result(path: Path, name: str) -> dict[str, Any]:
    result = _read_object(path, name)
    for field in NUMBERS:
        if not _finite(result.get(field)):
            raise _Broken(f"has no usable number {field!r}")
    for field in INTEGERS:
        if type(result[field]) is not int or result[field] < 0:
            raise _Broken(f"has {field!r} = {result[field]!r}, which is no count")
    for field in STRINGS:
        _typed(result, field, str)
    if result.get("bits_per_byte") is not None and not _finite(result["bits_per_byte"]):
        raise _Broken("has no usable number 'bits_per_byte'")
    return {"bits_per_byte": None, **result}


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if path.is_symlink():
        raise _Broken("is a symbolic link")
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise _Broken("is not readable JSON") from None
    if not isinstance(found, dict):
        raise _Broken("is no JSON object")
    return _printable(found)


def _printable(value: Any) -> Any:
    """The same JSON value with white space folded and unprintable characters (terminal escapes too) shown as '?'."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else "?" for c in " ".join(value.split()))
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return value


def _typed(record: Mapping[str, Any], name: str, kind: type) -> Any:
    if not isinstance(record, Mapping) or type(record.get(name)) is not kind:
        raise _Broken(f"field {name!r} is missing or not of type {kind.__name__}")
    return record[name]


def _finite(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST  # type: ignore[arg-type]
