"""Published systems, and the cells of the key x query grid, by name.

A preset is a family and a value for each axis of the routing space. Setting ``router.preset`` sets the axes; an axis that is
set explicitly wins over the preset's. No module about presets imports JAX: sweeps are planned and tables printed without it.
"""

from collections.abc import Mapping
from typing import Any

from depthroute.config import Config
from depthroute.errors import unknown_name
from depthroute.routing import presets_history, presets_single_stream, presets_streams
from depthroute.routing.preset import AXES, Preset

SINGLE_STREAM = "single stream"
HISTORY = "history"
STREAMS = "n streams"

FAMILIES = {SINGLE_STREAM: presets_single_stream, HISTORY: presets_history, STREAMS: presets_streams}
PRESETS: dict[str, Preset] = {name: preset for family in FAMILIES.values() for name, preset in family.PRESETS.items()}
FAMILY_OF = {name: family for family, module in FAMILIES.items() for name in module.PRESETS}


def find(name: str) -> Preset:
    """The preset called `name`, or a UserError that lists the known names."""
    if name not in PRESETS:
        raise unknown_name("router.preset", name, PRESETS, "the config file or --config.router.preset=...")
    return PRESETS[name]


def family_of(config: Config) -> str:
    """The family of the config's preset."""
    find(config.router.preset)
    return FAMILY_OF[config.router.preset]


def expand(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Puts a preset's axes underneath flat overrides that name one: explicit overrides win, the rest is the preset's."""
    if "router.preset" not in overrides:
        return dict(overrides)
    axes = {**AXES, **find(overrides["router.preset"]).axes}
    return {**{f"router.{axis}": value for axis, value in axes.items()}, **overrides}


def check(config: Config) -> None:
    """Refuses combinations of axes that make no sense, with one line that names both fields and says what would be valid."""
    FAMILIES[family_of(config)].check(config)


def start(config: Config) -> str:
    """The function the network computes at first: ``residual``, ``identity``, ``plain``, ``postnorm`` or ``own``.

    ``identity``: every site adds nothing, so logits are those of the embedding.
    """
    return FAMILIES[family_of(config)].start(config)


def prenorm(config: Config) -> bool:
    """Whether sublayers and the read-out normalise what they read."""
    return find(config.router.preset).prenorm


def names() -> tuple[str, ...]:
    """All preset names."""
    return tuple(PRESETS)
