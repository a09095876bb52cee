"""depthroute: an experiment framework for how a transformer's layers choose among the outputs of earlier ones."""

from typing import Any

__version__ = "0.1.0"


def build(config: Any) -> Any:
    """The model that a ConfigDict, a nested dictionary or a `Config` describes.

    ``model.init(key) -> params``, ``model.apply(params, tokens, trace=False) -> logits``.
    """
    from depthroute.config import Config, resolve
    from depthroute.model.transformer import build

    return build(config if isinstance(config, Config) else resolve(config))


def presets() -> tuple[str, ...]:
    """Names of the published systems and grid cells that ``router.preset`` accepts."""
    from depthroute.routing.presets import names

    return names()


def load_run(path: Any) -> Any:
    """A finished or interrupted run: `.config`, `.params`, `.trace(tokens) -> (logits, trace)`."""
    from depthroute.runs.load import load_run

    return load_run(path)
