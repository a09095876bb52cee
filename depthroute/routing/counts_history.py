"""Parameters and FLOPs of depth attention, in closed form, without JAX."""

from depthroute.config import Config
from depthroute.routing.topology import choosers, groups, mixes, num_pairs, num_rows, num_sites, num_sources

FULL_WIDTH = ("dynamic_full", "dynamic_raw")
STATIC = ("none", "static", "static_per_consumer", "sinusoidal")
MAPPED = ("dynamic_projected", "hybrid", "centred", "stop_gradient", "recurrent")


def key_width(config: Config) -> int:
    """Width of queries and keys of one mix."""
    router = config.router
    if router.query == "input":
        return config.model.dim
    return config.model.dim // router.heads if router.key in FULL_WIDTH else router.rank


def params(config: Config) -> int:
    """Number of router parameters. What sites need to emit keys belongs to the layers."""
    router, D, R = config.router, config.model.dim, key_width(config)
    rows, pairs, sources = num_rows(config), num_pairs(config), num_sources(config)
    query = {"static": rows * R, "dynamic": rows * (R + D * R), "mlp": pairs * D + _hidden_squares(config)}
    key = {
        "static": sources * R,
        "static_per_consumer": 0 if router.query == "mlp" else pairs * R,
        "dynamic_projected": D * R,
        "hybrid": sources * R + D * R + 1,
        "centred": D * R + sources * D,
        "stop_gradient": D * R,
        "emitted": D * R,
        "recurrent": D * R + R * R + R,
    }
    gain = rows * D // router.heads if router.key_gain else 0
    bias = {"none": 0, "learned": pairs, "per_channel": pairs * D}[router.bias]
    return query.get(router.query, 0) + key.get(router.key, 0) + gain + bias


def flops(config: Config) -> int:
    """Forward FLOPs per token of queries, keys, scores and mixes. A score of two static vectors is not per token."""
    router, D, R = config.router, config.model.dim, key_width(config)
    rows, pairs, sites = num_rows(config), num_pairs(config), num_sites(config)
    keys = (sites + 1) * 2 * D * R if router.key in MAPPED else 0
    keys += {"recurrent": sites * 2 * R * R, "emitted": 2 * D * R}.get(router.key, 0)
    queries = rows * 2 * D * R if router.query == "dynamic" else 0
    scores = pairs * 2 * R if router.query in ("dynamic", "input") or router.key not in STATIC else 0
    if router.query == "mlp":
        queries, scores = pairs * 2 * D, 2 * _hidden_squares(config)
    by_channel = router.bias == "per_channel"
    mixings = by_channel + (router.query != "none" or not by_channel)
    return keys + queries + scores + mixings * pairs * 2 * D // router.heads


def _hidden_squares(config: Config) -> int:
    """Entries of the second maps of `mlp` queries: every consumer's hidden layer is as wide as its scores are many."""
    seen = groups(config)
    return sum((mixes(config, m) * len(seen[m])) ** 2 for m in choosers(config))
