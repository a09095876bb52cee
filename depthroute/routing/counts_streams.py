"""Parameters and FLOPs of routers with n streams, in closed form, without JAX."""

from depthroute.config import Config
from depthroute.routing.topology import num_sites


def params(config: Config) -> int:
    """Number of router parameters."""
    return num_sites(config) * _stream_params(config)


def flops(config: Config) -> int:
    """Forward FLOPs per token of maps, reads, carries and writes."""
    return num_sites(config) * _stream_flops(config)


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
