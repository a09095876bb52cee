"""All presets as a table: what `depthroute routers` prints, and docs/routers.md is. Without JAX."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from depthroute.routing.preset import AXES
from depthroute.routing.presets import FAMILIES

COLUMNS = ("router", "equation", "axes", "initial values", "source", "published")


def records() -> list[dict[str, Any]]:
    """One dictionary per preset, by family. `published_difference` is in nats, None where no loss is published."""
    return [
        {
            "router": name,
            "family": family,
            "equation": preset.equation,
            "axes": dict(preset.axes),
            "init": preset.init,
            "source": preset.source,
            "published": preset.published,
            "published_difference": preset.difference,
        }
        for family, module in FAMILIES.items()
        for name, preset in module.PRESETS.items()
    ]


def table() -> Table:
    """What fits in a terminal."""
    found = Table("router", "family", "equation", "source", box=None)
    for record in records():
        found.add_row(*(str(record[name]) for name in ("router", "family", "equation", "source")))
    return found


def markdown() -> str:
    """A table for each family."""
    rest = _axes(AXES)
    lines = [
        "# Routers",
        "",
        "Written by `depthroute routers --markdown`. Axes that a preset does not name are at rest:",
        "",
        rest,
    ]
    family = None
    for record in records():
        if record["family"] != family:
            family = record["family"]
            lines += ["", f"## {family[0].upper()}{family[1:]}", "", _row(COLUMNS), _row("---" for _ in COLUMNS)]
        texts = (record[name] for name in ("init", "source", "published"))
        lines.append(_row((f"`{record['router']}`", record["equation"], _axes(record["axes"]), *texts)))
    return "\n".join(lines) + "\n"


def _axes(axes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in axes.items()) or "-"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
