"""Router-rate curves and the rates that the grid uses, from a finished sweep of configs/ablations/router_rate.py.

    python benchmarks/router_rates.py runs/router_rate records/2026-12-01_router_rates

Writes rates.json (read by configs/ablations/key_query_grid.py), README.md with the table, and router_rates.svg. An arm whose
best multiplier is at an edge of what was tried is marked as not tuned. The size of the first score update is computed afresh.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.hashsalt": "depthroute", "svg.fonttype": "path"})
import matplotlib.pyplot as plt  # noqa: E402

from depthroute.data import corpus as corpus_lib  # noqa: E402
from depthroute.data.batches import Batches  # noqa: E402
from depthroute.errors import UserError  # noqa: E402
from depthroute.runs.registry import SweepRecord, load_sweep  # noqa: E402
from depthroute.training.score_update import first_score_update  # noqa: E402


def curves(record: SweepRecord) -> dict[str, dict[float, float]]:
    """For every routed arm, loss on the tune split (nats/token) by multiplier; a diverged run counts as infinite."""
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for run in record.runs:
        if run.config is None or (run.result is None and (run.status or {}).get("state") != "failed"):
            raise UserError(f"run {run.name!r} of {record.path} is not finished; run the sweep again")
        if run.config.router.preset != "residual":
            loss = run.result["val_loss"] if run.result else math.inf
            found[run.config.router.preset][run.config.router.lr_multiplier] = loss
    return {arm: dict(sorted(points.items())) for arm, points in found.items()}


def choose(points: dict[float, float]) -> dict:
    """The best multiplier, how many were tried, and whether the best lies inside the range."""
    best = min(points, key=points.__getitem__)
    return {"multiplier": best, "trials": len(points), "tuned": min(points) < best < max(points)}


def score_updates(record: SweepRecord) -> dict[str, float]:
    """First score update of every routed arm, by preset."""
    configs = {run.config.router.preset: run.config for run in record.runs if run.config.router.preset != "residual"}
    some = next(iter(configs.values()))
    corpus = corpus_lib.load(some.data, some.model.vocab)
    tokens_BT = Batches(corpus.split("train"), some.seed, some.data.batch, some.data.seq_len).batch(0)
    return {arm: first_score_update(config, tokens_BT) for arm, config in configs.items()}


def draw(found: dict[str, dict[float, float]], baseline: float, path: Path) -> None:
    """Loss against multiplier, a curve per arm, with the residual baseline as a line."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (arm, points), marker in zip(found.items(), "osD^vP", strict=True):
        axes.plot(list(points), list(points.values()), marker=marker, label=arm)
    axes.axhline(baseline, color="black", linestyle="--", label="residual")
    axes.set_xscale("log")
    axes.set_xlabel("router learning rate / model learning rate")
    axes.set_ylabel("loss on the tune split, nats/token")
    axes.legend(fontsize="small", ncols=2)
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


def page(record: SweepRecord, found: dict, rates: dict, updates: dict, baseline: float) -> str:
    """The record's README."""
    run = next(run for run in record.runs if run.config.router.preset == "residual")
    lines = [
        "# Router learning rates of the key x query grid",
        "",
        "    depthroute sweep --config configs/ablations/router_rate.py --workdir runs/router_rate",
        "    python benchmarks/router_rates.py runs/router_rate records/2026-12-01_router_rates",
        "",
        f"Loss on the tune split (nats/token, {run.result['eval_tokens']:,} tokens, one seed) by multiple of the model's rate,",
        f"{run.config.train.lr:g}; residual: {baseline:.4f}. One seed: this chooses rates, it does not compare arms.",
        "",
        "![Loss against router rate, per arm](router_rates.svg)",
        "",
    ]
    tried = sorted({rate for points in found.values() for rate in points})
    lines += ["| arm | " + " | ".join(f"x{rate:g}" for rate in tried) + " | chosen | first score update |"]
    lines += ["| --- |" + " ---: |" * (len(tried) + 2)]
    for arm, points in found.items():
        cells = [f"{points[rate]:.4f}" if rate in points else "-" for rate in tried]
        chosen = f"{rates[arm]['multiplier']:g}" + ("" if rates[arm]["tuned"] else " (not tuned)")
        lines.append(f"| {arm} | " + " | ".join(cells) + f" | {chosen} | {updates[arm]:.5f} |")
    spread = max(updates.values()) / min(updates.values())
    provenance = run.provenance
    commits = sorted({str(other.provenance["git_commit"])[:12] for other in record.runs if other.provenance})
    lines += [
        "",
        "First score update: RMS change of the source-centred scores after one step at the peak model rate and multiplier 1,",
        "same batch, over tokens, consumers with at least two sources, and sources.",
        f"Largest over smallest arm: {spread:.2f} (at most 2).",
        "",
        f"Commits {', '.join(commits)}, Python {provenance['python']}, jax {provenance['versions']['jax']},",
        f"{', '.join(provenance['devices'])}, {provenance['data']}, fingerprint {provenance['data_fingerprint']}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Reads the sweep, writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the finished sweep's folder")
    parser.add_argument("out", type=Path, help="the record's folder")
    options = parser.parse_args()
    record = load_sweep(options.sweep)
    found = curves(record)
    rates = {arm: choose(points) for arm, points in found.items()}
    baseline = next(run.result["val_loss"] for run in record.runs if run.config.router.preset == "residual")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rates.json").write_text(json.dumps(rates, indent=1) + "\n")
    draw(found, baseline, options.out / "router_rates.svg")
    (options.out / "README.md").write_text(page(record, found, rates, score_updates(record), baseline))
    print((options.out / "README.md").read_text())


if __name__ == "__main__":
    main()
