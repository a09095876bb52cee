"""depthroute: an experiment framework for how a transformer's layers choose among the outputs of earlier ones."""

from typing import Any

__version__ = "0.1.0"


def build(config: Any) -> Any:
    """The model that a config (a ConfigDict, a nested dictionary or a `Config`) describes: `.init(key)`, `.apply(params, tokens)`."""
    from depthroute.config import Config, resolve
    from depthroute.model.transformer import build

    return build(config if isinstance(config, Config) else resolve(config))


def presets() -> tuple[str, ...]:
    """Names of the published systems and grid cells that ``router.preset`` accepts."""
    from depthroute.routing.presets import names

    return names()
