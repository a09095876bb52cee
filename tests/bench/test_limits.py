"""Closed forms against counts by hand, and against what the traced step does."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from depthroute.bench import limits
from depthroute.model.transformer import build
from depthroute.routing.counts import router_flops
from depthroute.training.step import gradients


def dot_flops(jaxpr):
    """FLOPs of all dot_generals of a jaxpr, those in a scan as often as it turns."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracting, _), _ = eqn.params["dimension_numbers"]
            inner = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracting)
            total += 2 * inner * math.prod(eqn.outvars[0].aval.shape)
        turns = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += turns * sum(dot_flops(inner) for inner in jaxprs_in_params(eqn.params))
    return total


@pytest.mark.parametrize("remat", ["true", "false"])
@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
def test_matrix_products_are_those_of_the_traced_step(plan, remat, mlp):
    config = plan(layers=(3,), **{"model.remat": remat, "model.mlp": mlp})[3]["residual"]
    model = build(config)
    params = jax.eval_shape(model.init, jax.random.key(0))
    tokens_BT = jax.ShapeDtypeStruct((config.data.batch, config.data.seq_len + 1), jnp.int32)
    traced = jax.make_jaxpr(lambda params, tokens_BT: gradients(model, params, tokens_BT, 0.0, 1)[1])(params, tokens_BT)
    assert limits.product_flops(config) * limits.tokens_per_device(config) == dot_flops(traced.jaxpr)


# Two layers: sites 0..3 and the read-out; 14 pairs, 4 choosers for a full history at sublayer sites.
ACCESSES = {
    "residual": 0,
    "attnres": 2 * (14 + 4) - 6 * 4,
    "qs_ks": 2 * (14 + 4) - 6 * 4,
    "qd_ks": 2 * (14 + 4) + 14 - 6 * 4,
    # two blocks of two: consumers see 2, 2, 3, 3 (embedding, finished blocks, partial); sites 1 and 3 grow a block
    "attnres_block": 2 * (2 + 2 + 3 + 3 + 4) + 6 * 2 - 6 * 4,
    # layer sites 0, 1 and the read-out see 1, 2 and 3 states; two additions inside each layer and one for each state
    "denseformer": 2 * (2 + 3 + 2) + 6 * (4 + 2) - 6 * 4,
}


@pytest.mark.parametrize("router", ACCESSES)
def test_accesses_by_hand(plan, router):
    assert limits.routing_accesses(plan([router])[2][router]) == ACCESSES[router]


def test_accesses_of_streams_by_hand(plan):
    """Four streams, four sites: ten forward and twenty backward at each, in place of six."""
    config = plan()[2]["residual"]
    streams = replace(config, router=replace(config.router, preset="attnres", read="dynamic", streams=4))
    assert limits.routing_accesses(streams) == 4 * (30 - 6)


def test_a_dilated_history_is_read_less(plan):
    full, dilated = (limits.routing_accesses(c) for c in list(plan(["denseformer", "denseformer_4x5"], (12,))[12].values())[1:])
    assert full - dilated == 2 * (sum(range(2, 14)) + 12) - 2 * (2 + 3 + 2)


def test_sizes(plan):
    config = plan(**{"data.batch": "8", "train.accumulate": "2", "model.dtype": "bfloat16"})[2]["residual"]
    assert limits.tokens_per_device(config) == 8 * 64
    assert limits.stream_bytes(config) == 4 * 64 * 32 * 2
    params = jax.tree.leaves(jax.eval_shape(build(config).init, jax.random.key(0)))
    assert limits.gradient_bytes(config) == sum(4 * leaf.size for leaf in params)


def test_the_limit_is_the_slower_of_arithmetic_and_traffic(plan):
    config = plan(["attnres"])[2]["attnres"]
    tokens = 8 * 64
    traffic, flops = 12 * 32 * 4 * tokens, 3 * router_flops(config) * tokens
    assert limits.routing_limit(config, peak_flops=1e30, bandwidth=10.0) == traffic / 10
    assert limits.routing_limit(config, peak_flops=10.0, bandwidth=1e30) == flops / 10
    assert limits.routing_limit(plan()[2]["residual"], 10.0, 10.0) == 0
