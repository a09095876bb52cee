"""Which sources each consumer sees: plain arithmetic on the config, without arrays.

Sources are numbered as traces and parameters number them. A block is one source that grows while its sites write, so which of
its values a consumer saw is told by the *slot*: slot 0 is the embedding, slot m + 1 what stood in the history after site m.
"""

from depthroute.config import Config


def num_sites(config: Config) -> int:
    """How many times the stream is read before the read-out: 2 x layers at sublayer sites, layers at layer sites."""
    return config.model.layers * (2 if config.router.sites == "sublayer" else 1)


def block_of(site: int, sites: int, blocks: int) -> int:
    """The block a site belongs to: equal blocks of sites // blocks, the remainder in the last (arXiv 2603.15031)."""
    return min(site // (sites // blocks), blocks - 1)


def source_in(config: Config, slot: int) -> int:
    """The source whose value the slot holds."""
    if config.router.memory != "blocks" or slot == 0:
        return slot
    return 1 + block_of(slot - 1, num_sites(config), config.router.blocks)


def visible_slots(config: Config) -> tuple[tuple[int, ...], ...]:
    """For every consumer (sites, then the read-out), the slots it reads, oldest first; the newest is always one of them.

    Under `blocks` those are the embedding, the last slot of every finished block, and the newest. Under `dilated` every
    `dilation`-th slot counted back from the newest, for every `period`-th consumer, and the newest alone for the others
    (DenseFormer, arXiv 2402.02622).
    """
    router, consumers = config.router, range(num_sites(config) + 1)
    if router.memory == "full":
        return tuple(tuple(range(m + 1)) for m in consumers)
    if router.memory == "dilated":
        return tuple(
            tuple(range(m % router.dilation, m + 1, router.dilation)) if m % router.period == 0 else (m,) for m in consumers
        )
    last = {source_in(config, slot): slot for slot in consumers}
    return tuple((*(last[source] for source in range(source_in(config, m))), m) for m in consumers)


def visible_sources(config: Config) -> tuple[tuple[int, ...], ...]:
    """For every consumer (sites, then the read-out), the sources it sees, oldest first."""
    return tuple(tuple(source_in(config, slot) for slot in slots) for slots in visible_slots(config))


def num_sources(config: Config) -> int:
    """How many sources there are in the end."""
    return 1 + source_in(config, num_sites(config))


def choosers(config: Config) -> tuple[int, ...]:
    """Consumers that see more than one source. The others have nothing to choose and own no parameters."""
    return tuple(m for m, slots in enumerate(visible_slots(config)) if len(slots) > 1)


def num_pairs(config: Config) -> int:
    """How many (consumer, source) pairs there are to choose among."""
    visible = visible_slots(config)
    return sum(len(visible[m]) for m in choosers(config))


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
