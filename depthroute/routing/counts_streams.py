"""Parameters and FLOPs of routers with n streams, in closed form, without JAX."""

from math import factorial

from depthroute.config import Config
from depthroute.routing.topology import num_sites

PARTS = ("read", "carry", "write")


def params(config: Config) -> int:
    """Number of router parameters."""
    n, D = config.router.streams, config.model.dim
    head = n + n * n * D + 1 if config.router.stream_readout == "learned" else 0
    return num_sites(config) * _params_of_site(config) + head


def flops(config: Config) -> int:
    """Forward FLOPs per token of maps, reads, carries and writes."""
    n, D = config.router.streams, config.model.dim
    head = 2 * n * n * D + 2 * n * D if config.router.stream_readout == "learned" else 0
    return num_sites(config) * _flops_of_site(config) + head


def _entries(config: Config, part: str) -> int:
    """How many values or logits a part has at one site."""
    router, n = config.router, config.router.streams
    if part == "carry":
        of_form = {
            "permutations": factorial(n) if n < 9 else 0,
            "kronecker": 2 * (n.bit_length() - 1),
            "orthogonal": n * (n - 1) // 2,
        }
        return of_form.get(router.carry_form, n * n)
    return n * n if part == "read" and router.split_width else n


def _map_entries(config: Config) -> dict[str, int]:
    """Of the maps of the dynamic parts of one site.

    A free carry takes a stream's coefficients from that stream alone, by one map for all streams; others take all from all.
    """
    router, n = config.router, config.router.streams
    D = config.model.dim // n if router.split_width else config.model.dim
    parts = {part: _entries(config, part) for part in PARTS if getattr(router, part) == "dynamic"}
    return {part: D * count // n if router.carry_form == "free" else n * D * count for part, count in parts.items()}


def _params_of_site(config: Config) -> int:
    """Each dynamic part has a scale, but read and a free carry share theirs."""
    router, maps = config.router, _map_entries(config)
    static = sum(_entries(config, part) for part in PARTS if getattr(router, part) != "none")
    shared = 1 if router.carry_form == "free" and {"read", "carry"} <= maps.keys() else 0
    return static + sum(maps.values()) + len(maps) - shared


def _flops_of_site(config: Config) -> int:
    """With a free carry every stream is multiplied by the maps, otherwise all of them at once."""
    router, n, D = config.router, config.router.streams, config.model.dim
    maps = sum(_map_entries(config).values()) * (n if router.carry_form == "free" else 1)
    reads, carries, writes = n * D, 0 if router.carry == "none" else n * n * D, n * D
    if router.split_width:
        carries, writes = carries // n, D
    return 2 * (maps + reads + carries + writes)
