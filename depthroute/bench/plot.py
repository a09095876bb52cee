"""The picture of a benchmark: cost against depth, and memory per sublayer."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthroute.bench.arms import BASELINE
from depthroute.runs.plots import COLOURS, DASHES, MARKERS, STYLE


def write_png(document: dict[str, Any], path: Path) -> None:
    """Draws the records of a document of `run` and writes them as a PNG file."""
    routers = list(dict.fromkeys(record["router"] for record in document["records"]))
    styles = {name: _style(index) for index, name in enumerate(routers)}
    shape = document["shape"]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _ratios(left, document["records"], styles)
        _slopes(right, document["records"], styles)
        size = f"D={shape['dim']}, T={shape['seq_len']}, batch {shape['batch']}, {document['dtype']}, {document['devices'][0]}"
        figure.suptitle(f"{size}{'; REJECTED RUN' if document['rejected'] else ''}", fontsize=9)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5)
        figure.savefig(path, dpi=160, metadata={"Software": None})


def _style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[(index + index // len(COLOURS)) % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def _ratios(axes: Axes, records: list[dict[str, Any]], styles: dict[str, dict[str, Any]]) -> None:
    for name, style in styles.items():
        points = [(record["layers"], record["step_ratio"]) for record in records if record["router"] == name]
        axes.plot(*zip(*points, strict=True), label=name, linewidth=1.3, markersize=5, **style)
    layers = sorted({record["layers"] for record in records})
    axes.set_xscale("log", base=2)
    axes.set_xticks(layers, [str(depth) for depth in layers])
    axes.minorticks_off()
    axes.set(xlabel="layers", ylabel=f"step time over that of {BASELINE}\n(fastest steps)")


def _slopes(axes: Axes, records: list[dict[str, Any]], styles: dict[str, dict[str, Any]]) -> None:
    slopes = {record["router"]: record["slope_net_btd"] for record in records if record["slope_net_btd"] is not None}
    for height, (name, slope) in enumerate(slopes.items()):
        axes.plot([0, slope], [height, height], color=styles[name]["color"], linewidth=1.5)
        axes.plot(slope, height, color=styles[name]["color"], marker=styles[name]["marker"], markersize=6)
    axes.set_yticks(range(len(slopes)), slopes)
    axes.set_ylim(max(len(slopes), 1) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.set_xlabel("memory per sublayer, arrays of [B, T, D]\n(without the parameters' gradients)")
