"""Which sources each consumer sees: plain arithmetic on the config, without arrays.

Sources fill the history in order, and a consumer sees everything written before it, so a number per consumer says it all.
"""

from depthroute.config import Config


def num_sites(config: Config) -> int:
    """How many times the stream is read before the read-out: 2 x layers at sublayer sites, layers at layer sites."""
    return config.model.layers * (2 if config.router.sites == "sublayer" else 1)


def block_of(site: int, sites: int, blocks: int) -> int:
    """The block a site belongs to: equal blocks of sites // blocks, the remainder in the last (arXiv 2603.15031)."""
    return min(site // (sites // blocks), blocks - 1)


def num_visible(config: Config) -> tuple[int, ...]:
    """For every consumer (sites, then the read-out), how many sources it sees; the embedding is always one of them."""
    sites = num_sites(config)
    if config.router.memory == "full":
        return tuple(range(1, sites + 2))
    return (1, *(2 + block_of(m - 1, sites, config.router.blocks) for m in range(1, sites + 1)))


def consumer_names(config: Config) -> tuple[str, ...]:
    """Names of the consumers, for axes of plots: ``attention 0``, ``mlp 0``, ..., ``read-out``."""
    return (*_site_names(config), "read-out")


def source_names(config: Config) -> tuple[str, ...]:
    """Names of the sources, for axes of plots: ``embedding``, then what each site or block wrote."""
    if config.router.memory == "blocks":
        return ("embedding", *(f"block {b}" for b in range(config.router.blocks)))
    return ("embedding", *_site_names(config))


def _site_names(config: Config) -> list[str]:
    layers = range(config.model.layers)
    if config.router.sites == "layer":
        return [f"layer {i}" for i in layers]
    return [f"{kind} {i}" for i in layers for kind in ("attention", "mlp")]
