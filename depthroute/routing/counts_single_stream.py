"""Parameters and FLOPs of routers with one stream, in closed form, without JAX."""

from depthroute.config import Config
from depthroute.routing.topology import num_sites


def params(config: Config) -> int:
    """Number of router parameters."""
    M, D, R, k = num_sites(config), config.model.dim, config.router.rank, config.router.window
    counts = {
        "postnorm": M * D,
        "rezero": config.model.layers,
        "skipinit": M,
        "layerscale": M * D,
        "deepnorm": M * D,
        "highway": M * (D * D + D),
        "laurel_rw": M * 2,
        "laurel_lr": M * 2 * D * R,
        "laurel_pa": sum(min(m, k) for m in range(M)),
    }
    return counts[config.router.preset] if config.router.preset in counts else 0


def flops(config: Config) -> int:
    """Forward FLOPs per token: of products with a matrix or a window of reads, and of the first layer's values again."""
    M, D, R, m = num_sites(config), config.model.dim, config.router.rank, config.model
    per_site = {"highway": 2 * D * D, "laurel_lr": 2 * 2 * D * R, "laurel_pa": 2 * D * config.router.window}
    first_values = 2 * D * m.kv_heads * (D // m.heads) if config.router.value_share else 0
    return M * per_site.get(config.router.preset, 0) + first_values
