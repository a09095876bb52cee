"""The page: one row per arm, and what is needed to read it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.peers.arms import OUR_VARIANTS, OURS, PEERS

Record = dict[str, Any]
NONE = "-"


def page(document: Record) -> str:
    """The document as Markdown that also reads well in a terminal."""
    versions = document["provenance"]["versions"]
    lines = table([_row(record, versions) for record in document["records"]])
    failed = [_failure(record) for record in document["records"] if "failed" in record]
    rejected = [f"**REJECTED: {document['rejected']}**"] if document["rejected"] else []
    peers = [f"{name}: {note}" for name, note in document["notes"].items()]
    notes = [*rejected, *failed, *_conditions(document), *READING, *peers]
    return "\n".join(["# depthroute and its peers", "", *lines, "", *(f"- {note}" for note in notes)]) + "\n"


READING = (
    f"ours/theirs: of the same router, {' / '.join(OUR_VARIANTS)}; fastest steps, and peaks; below 1, ours is ahead",
    "a step: forward, backward, clipping to a global norm, AdamW (PyTorch's fused one) on one batch, again and again",
    "peak: most memory resident at any moment of the process, with imports, and compilation where there is one",
)


def _version(record: Record, versions: Mapping[str, str]) -> str:
    name = record["implementation"]
    return versions[OURS if name == OURS else PEERS[name].package]


def _row(record: Record, versions: Mapping[str, str]) -> dict[str, str]:
    def shown(name: str, scale: float, form: str) -> str:
        return format(record[name] * scale, form) if name in record else NONE

    def ratios(name: str) -> str:
        return " / ".join(f"{ratio:.2f}" for ratio in record[name].values()) or NONE if name in record else NONE

    return {
        "router": record["router"],
        "implementation": record["implementation"],
        "version": _version(record, versions),
        "how": record["variant"],
        "params (M)": shown("params", 1e-6, ".2f"),
        "step (ms)": shown("step_s", 1e3, ".1f"),
        "median (ms)": shown("median_s", 1e3, ".1f"),
        "peak (MiB)": shown("peak_bytes", 2**-20, ".0f"),
        "time, ours/theirs": ratios("time_ratio"),
        "peak, ours/theirs": ratios("peak_ratio"),
    }


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Lines of a GitHub-flavoured table; columns of words to the left, of numbers to the right."""
    lanes = [[head, *(row[head] for row in rows)] for head in rows[0]]
    widths = [max(map(len, lane)) for lane in lanes]
    aligned: list[Callable[[str, int], str]] = [str.ljust if i < 4 else str.rjust for i in range(len(lanes))]
    rule = ["-" * w if align is str.ljust else "-" * (w - 1) + ":" for w, align in zip(widths, aligned, strict=True)]
    cells = [[align(c, w) for c in lane] for lane, w, align in zip(lanes, widths, aligned, strict=True)]
    head, *body = zip(*cells, strict=True)
    return ["| " + " | ".join(row) + " |" for row in (head, rule, *body)]


def _failure(record: Record) -> str:
    return f"{record['implementation']}, {record['variant']} ({record['router']}) does not work: {record['failed']}"


def _conditions(document: Record) -> list[str]:
    s, peak, bandwidth, found = document["shape"], document["peak_flops"], document["bandwidth"], document["provenance"]
    environment = ", ".join(f"{name}={value}" for name, value in found["environment"].items()) or "none"
    parity = "; ".join(
        f"{name} {values['theirs']:.6f}, ours {values['ours']:.6f}, gradients differ by {values['gradient_error']:.0e}"
        for name, values in document["parity"].items()
    )
    return [
        f"{s['layers']} layers, D={s['dim']}, {s['heads']} heads, MLP {s['mlp_dim']}, T={s['seq_len']}, batch {s['batch']}, "
        f"vocabulary {s['vocab']}, {document['dtype']}, {' or '.join(map(str, document['threads']))} threads; "
        f"n = {document['repeats']} interleaved steps per arm",
        f"jax {found['versions']['jax']}, Python {found['python']}, {found['platform']}; environment: {environment}",
        f"before / after: GEMM peak {peak['before'] / 1e9:,.0f} / {peak['after'] / 1e9:,.0f} GFLOP/s, memory bandwidth "
        f"{bandwidth['before'] / 1e9:,.1f} / {bandwidth['after'] / 1e9:,.1f} GB/s; load average before it began "
        f"{document['load_before']:.1f}",
        f"same function, losses in nats at the same parameters: {parity}",
    ]
