"""From a config to its router."""

from depthroute.config import Config
from depthroute.routing import depth_attention, single_stream, streams
from depthroute.routing.contract import Router
from depthroute.routing.presets import DEPTH_ATTENTION, SINGLE_STREAM, STREAMS, check, find

FAMILIES = {SINGLE_STREAM: single_stream.build, DEPTH_ATTENTION: depth_attention.build, STREAMS: streams.build}


def build_router(config: Config) -> Router:
    """The router of `config`; refuses combinations of axes that make no sense."""
    check(config)
    return FAMILIES[find(config.router.preset).family](config)
