"""Parameters and FLOPs of routers with one stream, in closed form, without JAX."""

from depthroute.config import Config
from depthroute.routing.topology import num_sites


def params(config: Config) -> int:
    """Number of router parameters."""
    return num_sites(config) * config.model.dim if config.router.preset == "postnorm" else 0


def flops(config: Config) -> int:
    """Forward FLOPs per token."""
    return 0
