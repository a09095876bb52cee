"""Parameters and FLOPs of a router in closed form, without JAX.

FLOPs are those of the forward pass per token, two per multiply-add, of matrix products, scores and mixes. Norms, softmaxes and
additions of streams are left out, as is usual for model FLOPs.
"""

from depthroute.config import Config
from depthroute.routing.presets import SINGLE_STREAM, find
from depthroute.routing.topology import choosers, num_pairs, num_sites, num_sources


def router_params(config: Config) -> int:
    """Number of router parameters."""
    router, D = config.router, config.model.dim
    if find(router.preset).family == SINGLE_STREAM:
        return num_sites(config) * D if router.preset == "postnorm" else 0
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
    router, D = config.router, config.model.dim
    if find(router.preset).family == SINGLE_STREAM:
        return 0
    consumers, pairs = len(choosers(config)), num_pairs(config)
    R = D if router.key == "dynamic_full" else router.rank
    projected = router.key in ("dynamic_projected", "hybrid")
    keys = (num_sites(config) + 1) * 2 * D * R if projected else 0
    queries = consumers * 2 * D * R if router.query == "dynamic" else 0
    dynamic_key = router.key in ("dynamic_full", "dynamic_projected", "hybrid")
    scores = pairs * 2 * R if router.query == "dynamic" or dynamic_key else 0
    return keys + queries + scores + pairs * 2 * D
