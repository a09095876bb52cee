"""What a step must do, in closed form: matrix products, memory traffic of routing, and the time neither can go below.

Everything is of one device, which holds an equal share of the batch.
"""

from depthroute.config import Config
from depthroute.model.counts import forward_flops, num_params
from depthroute.routing.counts import router_flops
from depthroute.routing.presets import SINGLE_STREAM, family_of
from depthroute.routing.topology import num_pairs, num_rows, num_sites

BYTES = {"float32": 4, "bfloat16": 2}
ADDITION = 6  # forward reads two streams and writes one; backward the same


def tokens_per_device(config: Config) -> int:
    """Tokens that one device sees in a step."""
    return config.data.batch * config.data.seq_len // (config.parallel.data * config.parallel.fsdp)


def stream_bytes(config: Config) -> int:
    """Size of one [B, T, D] array in the compute dtype, for one microbatch."""
    return tokens_per_device(config) // config.train.accumulate * config.model.dim * BYTES[config.model.dtype]


def gradient_bytes(config: Config) -> int:
    """Size of the gradient of all parameters, float32, which a step holds at once since it clips their norm."""
    return 4 * num_params(config) // config.parallel.fsdp


def product_flops(config: Config) -> float:
    """FLOPs per token of the matrix products that a training step of a router without parameters performs.

    Unlike model FLOPs these count all T positions of causal attention, as the dense products do, and under remat the forward
    products that the backward pass repeats: all of the layers' but the output projections, whose results it does not need.
    """
    m = config.model
    masked = m.layers * 2 * 2 * m.dim * (config.data.seq_len - 1) / 2
    forward = forward_flops(config) - router_flops(config) + masked
    kept = 2.0 * m.vocab * m.dim + 2.0 * m.layers * (m.dim * m.dim + m.mlp_dim * m.dim)
    return 3 * forward + (forward - kept if m.remat else 0)


def routing_accesses(config: Config) -> int:
    """Elements of the model's width per token and step that routing reads and writes, beyond what the residual network does.

    The counts are those of a schedule in which a pass reads each stream it needs once, and in which all that can share a pass
    does; scalars and keys of low rank are left out. With P pairs of a consumer and a stream it chooses among, C such consumers,
    n streams and M sites (docs of `routing.topology`; P is about M^2 / 2 for full histories, M x blocks for blocks):

        history, forward           P + C    each consumer reads what it sees and writes its mix
        history, backward          P + C    each stream's gradient is pulled from those of its consumers and written; weight
                                            gradients of static queries and of fixed weights come from the same pass
            dynamic query          P        its gradient is needed before its consumer's turn ends: a pass over the values
        n streams, forward         M (2n + 2)   one pass reads n streams, writes them back and writes what the site sees,
                                            once it has the last site's output
        n streams, backward        twice that   gradients, and the streams they are gradients of

    To these are added, at `ADDITION` each, the additions of whole streams that remain, less the two per layer that a residual
    network makes: two per layer inside a layer site, one per site where sources are states, one where a block grows.
    """
    router, layers, M = config.router, config.model.layers, num_sites(config)
    if family_of(config) == SINGLE_STREAM:
        return 0
    additions = 2 * layers if router.sites == "layer" else 0
    if router.read != "none":
        return 3 * M * (2 * router.streams + 2) + ADDITION * (additions - 2 * layers)
    additions += M if router.sources == "states" else 0
    additions += M - router.blocks if router.memory == "blocks" else 0
    pairs, consumers = num_pairs(config) // router.heads, num_rows(config) // router.heads
    passes = 2 * (pairs + consumers) + (pairs if router.query == "dynamic" else 0)
    return passes + ADDITION * (additions - 2 * layers)


def routing_limit(config: Config, peak_flops: float, bandwidth: float) -> float:
    """The least seconds that routing can add to a step: the roofline, max(FLOPs / peak, bytes / bandwidth).

    FLOPs are those of `router_flops`, three times for forward and backward. Args: FLOP/s and bytes/s.
    """
    tokens = tokens_per_device(config)
    traffic = routing_accesses(config) * config.model.dim * BYTES[config.model.dtype] * tokens
    return max(3 * router_flops(config) * tokens / peak_flops, traffic / bandwidth)
