"""From a config to its router."""

from depthroute.config import Config
from depthroute.routing import depth_attention, single_stream, streams
from depthroute.routing.contract import Router
from depthroute.routing.presets import HISTORY, SINGLE_STREAM, STREAMS, check, family_of

BUILD = {SINGLE_STREAM: single_stream.build, HISTORY: depth_attention.build, STREAMS: streams.build}


def build_router(config: Config) -> Router:
    """The router of `config`; refuses combinations of axes that make no sense."""
    check(config)
    return BUILD[family_of(config)](config)
