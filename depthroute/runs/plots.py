"""Figures of a sweep, as SVG text with real text in it, the same bytes for the same data.

Colours are Okabe and Ito's set without its yellow; arms also differ in marker and line style, so that a grey print reads.
"""

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.ma import masked_invalid

from depthroute.runs import registry
from depthroute.runs.registry import Routing, SweepRecord
from depthroute.runs.tables import Row, Table

COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f")
MARKERS = "osD^vPX*<>"
DASHES = ("-", "--", "-.", ":")
SITES = {"attention": "attention sites", "mlp": "MLP sites", "layer": "layer sites"}
MANY_CELLS = 2500  # a heat map with more cells is drawn as an image inside the SVG
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "depthroute",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "axes.axisbelow": True,
}


def svg(figure: Figure) -> str:
    """The figure as an `<svg>` element: no XML header, no metadata (which would hold the date), no ids that repeat."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = out.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r' id="[A-Za-z.]+_\d+"', "", text)


def loss_curve(record: SweepRecord, training: bool) -> Figure | None:
    """Training or evaluation loss against tokens: the mean over seeds, a band from lowest to highest; None without data."""
    curves = {arm: _by_tokens(_losses(record, arm, training)) for arm in record.arms}
    return _curves(record, curves, f"{'training' if training else 'held-out'} loss (nats/token)")


def difference_curve(record: SweepRecord, baseline: str) -> Figure | None:
    """Evaluation loss minus that of the baseline's same seed against tokens, as a mean and a band; None without data."""
    references = _losses(record, baseline, training=False)
    curves = {}
    for arm in record.arms:
        pairs = [(run, references[seed]) for seed, run in _losses(record, arm, training=False).items() if seed in references]
        differences = [{tokens: run[tokens] - other[tokens] for tokens in run.keys() & other.keys()} for run, other in pairs]
        curves[arm] = _by_tokens(dict(enumerate(differences)))
    return _curves(record, curves, "held-out loss minus the baseline's (nats/token)")


def _losses(record: SweepRecord, arm: str, training: bool) -> dict[int, dict[float, float]]:
    """{seed: {tokens: loss}} of an arm's finished runs."""
    runs = {run.seed: registry.read_metrics(run) for run in record.of_arm(arm) if run.result is not None}
    return {
        seed: {line["tokens"]: line["loss"] for line in lines if (line["split"] == "train") == training}
        for seed, lines in runs.items()
    }


def _by_tokens(by_seed: dict[int, dict[float, float]]) -> list[tuple[float, list[float]]]:
    """(tokens, the values of all seeds there), at the points that every seed has."""
    if not by_seed:
        return []
    shared = set.intersection(*(set(values) for values in by_seed.values()))
    return [(tokens, [values[tokens] for values in by_seed.values()]) for tokens in sorted(shared)]


def _curves(record: SweepRecord, curves: dict[str, list[tuple[float, list[float]]]], ylabel: str) -> Figure | None:
    if not any(curves.values()):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 4.4), layout="constrained")
        axes = figure.subplots()
        for index, arm in enumerate(record.arms):
            points = curves[arm]
            millions = [tokens / 1e6 for tokens, _ in points]
            style: dict[str, Any] = {
                "color": COLOURS[index % len(COLOURS)],
                "linestyle": DASHES[index % len(DASHES)],
                "marker": MARKERS[index % len(MARKERS)],
                "markevery": max(1, len(points) // 8),
            }
            means = [math.fsum(values) / len(values) for _, values in points]
            axes.plot(millions, means, label=_short(record.labels[arm]), linewidth=1.3, markersize=4, **style)
            lows, highs = [min(values) for _, values in points], [max(values) for _, values in points]
            axes.fill_between(millions, lows, highs, color=style["color"], alpha=0.15, linewidth=0)
        axes.set(xlabel="tokens seen (millions)", ylabel=ylabel)
        axes.margins(x=0.02)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def forest(table: Table) -> Figure | None:
    """Difference of each arm to the baseline with its 95 % interval (a single seed: open marker, none); None without any."""
    rows = [(index, row) for index, row in enumerate(table.rows) if row.arm != table.baseline and row.delta is not None]
    if not rows:
        return None
    ends = [abs(end) for _, row in rows for end in (row.delta, row.ci_low, row.ci_high) if end is not None]
    scale, unit = (1e3, "millinats/token") if max(ends) < 0.5 else (1.0, "nats/token")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 1.2 + 0.36 * len(rows)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="black", linewidth=1)
        for height, (index, row) in enumerate(rows):
            _interval(axes, row, height, index, scale)
        axes.set_yticks(range(len(rows)), [_short(row.label) for _, row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(f"held-out loss minus the baseline's\n({unit}; left of 0 is better)")
        axes.grid(axis="y", visible=False)
    return figure


def _short(label: str) -> str:
    return label if len(label) <= 30 else label[:27] + "..."


def _interval(axes: Axes, row: Row, height: int, index: int, scale: float) -> None:
    if row.delta is None:
        return
    color = COLOURS[index % len(COLOURS)]
    known = row.ci_low is not None and row.ci_high is not None
    if row.ci_low is not None and row.ci_high is not None:
        axes.plot([row.ci_low * scale, row.ci_high * scale], [height, height], color=color, linewidth=2)
    marker = MARKERS[index % len(MARKERS)]
    axes.plot(row.delta * scale, height, color=color, marker=marker, markerfacecolor=color if known else "white", markersize=6)


def routing_maps(routing: Routing) -> list[Figure]:
    """Mean routing weights, consumer x source, a heat map per kind of site on one scale; the read-out is under each."""
    free = [row for row in routing.weights_MS if sum(value is not None for value in row) > 1]
    values = [value for row in free for value in row if value is not None]
    low, high = min([0.0, *values]), max([0.0, *values])
    span = max(-low, high) or 1.0
    scale = {"cmap": "PuOr", "vmin": -span, "vmax": span} if low < 0 else {"cmap": "cividis_r", "vmin": 0.0, "vmax": span}
    kinds = [kind for kind in SITES if kind in routing.kinds]
    return [
        _heat(routing, [m for m, k in enumerate(routing.kinds) if k in (kind, "read-out")], SITES[kind], scale)
        for kind in kinds
    ]


def _heat(routing: Routing, rows: list[int], title: str, scale: dict[str, Any]) -> Figure:
    cells = masked_invalid([[math.nan if w is None else w for w in routing.weights_MS[m]] for m in rows])
    every = math.ceil(max(cells.shape) / 24)  # label at most 24 rows and columns
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        room = 1.0 + 0.08 * max(len(_short(name)) for name in routing.sources)  # for the rotated labels, in inches
        figure = Figure(figsize=(5.2, room + min(4.5, 0.25 * len(rows))), layout="constrained")
        axes = figure.subplots()
        mesh = axes.pcolormesh(cells, edgecolors="face", linewidth=0.3, rasterized=cells.size > MANY_CELLS, **scale)
        axes.invert_yaxis()
        sources, consumers = range(0, cells.shape[1], every), range((len(rows) - 1) % every, len(rows), every)
        axes.set_xticks([i + 0.5 for i in sources], [_short(routing.sources[i]) for i in sources], rotation=90)
        axes.set_yticks([i + 0.5 for i in consumers], [_short(routing.consumers[rows[i]]) for i in consumers])
        axes.set(title=title, xlabel="source (what is read)", ylabel="consumer (what reads)")
        figure.colorbar(mesh, label="mean weight", extend="max" if cells.max() > scale["vmax"] else "neither")
    return figure


def mean_routing(routings: Sequence[Routing]) -> Routing | None:
    """The mean over seeds, cell by cell; None of no routings, or where the seeds' tables do not have the same axes."""
    if not routings:
        return None
    first = routings[0]
    if any((r.consumers, r.sources, r.kinds) != (first.consumers, first.sources, first.kinds) for r in routings):
        return None
    tables = [r.weights_MS for r in routings]
    weights_MS = [
        [_mean_cell([table[m][s] for table in tables]) for s in range(len(first.sources))] for m in range(len(first.consumers))
    ]
    return Routing(weights_MS, first.consumers, first.sources, first.kinds)


def _mean_cell(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) else None
