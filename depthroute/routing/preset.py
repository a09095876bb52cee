"""What a preset is: a named point of the routing space, with where it is from. Without JAX, as everything about presets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from depthroute.config import WHERE, Config
from depthroute.errors import UserError, bad_value

AXES = {
    "query": "none",
    "key": "none",
    "bias": "none",
    "bias_start": "zero",
    "mixing": "free",
    "sources": "outputs",
    "source_norm": False,
    "memory": "full",
    "ways": "one",
    "heads": 1,
    "placement": "replace",
    "sites": "sublayer",
    "key_gain": False,
    "value_share": 0.0,
    "read": "none",
    "carry": "none",
    "write": "none",
    "carry_form": "free",
    "split_width": False,
}
OF_SINGLE_STREAM = ("value_share",)
OF_STREAMS = ("read", "carry", "write", "carry_form", "split_width")
OF_BOTH = ("sites",)  # axes of histories and of n streams
OF_HISTORY = tuple(axis for axis in AXES if axis not in (*OF_SINGLE_STREAM, *OF_STREAMS, *OF_BOTH))


@dataclass(frozen=True)
class Preset:
    """A named point: the axes in which it differs from `AXES`, and what a reader wants to know of it.

    `equation` in plain text; `init`, initial values; `source`, where it is from; `published`, the numbers reported there;
    `difference`, the published loss minus that of the baseline in the same table, in nats, None where none is reported as a
    loss. `prenorm`: whether sublayers and the read-out normalise what they read.
    """

    equation: str
    init: str
    source: str
    published: str
    difference: float | None
    axes: Mapping[str, Any]
    prenorm: bool = True


def refuse(config: Config, axis: str, allowed: str) -> UserError:
    """One line: the axis, its value, what is allowed, where to set it."""
    return bad_value(f"router.{axis}", getattr(config.router, axis), allowed, WHERE.format(f"router.{axis}"))


def check_unused(config: Config, axes: Iterable[str], needed: str) -> None:
    """Axes of other families must be at rest: they would be set without effect."""
    for axis in axes:
        if getattr(config.router, axis) != AXES[axis]:
            allowed = f"{AXES[axis]!r} with router.preset={config.router.preset!r}; other values need a preset with {needed}"
            raise refuse(config, axis, allowed)
