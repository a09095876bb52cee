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

    Under `blocks` those are the embedding, the last slot of every finished block, and the newest. Under `window` the embedding
    and the newest `window` others. Under `dilated` every `dilation`-th slot counted back from the newest, for every `period`-th
    consumer, and the newest alone for the others (DenseFormer, arXiv 2402.02622). Under `ends` all, though not each by itself.
    """
    router, consumers = config.router, range(num_sites(config) + 1)
    if router.memory in ("full", "ends"):
        return tuple(tuple(range(m + 1)) for m in consumers)
    if router.memory == "window":
        return tuple((0, *range(max(1, m - router.window + 1), m + 1)) for m in consumers)
    if router.memory == "dilated":
        return tuple(
            tuple(range(m % router.dilation, m + 1, router.dilation)) if m % router.period == 0 else (m,) for m in consumers
        )
    last = {source_in(config, slot): slot for slot in consumers}
    return tuple((*(last[source] for source in range(source_in(config, m))), m) for m in consumers)


def groups(config: Config) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For every consumer, the slots it reads, in groups that it sees as their sum and gives one weight.

    Under `ends` all but the first and the newest `window` slots are one group (k-DCA, arXiv 2502.06785).
    """
    if config.router.memory != "ends":
        return tuple(tuple((slot,) for slot in slots) for slots in visible_slots(config))
    found = []
    for m in range(num_sites(config) + 1):
        newest = range(max(1, m - config.router.window + 1), m + 1)
        middle = tuple(range(1, newest.start))
        found.append(((0,), *([middle] if middle else []), *((slot,) for slot in newest)))
    return tuple(found)


def mix_names(config: Config, m: int) -> tuple[str, ...]:
    """Names of the mixes of consumer m, one for each way and head. The read-out has one way, and under `kv` it makes no mix."""
    router, is_site = config.router, m < num_sites(config)
    if router.ways == "kv":
        heads = range(config.model.kv_heads) if is_site else ()
        return tuple(f"{way} of head {g}" for way in ("key", "value") for g in heads)
    if router.ways != "one":
        return ("query", "key", "value", "residual")[: len(router.ways)] if is_site else ("",)
    return tuple(f"head {h}" for h in range(router.heads)) if router.heads > 1 else ("",)


def row_consumers(config: Config) -> tuple[int, ...]:
    """The consumer of every row of a trace: each makes one row for every mix."""
    return tuple(m for m in range(num_sites(config) + 1) for _ in mix_names(config, m))


def visible_sources(config: Config) -> tuple[tuple[int, ...], ...]:
    """For every row of a trace, the sources it sees, oldest first."""
    slots = visible_slots(config)
    return tuple(tuple(source_in(config, slot) for slot in slots[m]) for m in row_consumers(config))


def num_sources(config: Config) -> int:
    """How many sources there are in the end."""
    return 1 + source_in(config, num_sites(config))


def choosers(config: Config) -> tuple[int, ...]:
    """Consumers that see more than one source. The others have nothing to choose and own no parameters."""
    return tuple(m for m, seen in enumerate(groups(config)) if len(seen) > 1 and mixes(config, m))


def mixes(config: Config, m: int) -> int:
    """How many mixes of what it sees consumer m makes."""
    return len(mix_names(config, m))


def num_rows(config: Config) -> int:
    """How many mixes there are to choose weights for."""
    return sum(mixes(config, m) for m in choosers(config))


def num_pairs(config: Config) -> int:
    """How many pairs of such a mix and a group of slots there are to choose among."""
    seen = groups(config)
    return sum(mixes(config, m) * len(seen[m]) for m in choosers(config))


def consumer_names(config: Config) -> tuple[str, ...]:
    """Names of a trace's rows, for axes of plots: ``attention 0``, ``mlp 0``, ..., ``read-out``, with their mix if named."""
    consumers = (*_site_names(config), "read-out")
    return tuple(", ".join(filter(None, (name, mix))) for m, name in enumerate(consumers) for mix in mix_names(config, m))


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
