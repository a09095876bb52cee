"""One self-contained HTML page about a sweep: no scripts, no network, no date but the data's.

Everything that comes from a run folder is escaped; figures are inline SVG that matplotlib made.
"""

import html
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from matplotlib.figure import Figure

from depthroute.runs import plots, registry, tables
from depthroute.runs.registry import RunRecord, SweepRecord
from depthroute.runs.tables import Table

HOW_TO_READ = """Each row is one way of reading the earlier layers, trained with several seeds. Seeds are paired: the same seed
means the same data in the same order and the same initial value of every parameter that two rows share. The difference to the
baseline is therefore taken seed by seed; negative is better. Its interval covers the seeds, not the choice of data or scale. A
verdict is drawn only where the interval excludes zero and the p-value, adjusted for the number of rows, is below 0.05. Lines in
the warning box say what stands in the way of a fair comparison."""

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem 1.25rem 3rem; color: #1a1a1a; background: #fff;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Arial, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; padding-bottom: 0.2rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1rem; margin: 0 0 0.5rem; }
p, ul, dl { max-width: 48rem; }
.question { font-size: 1.1rem; }
.note { border-left: 4px solid #e69f00; padding: 0.3rem 0.8rem; background: #fff8ea; }
.warnings { border-left: 4px solid #d55e00; padding: 0.3rem 0.8rem; background: #fdf1ea; margin-bottom: 1rem; }
.warnings ul, .footer { margin: 0.3rem 0; padding-left: 1.2rem; max-width: none; }
.footer { font-size: 0.85rem; color: #444; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.45rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #1a1a1a; border-top: 2px solid #1a1a1a; vertical-align: bottom; white-space: normal; }
td { border-bottom: 1px solid #ddd; }
.left { text-align: left; }
td.left:first-child { white-space: normal; min-width: 9rem; max-width: 16rem; overflow-wrap: anywhere; }
td.left:last-child { white-space: normal; min-width: 5rem; }
code { font: 0.92em ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
td code { color: #555; } td small { display: block; line-height: 1.2; }
figure { margin: 1rem 0; break-inside: avoid; }
.panels { display: flex; flex-wrap: wrap; gap: 0.75rem 1.5rem; }
.panels svg { display: block; max-width: 100%; height: auto; flex: 0 1 auto; }
figcaption { font-size: 0.88rem; color: #333; max-width: 48rem; margin-top: 0.4rem; }
dt { font-weight: 600; } dd { margin: 0 0 0.4rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) { body { padding: 0.5rem 0.75rem 2rem; } h1 { font-size: 1.35rem; } }
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  body { max-width: none; padding: 0; color: #000; font-size: 10pt; }
  .scroll { overflow: visible; } table { font-size: 7.5pt; } th, td { padding: 0.15rem 0.35rem; }
  .note, .warnings { background: #fff; } a { color: #000; text-decoration: none; }
  .panels svg { width: 11cm; }
  h2 { break-after: avoid; } tr, figure, .warnings { break-inside: avoid; }
}
"""


def write(record: SweepRecord, out_path: str | Path, baseline: str | None = None) -> None:
    """Writes the page; links to run folders are relative to where it stands."""
    out_path = Path(out_path)
    out_path.write_text(page(record, out_path.parent, baseline), encoding="utf-8")


def page(record: SweepRecord, folder: Path, baseline: str | None = None) -> str:
    """The whole page as text, for a file in `folder`."""
    table = tables.summarise(record, baseline)
    sections = [
        f"<h1>{_text(record.title)}</h1>",
        f'<p class="question">{_text(record.question)}</p>' if record.question else "",
        f'<p class="note">{_text(record.note)}</p>' if record.note else "",
        f"<h2>How to read this page</h2>\n<p>{_text(HOW_TO_READ)}</p>",
        "<h2>Results</h2>",
        _warnings(table),
        _table(table),
        "<h2>Difference to the baseline</h2>",
        _forest(table),
        "<h2>Loss curves</h2>",
        _curves(record, table),
        "<h2>Routing weights</h2>",
        _routing(record),
        "<h2>Provenance</h2>",
        _provenance(record),
        _runs(record, folder),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(record.title)}</title><style>{STYLE}</style></head><body>",
            *(section for section in sections if section),
            "</body></html>",
            "",
        ]
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _list(lines: Iterable[str], css: str) -> str:
    return f'<ul class="{css}">' + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>"


def _warnings(table: Table) -> str:
    if not table.warnings:
        return ""
    return f'<div class="warnings"><strong>Before comparing</strong>{_list(table.warnings, "lines")}</div>'


def _table(table: Table) -> str:
    columns = tables.columns(table)
    heads = [
        '<th class="left">arm</th>',
        *(_cell("th", _text(c.head).replace("MFLOP/", "MFLOP/<wbr>"), c.left) for c in columns),
    ]
    lines = []
    for row in table.rows:
        name = _text(row.label) + (f"<small><code>{_text(row.arm)}</code></small>" if row.label != row.arm else "")
        cells = [_text(column.show(row)) for column in columns]
        shown = [f"<strong>{t}</strong>" if tables.is_bold(row, c) else t for t, c in zip(cells, columns, strict=True)]
        numbers = "".join(_cell("td", text, column.left) for text, column in zip(shown, columns, strict=True))
        lines.append(f"<tr>{_cell('td', name, True)}{numbers}</tr>")
    return _grid("".join(heads), lines) + _list(table.footer, "footer")


def _cell(tag: str, content: str, left: bool) -> str:
    css = ' class="left"' if left else ""
    return f"<{tag}{css}>{content}</{tag}>"


def _grid(heads: str, lines: list[str]) -> str:
    body = "\n".join(lines)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _figures(figures: Iterable[Figure], caption: str, heading: str = "") -> str:
    panels = "".join(plots.svg(figure) for figure in figures)
    head = f"<h3>{_text(heading)}</h3>" if heading else ""
    return f'<figure>{head}<div class="panels">{panels}</div><figcaption>{_text(caption)}</figcaption></figure>'


def _curves(record: SweepRecord, table: Table) -> str:
    curves = [
        plots.difference_curve(record, table.baseline),
        plots.loss_curve(record, training=False),
        plots.loss_curve(record, training=True),
    ]
    drawn = [curve for curve in curves if curve is not None]
    if not drawn:
        return "<p>No finished run has metrics to draw.</p>"
    return _figures(
        drawn, f"Means over seeds; bands reach from the lowest to the highest seed. The baseline is {table.baseline}."
    )


def _forest(table: Table) -> str:
    forest = plots.forest(table)
    if forest is None:
        return f"<p>No arm has a seed in common with {_text(table.baseline)} yet that was run under the same conditions.</p>"
    caption = (
        f"Mean paired difference to {table.baseline} and its 95 % interval, not adjusted for the number of arms. An open marker"
        " is a single seed, which has no interval."
    )
    return _figures([forest], caption)


def _routing(record: SweepRecord) -> str:
    parts, without = [], []
    for arm in record.arms:
        found = [(run, registry.read_routing(run)) for run in record.of_arm(arm) if run.result is not None]
        routings = [routing for _, routing in found if routing is not None]
        mean = plots.mean_routing(routings)
        if mean is None:
            without.append(record.labels[arm])
        else:
            seeds = f"{len(routings)} seed{'s' if len(routings) > 1 else ''}"
            caption = f"{arm}, mean over tokens and {seeds}. Blank cells lie in the consumer's future."
            parts.append(_figures(plots.routing_maps(mean), caption, record.labels[arm]))
    if without:
        names = _text(", ".join(without))
        parts.append(f"<p>No routing weights to show for: {names}. These arms choose nothing, or are not done.</p>")
    return "\n".join(parts)


def _provenance(record: SweepRecord) -> str:
    seen: dict[str, dict[str, None]] = {"config file": {record.config_file: None} if record.config_file else {}}
    for run in record.runs:
        for name, value in _origin(run):
            seen.setdefault(name, {})[value] = None
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text('; '.join(values))}</dd>" for name, values in seen.items() if values)
    return f"<dl>{items}</dl>"


def _origin(run: RunRecord) -> list[tuple[str, str]]:
    provenance = run.provenance if run.provenance is not None else {}
    lines = [(name.replace("_", " "), str(provenance[name])) for name in ("python", "platform") if name in provenance]
    if "git_commit" in provenance:
        dirty = " with uncommitted changes" if provenance.get("git_dirty") is True else ""
        lines.insert(0, ("git commit", f"{provenance['git_commit']}{dirty}"))
    if isinstance(provenance.get("devices"), list):
        lines.append(("devices", ", ".join(map(str, provenance["devices"]))))
    if isinstance(provenance.get("versions"), dict):
        lines.append(("versions", ", ".join(f"{name} {version}" for name, version in sorted(provenance["versions"].items()))))
    if run.result is not None:
        lines.append(("data fingerprint", run.result["data_fingerprint"]))
    return lines


def _runs(record: SweepRecord, folder: Path) -> str:
    lines = []
    for run in record.runs:
        link = quote(os.path.relpath(run.path, folder).replace(os.sep, "/") + "/")
        name = f'<a href="{_text(link)}">{_text(run.name)}</a>' if run.path.is_dir() else _text(run.name)
        state = run.status["state"] if run.status is not None and "state" in run.status else "not started"
        state = run.problem if run.problem is not None else state
        result = run.result
        counts = ["-", "-"] if result is None else [f"{result[field]:,}" for field in ("steps", "tokens")]
        numbers = [*counts, "-" if result is None else f"{result['val_loss']:.4f}"]
        cells = _cell("td", name, True) + _cell("td", _text(state), True) + "".join(_cell("td", n, False) for n in numbers)
        lines.append(f"<tr>{cells}</tr>")
    names = ("run", "state", "steps", "tokens", "val loss (nats/token)")
    heads = "".join(_cell("th", head, head in ("run", "state")) for head in names)
    return _grid(heads, lines)
