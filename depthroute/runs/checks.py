"""What stands in the way of comparing the arms of a sweep: missing runs, unequal conditions, undeclared differences.

Two runs are compared only if the numbers in `SAME` agree. Everything else is told in one line under the table; findings that
leave open what made the difference withhold the verdict of the arms they concern.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from depthroute.config import flatten, to_dict
from depthroute.runs.registry import RunRecord, SweepRecord

SAME = ("steps", "tokens", "data_fingerprint", "eval_split", "eval_tokens", "eval_sequences")
ORIGIN = ("git_commit", "python", "platform", "devices")
BLANK = "unknown"


@dataclass(frozen=True)
class Finding:
    """One line under the table, the arms it concerns, and whether it withholds their verdict."""

    text: str
    arms: tuple[str, ...]
    withholds: bool = False


def findings(record: SweepRecord, baseline: str) -> tuple[Finding, ...]:
    """Everything a reader of the table must know, most serious first."""
    done = [run for run in record.runs if run.result is not None]
    return (
        *_missing(record),
        *_refused(done, baseline),
        *_confounds(done, baseline, record.factors),
        *_mixed_arms(record),
        *_untuned(done),
        *_origins(done, baseline),
    )


def comparable(a: RunRecord, b: RunRecord) -> bool:
    """Whether two finished runs saw the same amount of the same data and were evaluated on the same tokens."""
    return a.result is not None and b.result is not None and all(a.result[field] == b.result[field] for field in SAME)


def _missing(record: SweepRecord) -> list[Finding]:
    names = defaultdict(list)
    for run in record.runs:
        if run.result is None:
            names[run.arm, _reason(run)].append(run.name)
    seeds = {run.seed for run in record.runs}
    for arm in record.arms:
        absent = sorted(seeds - {run.seed for run in record.of_arm(arm)})
        if absent:
            names[arm, "no run folder"] = [f"{arm}-seed{seed}" for seed in absent]
    return [Finding(f"missing: {', '.join(runs)} ({reason})", (arm,)) for (arm, reason), runs in names.items()]


def _reason(run: RunRecord) -> str:
    if run.problem is not None:
        return run.problem
    if run.status is None:
        return "not started"
    status = {key: value for key, value in run.status.items() if value not in (None, "")}
    step = f" at step {status['step']} of {status['steps']}" if "step" in status and "steps" in status else ""
    reason = f": {status['reason']}" if "reason" in status else ""
    return f"{status['state'] if 'state' in status else BLANK}{step}{reason}"


def _refused(done: Sequence[RunRecord], baseline: str) -> list[Finding]:
    found = []
    for field in SAME:
        text, arms = _spread(done, baseline, [run.result[field] for run in done if run.result is not None])
        if text:
            found.append(Finding(f"refused: {field} differs, no difference is taken between such runs: {text}", arms))
    return found


def _confounds(done: Sequence[RunRecord], baseline: str, factors: Iterable[str]) -> list[Finding]:
    flat = [dict(flatten(to_dict(run.config))) for run in done if run.config is not None]
    fields = sorted({field for values in flat for field in values} - {"arm", "seed", *factors})
    found = []
    for field in fields:
        text, arms = _spread(done, baseline, [values[field] for values in flat])
        if text:
            found.append(Finding(f"no verdict: confounded, {field} differs outside the declared factors: {text}", arms, True))
    return found


def _mixed_arms(record: SweepRecord) -> list[Finding]:
    """Inside one arm only the seed may differ, whatever the sweep declares."""
    found = []
    for arm in record.arms:
        runs = [run for run in record.of_arm(arm) if run.result is not None]
        flat = [dict(flatten(to_dict(run.config))) for run in runs if run.config is not None]
        fields = sorted({field for values in flat for field in values if values[field] != flat[0][field]} - {"seed"})
        if fields:
            text = f"no verdict: the seeds of {arm} differ in more than the seed: {', '.join(fields)}"
            found.append(Finding(text, (arm,), True))
    return found


def _untuned(done: Sequence[RunRecord]) -> list[Finding]:
    routed = [run for run in done if run.result is not None and run.result["router_params"] > 0]
    routers = [run.config.router for run in routed if run.config is not None]
    if not routers or any(r.lr_tuned for r in routers) or len({r.lr_multiplier for r in routers}) > 1:
        return []
    text = f"no verdict: untuned, every router learns at the same rate (x{routers[0].lr_multiplier:g}), chosen for none of them"
    return [Finding(text, tuple(dict.fromkeys(run.arm for run in routed)), True)]


def _origins(done: Sequence[RunRecord], baseline: str) -> list[Finding]:
    origins = [_origin(run) for run in done]
    found = []
    for field in dict.fromkeys(field for origin in origins for field in origin):
        text, arms = _spread(done, baseline, [origin.get(field) for origin in origins])
        if text:
            found.append(Finding(f"different {field.replace('versions.', 'version of ')}: {text}", arms))
    dirty = [run for run in done if run.provenance is not None and run.provenance.get("git_dirty") is True]
    if dirty:
        names = "all runs" if len(dirty) == len(done) else ", ".join(run.name for run in dirty)
        found.append(Finding(f"uncommitted changes in the code of {names}", tuple(dict.fromkeys(run.arm for run in dirty))))
    return found


def _origin(run: RunRecord) -> dict[str, Any]:
    provenance = run.provenance if run.provenance is not None else {}
    versions = provenance.get("versions")
    named = {f"versions.{name}": version for name, version in versions.items()} if isinstance(versions, dict) else {}
    return {**{field: provenance.get(field) for field in ORIGIN}, **named}


def _spread(runs: Sequence[RunRecord], baseline: str, values: Sequence[Any]) -> tuple[str, tuple[str, ...]]:
    """Which value stands where, the commonest last ("" if there is only one), and the arms that are not as the baseline."""
    names = defaultdict(list)
    by_arm = defaultdict(set)
    for run, value in zip(runs, values, strict=True):
        text = json.dumps(value, sort_keys=True)
        names[text].append(run.name)
        by_arm[run.arm].add(text)
    if len(names) < 2:
        return "", ()
    *rare, commonest = sorted(names, key=lambda text: len(names[text]))
    parts = [f"{_short(text)} ({_short(', '.join(names[text]), 200)})" for text in rare]
    arms = tuple(arm for arm, values in by_arm.items() if values != by_arm[baseline]) if baseline in by_arm else tuple(by_arm)
    return f"{', '.join(parts)}, {_short(commonest)} (all others)", arms


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
