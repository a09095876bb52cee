"""What a benchmark leaves: its table, its summary, and a folder with both, the picture and the data."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from depthroute.bench import plot
from depthroute.bench.arms import BASELINE
from depthroute.errors import UserError, bad_value
from depthroute.runs import provenance
from depthroute.runs.folder import write_json

Document = dict[str, Any]
NONE = "-"
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "router": lambda r: r["router"],
    "layers": lambda r: str(r["layers"]),
    "step (ms)": lambda r: f"{r['step_s'] * 1e3:.1f}",
    "median (ms)": lambda r: f"{r['median_s'] * 1e3:.1f}",
    "ratio": lambda r: f"{r['step_ratio']:.3f}",
    "over limit": lambda r: _number(r["distance"], ".2f"),
    "MFU": lambda r: f"{r['mfu']:.3f}",
    "compile (s)": lambda r: f"{r['compile_s']:.2f}",
    "compile growth": lambda r: _number(r["compile_ratio"], ".2f"),
    "temp (MB)": lambda r: f"{r['temp_bytes'] / 1e6:.1f}",
    "extra (BTD)": lambda r: f"{r['extra_btd']:+.1f}",
    "slope (BTD)": lambda r: _number(r["slope_btd"], ".2f"),
    "net slope": lambda r: _number(r["slope_net_btd"], ".2f"),
    "exponent": lambda r: _number(r["exponent"], ".2f"),
}


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def table(document: Document) -> str:
    """All records as a GitHub-flavoured table that also reads well in a terminal, and what is needed to read it."""
    lanes = [[head, *(show(record) for record in document["records"])] for head, show in COLUMNS.items()]
    widths = [max(map(len, lane)) for lane in lanes]
    rule = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    cells = [
        [c.ljust(w) if i == 0 else c.rjust(w) for c in lane] for i, (lane, w) in enumerate(zip(lanes, widths, strict=True))
    ]
    head, *body = zip(*cells, strict=True)
    lines = ["| " + " | ".join(row) + " |" for row in (head, rule, *body)]
    notes = [f"- {note}" for note in (*_rejection(document), *_conditions(document), *_products(document), *NOTES)]
    return "\n".join(["# Benchmark", "", *lines, "", *notes]) + "\n"


NOTES = (
    f"ratio: fastest step over that of {BASELINE} at the same depth; over limit: what routing adds to a step over its roofline",
    "compile: lowering included; growth, slope and exponent: from the shallowest to the deepest",
    "temp: temporary arrays of the compiled step; BTD: one [B, T, D] array in the compute dtype; extra: over the baseline;"
    " slope: per sublayer; net slope: without the parameters' gradients; exponent p: growth as layers^p",
)


def _rejection(document: Document) -> list[str]:
    return [f"**REJECTED: {document['rejected']}**"] if document["rejected"] else []


def _conditions(document: Document) -> list[str]:
    shape, versions = document["shape"], document["provenance"]["versions"]
    peak, bandwidth = document["peak_flops"], document["bandwidth"]
    sizes = f"D={shape['dim']}, {shape['heads']} heads, MLP {shape['mlp_dim']}, T={shape['seq_len']}, batch {shape['batch']}"
    engine = f"history={document['history']}, remat={str(document['remat']).lower()}"
    return [
        f"{sizes}, vocabulary {shape['vocab']}, {document['dtype']}, {engine}; {len(document['devices'])} x "
        f"{document['devices'][0]}, jax {versions['jax']}; n = {document['repeats']} interleaved steps per arm",
        f"before / after: GEMM peak {peak['before'] / 1e9:,.0f} / {peak['after'] / 1e9:,.0f} GFLOP/s, "
        f"memory bandwidth {bandwidth['before'] / 1e9:,.1f} / {bandwidth['after'] / 1e9:,.1f} GB/s",
    ]


def _products(document: Document) -> list[str]:
    found = [(r["layers"], r["over_products"]) for r in document["records"] if r["router"] == BASELINE]
    listed = ", ".join(f"{ratio:.2f} at {layers} layers" for layers, ratio in found)
    return [f"{BASELINE} step over the time of its matrix products at the peak, recomputed ones included: {listed}"]


def summary(document: Document, picture: str) -> str:
    """The picture, and what matters most in it, computed from the records: for a README."""
    layers = sorted({record["layers"] for record in document["records"]})
    depths = " / ".join(map(str, layers))
    heading = f"Training step time over that of plain `{BASELINE}` at {depths} layers:"
    groups = {"Attention Residuals": ("attnres", "attnres_block"), "dynamic query": ("qd_ks", "qd_kd")}
    lines = [f"* {title}: {shown}" for title, names in groups.items() if (shown := _ratios(document, names))]
    notes = [*_rejection(document), *_conditions(document)]
    picture_line = f"![Step time and memory of every router against plain residual, by depth]({picture})"
    return (
        "\n".join([picture_line, "", heading, "", *lines, *_growth_line(document, layers), "", "; ".join(notes) + "."]) + "\n"
    )


def _ratios(document: Document, names: Sequence[str]) -> str:
    shown = []
    for name in names:
        ratios = [f"{record['step_ratio']:.2f}" for record in document["records"] if record["router"] == name]
        shown += [f"`{name}` {' / '.join(ratios)}"] if ratios else []
    return ", ".join(shown)


def _growth_line(document: Document, layers: Sequence[int]) -> list[str]:
    deepest = [record for record in document["records"] if record["layers"] == layers[-1] and record["slope_btd"] is not None]
    if not deepest:
        return []
    most = max(deepest, key=lambda record: record["slope_net_btd"])
    plain = next(record for record in deepest if record["router"] == BASELINE)
    power, compile_s, growth = (max(record[name] for record in deepest) for name in ("exponent", "compile_s", "compile_ratio"))
    return [
        f"* memory: {plain['slope_net_btd']:.1f} arrays of [B, T, D] per sublayer for `{BASELINE}`, at most "
        f"{most['slope_net_btd']:.1f} (`{most['router']}`), parameter gradients not counted; as layers^p with p at most "
        f"{power:.2f}; compiling takes at most {compile_s:.1f} s, and at most {growth:.2f} times that of {layers[0]} layers"
    ]


# --- files -----------------------------------------------------------------------------------------------------------

OPEN, CLOSE = "<!-- bench -->", "<!-- /bench -->"


def check(repeats: int, folder: Path | None, readme: Path | None) -> None:
    """Makes the folder, and refuses what would fail only when everything has been measured."""
    if repeats < 1:
        raise bad_value("repeats", repeats, "at least 1", "--repeats")
    if folder:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"folder {str(folder)!r} cannot be made ({error.strerror}); give another --out") from error
    if readme:
        if not folder:
            raise UserError("--readme is given without --out; its picture needs a folder; give --out DIR")
        replace_section(readme, "")


def write(document: Document, folder: Path | None) -> None:
    """Into a folder, if there is one: bench.json, table.md, summary.md, bench.png, and provenance.json with the diff."""
    if folder:
        write_json(folder / "bench.json", document)
        write_json(folder / "provenance.json", {**document["provenance"], **provenance.git_state(Path(__file__))})
        (folder / "table.md").write_text(table(document))
        (folder / "summary.md").write_text(summary(document, "bench.png"))
        plot.write_png(document, folder / "bench.png")


def rewrite(readme: Path, document: Document, folder: Path) -> None:
    """Puts the summary between the markers of `readme`, with the picture in `folder`."""
    picture = Path(os.path.relpath(folder / "bench.png", readme.parent)).as_posix()
    readme.write_text(replace_section(readme, summary(document, picture)))


def replace_section(path: Path, body: str) -> str:
    """The file's text with `body` between the markers. Raises UserError unless they are there exactly once."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"file {str(path)!r} cannot be read ({error}); give a text file to --readme") from error
    before, _, rest = text.partition(OPEN)
    _, _, after = rest.partition(CLOSE)
    if (text.count(OPEN), text.count(CLOSE), rest.count(CLOSE)) != (1, 1, 1):
        raise UserError(
            f"file {str(path)!r} does not hold {OPEN} ... {CLOSE} exactly once; put it where the summary is to stand"
        )
    return f"{before}{OPEN}\n{body}{CLOSE}{after}"
