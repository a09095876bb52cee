"""Parameters and FLOPs of a router in closed form, without JAX.

FLOPs are those of the forward pass per token, two per multiply-add, of matrix products, scores and mixes. Norms, softmaxes and
additions of streams are left out, as is usual for model FLOPs.
"""

from depthroute.config import Config
from depthroute.routing import counts_history, counts_single_stream, counts_streams
from depthroute.routing.presets import HISTORY, SINGLE_STREAM, STREAMS, family_of

COUNTS = {SINGLE_STREAM: counts_single_stream, HISTORY: counts_history, STREAMS: counts_streams}


def router_params(config: Config) -> int:
    """Number of router parameters."""
    return COUNTS[family_of(config)].params(config)


def router_flops(config: Config) -> int:
    """Forward FLOPs per token of everything a router multiplies."""
    return COUNTS[family_of(config)].flops(config)
