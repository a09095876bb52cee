"""Parameters and FLOPs of a router in closed form, without JAX.

FLOPs are those of the forward pass per token, two per multiply-add, of matrix products, scores and mixes. Norms, softmaxes and
additions of streams are left out, as is usual for model FLOPs.
"""

from depthroute.config import Config
from depthroute.routing.presets import SINGLE_STREAM, STREAMS, find
from depthroute.routing.topology import choosers, num_pairs, num_sites, num_sources


def router_params(config: Config) -> int:
    """Number of router parameters."""
    router, D, family = config.router, config.model.dim, find(config.router.preset).family
    if family == SINGLE_STREAM:
        return num_sites(config) * D if router.preset == "postnorm" else 0
    if family == STREAMS:
        return num_sites(config) * _stream_params(config)
    consumers, pairs, sources = len(choosers(config)), num_pairs(config), num_sources(config)
    R = D if router.key == "dynamic_full" else router.rank
    query = {"none": 0, "static": consumers * R, "dynamic": consumers * (R + D * R)}[router.query]
    key = {
        "none": 0,
        "static": sources * R,
        "static_per_consumer": pairs * R,
        "dynamic_full": 0,
        "dynamic_projected": D * R,
        "hybrid": sources * R + D * R + 1,
    }[router.key]
    gain = consumers * D if router.key_gain else 0
    bias = pairs if router.bias == "learned" else 0
    return query + key + gain + bias


def router_flops(config: Config) -> int:
    """Forward FLOPs per token of queries, keys, scores and mixes. A score of two static vectors is not per token."""
    router, D, family = config.router, config.model.dim, find(config.router.preset).family
    if family == SINGLE_STREAM:
        return 0
    if family == STREAMS:
        return num_sites(config) * _stream_flops(config)
    consumers, pairs = len(choosers(config)), num_pairs(config)
    R = D if router.key == "dynamic_full" else router.rank
    projected = router.key in ("dynamic_projected", "hybrid")
    keys = (num_sites(config) + 1) * 2 * D * R if projected else 0
    queries = consumers * 2 * D * R if router.query == "dynamic" else 0
    dynamic_key = router.key in ("dynamic_full", "dynamic_projected", "hybrid")
    scores = pairs * 2 * R if router.query == "dynamic" or dynamic_key else 0
    return keys + queries + scores + pairs * 2 * D


def _coefficients(config: Config) -> dict[str, int]:
    """How many numbers read, carry and write are at one site."""
    n = config.router.streams
    return {"read": n, "carry": n * n, "write": n}


def _map_sizes(config: Config) -> dict[str, int]:
    """Entries of the maps of the dynamic parts of one site.

    A free carry takes a stream's coefficients from that stream alone, by one map for all streams; others take all from all.
    """
    router, D = config.router, config.model.dim
    n = router.streams
    parts = {part: count for part, count in _coefficients(config).items() if getattr(router, part) == "dynamic"}
    return {part: D * count // n if router.carry_form == "free" else n * D * count for part, count in parts.items()}


def _stream_params(config: Config) -> int:
    """Of one site. Each dynamic part has a scale, but read and a free carry share theirs."""
    router, maps = config.router, _map_sizes(config)
    static = sum(count for part, count in _coefficients(config).items() if getattr(router, part) != "none")
    shared = 1 if router.carry_form == "free" and {"read", "carry"} <= maps.keys() else 0
    return static + sum(maps.values()) + len(maps) - shared


def _stream_flops(config: Config) -> int:
    """Of one site. With a free carry every stream is multiplied by the maps, otherwise all of them at once."""
    router, n = config.router, config.router.streams
    maps = sum(_map_sizes(config).values()) * (n if router.carry_form == "free" else 1)
    mixes = sum(count for part, count in _coefficients(config).items() if getattr(router, part) != "none")
    return 2 * maps + 2 * config.model.dim * mixes
