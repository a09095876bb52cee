"""The record of the zoo: router rates from a sweep of zoo_rate.py, and the table from a sweep of zoo.py.

    python benchmarks/zoo.py rates runs/zoo_rate records/2026-12-01_zoo
    python benchmarks/zoo.py table runs/zoo records/2026-12-01_zoo

`rates` writes rates.json: of every arm the best multiplier, how many were tried, and whether the best is inside their range.
`table` writes README.md and table.csv. Runs that are not finished, or diverged, are named there.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

from depthroute.routing.presets import find
from depthroute.runs import tables
from depthroute.runs.registry import RunRecord, SweepRecord, load_sweep

HEAD = ("router", "loss", "n", "difference [95 % interval]", "published", "sign", "params", "FLOPs/token", "ms/step", "rate")


def best_rates(record: SweepRecord) -> dict[str, dict]:
    """Of every arm that has a finished run: a diverged one counts as infinite, one that is missing as not tried."""
    losses: dict[str, dict[float, float]] = defaultdict(dict)
    for run in record.runs:
        if run.config is not None and (run.result is not None or _failed(run)):
            loss = run.result["val_loss"] if run.result else math.inf
            losses[run.config.arm.rpartition("-x")[0]][run.config.router.lr_multiplier] = loss
    rates = {}
    for arm, points in losses.items():
        best = min(points, key=points.__getitem__)
        rates[arm] = {"multiplier": best, "trials": len(points), "tuned": min(points) < best < max(points), "losses": points}
    return rates


def _failed(run: RunRecord) -> bool:
    return (run.status or {}).get("state") == "failed"


def sign(published: float | None, found: tables.Row) -> str:
    """Whether the difference has the published sign: ``yes``, ``no``, or ``?`` where its interval contains zero."""
    if published is None or not published or found.ci_low is None or found.ci_high is None:
        return "-"
    if found.ci_low <= 0 <= found.ci_high:
        return "?"
    return "yes" if (found.delta or 0) * published > 0 else "no"


def page(record: SweepRecord) -> str:
    """The record's README."""
    summary = tables.summarise(record)
    tokens = {run.config.arm: run.config.data.seq_len * run.config.data.batch for run in record.runs if run.config}
    presets = {run.config.arm: run.config.router.preset for run in record.runs if run.config}
    missing = [run.name for run in record.runs if run.result is None and not _failed(run)]
    failed = [run.name for run in record.runs if _failed(run)]
    lines = [
        f"# {record.title}",
        "",
        "    depthroute sweep --config configs/ablations/zoo_rate.py --workdir runs/zoo_rate",
        "    python benchmarks/zoo.py rates runs/zoo_rate records/2026-12-01_zoo",
        "    depthroute sweep --config configs/ablations/zoo.py --workdir runs/zoo",
        "    python benchmarks/zoo.py table runs/zoo records/2026-12-01_zoo",
        "",
        "Losses and differences in nats per token. `published`: the difference to its baseline that the paper reports, at its",
        "own scale; `sign`: whether ours has that sign, `?` where the interval contains zero. Two seeds make wide intervals.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "| --- |" + " ---: |" * (len(HEAD) - 1),
    ]
    lines += [f"| {' | '.join(_cells(row, presets[row.arm], tokens[row.arm]))} |" for row in summary.rows if row.arm in presets]
    lines += ["", f"Diverged or failed: {', '.join(failed) or 'none'}. Missing: {', '.join(missing) or 'none'}.", ""]
    lines += [f"* {line}" for line in (*summary.warnings, *summary.footer, summary.note, *_provenance(record))]
    return "\n".join(lines) + "\n"


def _provenance(record: SweepRecord) -> list[str]:
    found = [run.provenance for run in record.runs if run.provenance]
    commits = ", ".join(sorted({str(one["git_commit"])[:12] for one in found}))
    first = found[0]
    return [
        "ms/step: runs were two at a time, with other work on the machine; `depthroute bench` is for times",
        f"commits {commits}; Python {first['python']}, jax {first['versions']['jax']}, {', '.join(first['devices'])}",
        f"{first['data']}, fingerprint {first['data_fingerprint']}",
    ]


def _cells(row: tables.Row, preset: str, tokens: int) -> list[str]:
    published = find(preset).difference if preset == row.arm else None
    interval = "-" if row.delta is None else f"{row.delta:+.3f}"
    if row.ci_low is not None and row.ci_high is not None:
        interval += f" [{row.ci_low:+.3f}, {row.ci_high:+.3f}]"
    return [
        f"`{row.arm}`",
        "-" if row.val_loss is None else f"{row.val_loss:.4f}",
        str(row.n),
        interval,
        "-" if published is None else f"{published:+.3f}",
        sign(published, row),
        "-" if row.params is None else f"{row.params:,}",
        "-" if row.flops_per_token is None else f"{row.flops_per_token:,.0f}",
        "-" if not row.tokens_per_s else f"{1000 * tokens / row.tokens_per_s:.0f}",
        row.router_rate,
    ]


def main() -> None:
    """Reads the sweep, writes its part of the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["rates", "table"])
    parser.add_argument("sweep", type=Path, help="the sweep's folder")
    parser.add_argument("out", type=Path, help="the record's folder")
    options = parser.parse_args()
    record = load_sweep(options.sweep)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part == "rates":
        (options.out / "rates.json").write_text(json.dumps(best_rates(record), indent=1) + "\n")
        return
    (options.out / "README.md").write_text(page(record))
    (options.out / "table.csv").write_text(tables.render(tables.summarise(record), "csv"))


if __name__ == "__main__":
    main()
