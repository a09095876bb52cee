"""Presets that keep one stream and no history."""

from depthroute.config import Config
from depthroute.routing.preset import OF_BOTH, OF_HISTORY, OF_STREAMS, Preset, check_unused

PRESETS: dict[str, Preset] = {
    "residual": Preset(
        equation="x <- x + f(norm(x))",
        init="nothing of its own",
        source="He et al., arXiv 1512.03385; pre-norm: Xiong et al., arXiv 2002.04745",
        published="the baseline",
        difference=0.0,
        axes={},
    ),
    "plain": Preset(
        equation="x <- f(norm(x))",
        init="nothing of its own",
        source="a network without skips",
        published="-",
        difference=None,
        axes={},
    ),
    "postnorm": Preset(
        equation="x <- g norm(x + f(x)), a gain g per sublayer",
        init="gains one",
        source="Vaswani et al., arXiv 1706.03762",
        published="-",
        difference=None,
        axes={},
        prenorm=False,
    ),
}


def check(config: Config) -> None:
    """Refuses axes of other families."""
    check_unused(config, (*OF_HISTORY, *OF_BOTH), "a history")
    check_unused(config, OF_STREAMS, "n streams")


def start(config: Config) -> str:
    """The function before the first update (see `presets.start`)."""
    return config.router.preset
