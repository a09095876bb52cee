"""The results table of a sweep: one row per arm, differences to a baseline paired by seed, and writers for it."""

import csv
import dataclasses
import io
import json
import re
import statistics as stdlib_statistics
from collections.abc import Callable
from dataclasses import dataclass

from depthroute.config import RouterConfig
from depthroute.errors import unknown_name
from depthroute.runs import checks, statistics
from depthroute.runs.registry import RunRecord, SweepRecord

NONE = "-"
ALPHA = 0.05


@dataclass(frozen=True)
class Row:
    """One arm. Losses are nats per token; `pairs` is the number of seeds in the difference, `n` those in the mean."""

    arm: str
    label: str
    n: int
    val_loss: float | None
    val_loss_sd: float | None
    bits_per_byte: float | None
    delta: float | None
    ci_low: float | None
    ci_high: float | None
    pairs: int
    p_holm: float | None
    verdict: str
    params: int | None
    flops_per_token: float | None
    tokens_per_s: float | None
    router_rate: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows in the plan's order, the lines that qualify them, and a footer that says how the numbers were made."""

    title: str
    question: str
    baseline: str
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    footer: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class Column:
    """A heading and how a row is shown under it."""

    head: str
    show: Callable[[Row], str]
    left: bool = False


# --- summary ---------------------------------------------------------------------------------------------------------


def summarise(record: SweepRecord, baseline: str | None = None) -> Table:
    """The table of `record` against `baseline` (default: the sweep's own)."""
    if baseline is not None and baseline not in record.arms:
        raise unknown_name("baseline", baseline, record.arms, "--baseline")
    baseline = record.baseline if baseline is None else baseline
    findings = checks.findings(record, baseline)
    differences = {arm: _paired(record, arm, baseline) for arm in record.arms if arm != baseline}
    p_holm = statistics.holm({arm: difference.p for arm, difference in differences.items()})
    rows = tuple(_row(record, arm, differences.get(arm), p_holm.get(arm), findings) for arm in record.arms)
    warnings = tuple(finding.text for finding in findings)
    return Table(record.title, record.question, baseline, rows, warnings, _footer(record, rows, baseline), record.note)


def _paired(record: SweepRecord, arm: str, baseline: str) -> statistics.Paired:
    references = {run.seed: run for run in record.of_arm(baseline)}
    runs = {r.seed: r for r in record.of_arm(arm) if r.seed in references and checks.comparable(r, references[r.seed])}
    return statistics.paired(_losses(list(runs.values())), _losses([references[seed] for seed in runs]))


def _losses(runs: list[RunRecord]) -> dict[int, float]:
    return {run.seed: run.result["val_loss"] for run in runs if run.result is not None}


def _row(
    record: SweepRecord,
    arm: str,
    difference: statistics.Paired | None,
    p_holm: float | None,
    findings: tuple[checks.Finding, ...],
) -> Row:
    runs = [run for run in record.of_arm(arm) if run.result is not None]
    results = [run.result for run in runs if run.result is not None]
    losses = [result["val_loss"] for result in results]
    bits = [result["bits_per_byte"] for result in results if result["bits_per_byte"] is not None]
    difference = statistics.Paired(0, None, None, None, None) if difference is None else difference
    concerning = [finding for finding in findings if arm in finding.arms]
    return Row(
        arm=arm,
        label=record.labels[arm],
        n=len(runs),
        val_loss=statistics.mean(losses),
        val_loss_sd=statistics.sd(losses),
        bits_per_byte=statistics.mean(bits) if len(bits) == len(runs) else None,
        delta=difference.mean,
        ci_low=difference.ci_low,
        ci_high=difference.ci_high,
        pairs=difference.n,
        p_holm=p_holm,
        verdict="" if any(finding.withholds for finding in concerning) else _verdict(difference, p_holm),
        params=results[0]["params"] if results else None,
        flops_per_token=results[0]["flops_per_token"] if results else None,
        tokens_per_s=stdlib_statistics.median(result["tokens_per_s"] for result in results) if results else None,
        router_rate=_router_rate(runs[0]) if runs else NONE,
        flags=tuple(finding.text for finding in concerning),
    )


def _verdict(difference: statistics.Paired, p_holm: float | None) -> str:
    """Better or worse than the baseline where the interval excludes zero and Holm's adjusted p is small; else nothing."""
    if difference.ci_low is None or difference.ci_high is None or p_holm is None or p_holm >= ALPHA:
        return ""
    if difference.ci_high < 0:
        return "better"
    return "worse" if difference.ci_low > 0 else ""


def _router_rate(run: RunRecord) -> str:
    if run.result is None or run.config is None or run.result["router_params"] == 0:
        return NONE
    router: RouterConfig = run.config.router
    if router.lr_trials == 0:
        return f"{router.lr_multiplier:g} (untuned)"
    return f"{router.lr_multiplier:g} ({router.lr_trials} tried{'' if router.lr_tuned else ', not tuned'})"


def _footer(record: SweepRecord, rows: tuple[Row, ...], baseline: str) -> tuple[str, ...]:
    others = [row for row in rows if row.arm != baseline]
    pairs = sorted({row.pairs for row in others})
    seeds = " to ".join(str(n) for n in dict.fromkeys((pairs[0], pairs[-1]))) if pairs else "0"
    lines = [
        f"Δ and interval: loss minus that of {baseline} (nats/token), paired t, 95 %, n = {seeds} seeds; ±: sd over seeds",
        f"p: two-sided, Holm-adjusted over {sum(row.p_holm is not None for row in others)} arms; verdict (better in bold)"
        f" only where the interval excludes 0 and p < {ALPHA}",
    ]
    results = [run.result for run in record.runs if run.result is not None]
    if results:
        counts = dict.fromkeys((r["eval_sequences"], r["eval_tokens"], r["eval_split"]) for r in results)
        sizes = [f"{sequences:,} sequences, {tokens:,} tokens of {split}" for sequences, tokens, split in counts]
        lines.append(f"evaluated on held-out documents: {'; '.join(sizes)}")
    if any(row.router_rate != NONE for row in rows):
        lines.append("router rate: learning rate of the router over that of the model (values tried on the tune split)")
    return tuple(lines)


# --- cells -----------------------------------------------------------------------------------------------------------


def columns(table: Table) -> tuple[Column, ...]:
    """The columns of the written table, after the arm's name."""
    return (
        Column("n", lambda r: str(r.n)),
        Column("val loss (nats/token)", lambda r: _plus_minus(r.val_loss, r.val_loss_sd)),
        Column("bits/byte", lambda r: _number(r.bits_per_byte, ".4f")),
        Column(f"Δ {table.baseline}", lambda r: _number(r.delta, "+.4f")),
        Column("95 % interval", _interval),
        Column("p (Holm)", lambda r: "<0.001" if r.p_holm is not None and r.p_holm < 0.001 else _number(r.p_holm, ".3f")),
        Column("verdict", lambda r: r.verdict or NONE, left=True),
        Column("params", lambda r: _number(r.params, ",")),
        Column("MFLOP/token", lambda r: _number(r.flops_per_token and r.flops_per_token / 1e6, ",.2f")),
        Column("tokens/s", lambda r: _number(r.tokens_per_s, ",.0f")),
        Column("router rate", lambda r: r.router_rate, left=True),
    )


def is_bold(row: Row, column: Column) -> bool:
    """The difference of an arm that is better than the baseline, and nothing else, is set in bold."""
    return row.verdict == "better" and column.head.startswith("Δ")


def _number(value: float | None, spec: str) -> str:
    return NONE if value is None else format(value, spec)


def _plus_minus(value: float | None, spread: float | None) -> str:
    return _number(value, ".4f") + ("" if spread is None else f" ± {spread:.4f}")


def _interval(row: Row) -> str:
    return NONE if row.ci_low is None else f"[{row.ci_low:+.4f}, {row.ci_high:+.4f}]"


# --- writers ---------------------------------------------------------------------------------------------------------


def markdown(table: Table) -> str:
    """A GitHub-flavoured table, padded so that it also reads well in a terminal."""
    shown = columns(table)
    names = [("arm", *(row.arm for row in table.rows))]
    if any(row.label != row.arm for row in table.rows):
        names.append(("label", *(row.label for row in table.rows)))
    lanes = [[_md(text) for text in lane] for lane in names]
    for column in shown:
        bold = [is_bold(row, column) for row in table.rows]
        cells = [_md(column.show(row)) for row in table.rows]
        lanes.append([_md(column.head), *(f"**{cell}**" if b else cell for cell, b in zip(cells, bold, strict=True))])
    left = [True] * len(names) + [column.left for column in shown]
    widths = [max(3, *map(len, lane)) for lane in lanes]
    rule = ["-" * width if is_left else "-" * (width - 1) + ":" for width, is_left in zip(widths, left, strict=True)]
    padded = [
        [cell.ljust(width) if is_left else cell.rjust(width) for cell in lane]
        for lane, width, is_left in zip(lanes, widths, left, strict=True)
    ]
    head, *body = zip(*padded, strict=True)
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, rule, *body)]
    heading = [f"# {_md(table.title)}", "", *([_md(table.question), ""] if table.question else [])]
    notes = [*(f"- **{_md(warning)}**" for warning in table.warnings), *(f"- {_md(line)}" for line in _notes(table))]
    return "\n".join([*heading, *lines, "", *notes]) + "\n"


def latex(table: Table) -> str:
    """A booktabs tabular with the warnings and the footer under it; needs no package but booktabs."""
    shown = columns(table)
    lines = [
        f"% {_tex(table.title)}",
        r"\begin{tabular}{l" + "".join("l" if column.left else "r" for column in shown) + "}",
        r"\toprule",
        " & ".join(["arm", *(_tex(column.head) for column in shown)]) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [rf"\textbf{{{_tex(c.show(row))}}}" if is_bold(row, c) else _tex(c.show(row)) for c in shown]
        label = _tex(row.label)
        label = "{}" + label if label[:1] in ("[", "*") else label  # else read as an argument of the line break above
        lines.append(" & ".join([label, *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", ""]
    notes = [rf"\textbf{{{_tex(warning)}}}" for warning in table.warnings] + [_tex(line) for line in _notes(table)]
    return "\n".join([*lines, *(note + r"\par" for note in notes)]) + "\n"


def _notes(table: Table) -> tuple[str, ...]:
    return (*table.footer, table.note) if table.note else table.footer


def csv_text(table: Table) -> str:
    """One line per arm with every field in full precision; what does not exist is empty."""
    out = io.StringIO()
    fields = [field.name for field in dataclasses.fields(Row)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(fields)
    for row in table.rows:
        values = [getattr(row, field) for field in fields]
        writer.writerow(["; ".join(value) if isinstance(value, tuple) else value for value in values])
    return out.getvalue()


def json_text(table: Table) -> str:
    """A list with one record per arm; what does not exist is null."""
    return json.dumps([dataclasses.asdict(row) for row in table.rows], indent=2, allow_nan=False) + "\n"


WRITERS: dict[str, Callable[[Table], str]] = {"md": markdown, "tex": latex, "csv": csv_text, "json": json_text}


def render(table: Table, format: str) -> str:
    """The table as text in one of the formats of `WRITERS`."""
    if format not in WRITERS:
        raise unknown_name("format", format, WRITERS, "--format")
    return WRITERS[format](table)


MARKDOWN = re.compile(
    r"[\\`*|~]"  # always
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # emphasis; underscores inside a word are text
    r"|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[(\[:])"  # tags, entities, links
    r"|^[#>]|^[+-](?= )"  # headings, quotes and lists
)


def _md(text: str) -> str:
    """Escapes what Markdown would read as markup, and no more, so that the text also reads well in a terminal."""
    return MARKDOWN.sub(r"\\\g<0>", text)


TEX = {c: f"\\{c}" for c in "{}$&#_%"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
}


def _tex(text: str) -> str:
    """LaTeX's own characters escaped, and a minus sign before numbers."""
    escaped = "".join(TEX[c] if c in TEX else c for c in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)
