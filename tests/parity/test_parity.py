"""Our routers against independent implementations, with weights copied: outputs and gradients of the inputs.

`make parity` makes the environment and runs this; without the packages it is skipped. What differs is listed in docs/parity.md.
"""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthroute.routing.build import build_router
from depthroute.routing.sinkhorn import sinkhorn

torch = pytest.importorskip("torch")
hyper_connections = pytest.importorskip("hyper_connections")
attn_res = pytest.importorskip("attn_res.main")
x_transformers = pytest.importorskip("x_transformers.x_transformers")

B, T, D, N, SITES = 2, 3, 16, 4, 4
EXACT = {"router.key_eps": 1e-12, "model.stream_eps": 1e-12}


def arrays(count, *shape, seed=0):
    return list(np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32))


def check(ours, theirs, inputs, tolerance=1e-5):
    """Both functions' output and gradients of all inputs, of the output's product with a random direction."""
    direction = arrays(1, *ours(*map(jnp.asarray, inputs)).shape, seed=9)[0]
    gradients = jax.grad(lambda *x: jnp.sum(ours(*x) * direction), argnums=tuple(range(len(inputs))))(*map(jnp.asarray, inputs))
    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    out = theirs(*leaves)
    (out * torch.tensor(direction)).sum().backward()
    pairs = [(ours(*map(jnp.asarray, inputs)), out.detach()), *zip(gradients, (leaf.grad for leaf in leaves), strict=True)]
    for a, b in pairs:
        b = b.numpy()
        assert np.max(np.abs(np.asarray(a) - b)) <= tolerance * np.max(np.abs(b))


def our_streams(config, rows):
    """Reads of all sites and the read-out of a router with n streams, for given outputs of the sites."""
    router = build_router(config)

    def run(x_BTD, *updates):
        state, reads = router.init_state({}, x_BTD), []
        for m, update_BTD in enumerate(updates):
            params = {name: jnp.asarray(value[m]) for name, value in rows.items()}
            reads.append(router.read(params, state, m).x_BTD)
            state = router.write(params, state, m, update_BTD)
        return jnp.stack([*reads, router.readout({}, state).x_BTD])

    return run


def their_streams(modules):
    """The same of one module of the package for each site."""

    def run(x, *updates):
        streams, reads = x.repeat_interleave(N, 0), []
        for module, update in zip(modules, updates, strict=True):
            branch_input, add = module(streams)
            reads.append(branch_input)
            streams = add(update)
        return torch.stack([*reads, streams.reshape(B, N, T, D).sum(1)])

    return run


@pytest.mark.parametrize("tanh", [True, False])
def test_dynamic_hyper_connections(tanh):
    """hyper-connections' HyperConnections: alpha [stream, (input, streams)] is our read and the transpose of our carry."""
    config = cases.tiny(**{"router.preset": "hyper_dynamic", "router.squash": tanh, **EXACT})
    modules = [hyper_connections.HyperConnections(N, dim=D, layer_index=m, tanh=tanh) for m in range(SITES)]
    rng = np.random.default_rng(1)
    for module in modules:
        for name, parameter in module.named_parameters():
            if name != "norm.gamma":
                parameter.data += torch.tensor(0.3 * rng.standard_normal(tuple(parameter.shape)), dtype=torch.float32)
    alpha, maps, beta, beta_map = (
        np.stack([getattr(module, name).detach().numpy() for module in modules])
        for name in ("static_alpha", "dynamic_alpha_fn", "static_beta", "dynamic_beta_fn")
    )
    rows = {
        "read_N": alpha[:, :, 0],
        "carry_ON": alpha[:, :, 1:].swapaxes(1, 2),
        "write_O": beta,
        "read_map_D": maps[:, :, 0],
        "carry_map_OD": maps[:, :, 1:].swapaxes(1, 2),
        "write_map_D": beta_map,
        "mix_scale": np.stack([module.dynamic_alpha_scale.detach().numpy() for module in modules]),
        "write_scale": np.stack([module.dynamic_beta_scale.detach().numpy() for module in modules]),
    }
    inputs = arrays(1 + SITES, B, T, D)
    check(our_streams(config, rows), their_streams(modules), inputs)


def test_static_mhc():
    """ManifoldConstrainedHyperConnections without its dynamic part. It normalises carries in the other order; at small logits
    20 iterations reach the one doubly stochastic limit that both orders have.
    """
    axes = {f"router.{part}": "static" for part in ("read", "carry", "write")}
    config = cases.tiny(**{"router.preset": "mhc", **axes, **EXACT})
    modules = [hyper_connections.mHC(N, dim=D, layer_index=m) for m in range(SITES)]
    rng = np.random.default_rng(1)
    for module in modules:
        module.static_alpha.data = torch.tensor(rng.uniform(-1, 1, (N, N + 1)), dtype=torch.float32)
        module.static_beta.data = torch.tensor(rng.uniform(-1, 1, N), dtype=torch.float32)
    alpha = np.stack([module.static_alpha.detach().numpy() for module in modules])
    rows = {
        "read_logit_N": alpha[:, :, 0],
        "carry_logit_ON": alpha[:, :, 1:].swapaxes(1, 2),
        "write_logit_O": np.stack([module.static_beta.detach().numpy() for module in modules]),
    }
    check(our_streams(config, rows), their_streams(modules), arrays(1 + SITES, B, T, D))


def our_read(case, own, **overrides):
    """What the read-out of a history router sees, given the embedding and the outputs of all sites."""
    config = cases.tiny(**cases.CASES[case], **EXACT, **overrides)
    router = build_router(config)

    def run(x_BTD, *updates):
        shared = router.parameters().apply(router.parameters().init(jax.random.key(0)))
        consumers = router.split(shared)
        state = router.init_state(consumers[0], x_BTD)
        for m, update_BTD in enumerate(updates):
            state = router.write(consumers[m], state, m, update_BTD)
        return router.readout({**consumers[-1], **own}, state).x_BTD

    return run


def test_attention_residuals():
    """attn-res' operator has keys without a gain and scores without our 1 / sqrt(D)."""
    operator = attn_res.AttnResOperator(D, eps=1e-12)
    operator.pseudo_query.data = torch.tensor(arrays(1, D)[0])
    own = {"query_CR": jnp.asarray(operator.pseudo_query.detach().numpy())[None] * D**0.5}
    ours = our_read("full_keys_without_gain", own)
    check(ours, lambda *sources: operator(torch.stack(sources)), arrays(1 + SITES, B, T, D))


def test_dynamic_lime():
    """x-transformers' DynamicLIMe: softmax(linear(norm(newest))) over the sources; rows of its matrix are our static keys."""
    module = x_transformers.DynamicLIMe(D, SITES + 1)
    linear = module.to_weights[1]
    own = {
        "key_CSR": jnp.asarray(linear.weight.detach().numpy())[None] * D**0.5,
        "bias_CS": jnp.asarray(linear.bias.detach().numpy())[None],
    }
    ours = our_read("input_query", own, **{"router.bias": "learned"})
    check(ours, lambda *sources: module(sources[-1], torch.stack(sources)), arrays(1 + SITES, B, T, D))


def test_sinkhorn_in_the_log_domain():
    """The package's iterations on a transposed matrix are ours: both end with a softmax over the last axis of their layout."""
    from hyper_connections.manifold_constrained_hyper_connections import log_domain_sinkhorn_knopps

    logits = 3 * arrays(1, N, N, 50)[0]
    theirs = log_domain_sinkhorn_knopps(torch.tensor(np.moveaxis(logits, -1, 0)), 20)
    np.testing.assert_allclose(np.moveaxis(np.asarray(sinkhorn(jnp.asarray(logits), 20)), -1, 0), theirs.numpy(), atol=1e-5)
