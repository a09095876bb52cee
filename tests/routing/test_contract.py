"""The contract: what every router satisfies. A new preset, and a new entry of cases.VARIANTS, is tested by being there."""

import dataclasses
from collections import Counter

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from expect import largest_difference
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from reference import decoder

import depthroute
from depthroute.model.counts import forward_flops, num_params
from depthroute.model.depth import run_depth
from depthroute.routing import keys
from depthroute.routing.counts import router_params
from depthroute.routing.presets import start
from depthroute.routing.topology import choosers, num_pairs, num_sites, num_sources, row_consumers, visible_sources
from depthroute.training.checkpoint import Checkpoints
from depthroute.training.optimizer import make_optimizer
from depthroute.training.state import TrainState
from depthroute.training.step import gradients

every_preset = pytest.mark.parametrize("case", cases.PRESETS)
every_case = pytest.mark.parametrize(
    "case",
    [
        case if case in (*cases.PRESETS, *cases.FAST_VARIANTS) else pytest.param(case, marks=pytest.mark.slow)
        for case in cases.CASES
    ],
)


def fast_for(*fast):
    """Every preset, the others in the slow lane: for tests that compile something of their own for each."""
    marked = [preset if preset in fast else pytest.param(preset, marks=pytest.mark.slow) for preset in cases.PRESETS]
    return pytest.mark.parametrize("case", marked)


# One stream and many sources, with and without a norm, at sublayers and at whole layers.
one_of_each_kind = fast_for("residual", "postnorm", "denseformer", "qd_kh")

# Routers whose consumers do not see everything written before them, and what consumer m then sees (0 is the embedding).
SEES_ONLY = {"plain": lambda m: {m}, "attnres_window": lambda m: {0, *range(max(1, m - 1), m + 1)}}


def with_model(config, **fields):
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **fields))


# --- the function ----------------------------------------------------------------------------------------------------


@every_case
def test_logits_have_their_shape_and_dtype_and_are_finite(built, case):
    it = built(case)
    logits_BTV, _ = it.traced
    assert logits_BTV.shape == (*it.tokens_BT.shape, it.config.model.vocab)
    assert logits_BTV.dtype == jnp.float32
    assert jnp.isfinite(logits_BTV).all()
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(it.params))


@every_case
def test_the_network_is_the_one_of_the_equations(built, case):
    """Logits, scores and weights against the float64 NumPy decoder, at random router parameters."""
    it = built(case)
    logits_BTV, trace = it.traced
    expected_BTV, scores, weights = it.reference
    assert largest_difference(logits_BTV, expected_BTV) < 1e-4
    assert (trace is None) == (weights is None)
    for m, sources in enumerate(visible_sources(it.config) if weights else ()):
        np.testing.assert_allclose(trace.scores_BTMS[:, :, m, list(sources)], scores[m], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(trace.weights_BTMS[:, :, m, list(sources)], weights[m], rtol=1e-3, atol=1e-4)


@every_case
def test_it_starts_as_the_function_it_declares(built, case):
    """Initial logits against those of the network named by `start`, with the same shared parameters."""
    it = built(case)
    config, declared = it.config, start(it.config)
    assert declared in ("residual", "identity", "plain", "postnorm", "own")
    if declared == "residual":
        residual = cases.tiny(**{"router.preset": "residual"}).router
        network = depthroute.build(dataclasses.replace(config, router=residual))
        expected_BTV = network.apply({**it.params, "router": {}}, it.tokens_BT)
    elif declared == "identity":
        expected_BTV = it.params["embed"]["VD"][it.tokens_BT] @ it.params["embed"]["VD"].T
    else:
        expected_BTV, _, _ = decoder(config, it.params, it.tokens_BT)
    assert largest_difference(it.model.apply(it.params, it.tokens_BT), expected_BTV) < 1e-5


@one_of_each_kind
def test_jit_changes_nothing(built, case):
    it = built(case)
    logits_BTV, _ = it.traced
    assert largest_difference(it.jitted(it.randomised, it.tokens_BT), logits_BTV) < 1e-5


@one_of_each_kind
def test_eight_devices_compute_what_one_computes(built, case):
    """Eight sequences, one on each device, against all of them on one."""
    it = built(case)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    assert mesh.size == len(it.tokens_BT) == 8
    params = jax.device_put(it.randomised, NamedSharding(mesh, P()))
    sharded_BTV = it.jitted(params, jax.device_put(it.tokens_BT, NamedSharding(mesh, P("data"))))
    assert len({shard.device for shard in sharded_BTV.addressable_shards}) == 8
    assert sharded_BTV.addressable_shards[0].data.shape[0] == 1
    assert largest_difference(sharded_BTV, it.jitted(it.randomised, it.tokens_BT)) < 2e-6


@every_preset
def test_bfloat16_stays_near_float32(built, case):
    """A few per cent apart: each rounding is 2^-9 of its value, and there are about ten to a sublayer.

    A free dynamic carry at random mixes the streams over and over, and with them their roundings; random weights of both signs
    cancel, four ways at once.
    """
    it = built(case)
    logits_BTV, trace = depthroute.build(with_model(it.config, dtype="bfloat16")).apply(it.randomised, it.tokens_BT, trace=True)
    exact_BTV, _ = it.traced
    assert logits_BTV.dtype == jnp.float32
    assert (
        0
        < jnp.sqrt(jnp.mean(jnp.square(logits_BTV - exact_BTV)) / jnp.mean(jnp.square(exact_BTV)))
        < {"hyper_dynamic": 0.06, "mudd": 0.08}.get(case, 0.05)
    )
    if trace is not None:
        assert trace.scores_BTMS.dtype == trace.weights_BTMS.dtype == jnp.float32


@fast_for("residual", "denseformer")
def test_rematerialisation_changes_nothing(built, case):
    it = built(case)
    remat = depthroute.build(with_model(it.config, remat=True))
    assert "remat" in str(jax.make_jaxpr(remat.apply)(it.params, it.tokens_BT))
    assert "remat" not in str(jax.make_jaxpr(it.model.apply)(it.params, it.tokens_BT))
    loss, grads = it.gradient
    remat_loss, remat_grads = gradients(remat, it.params, it.sequences_BT, 0.0, 1)
    np.testing.assert_allclose(remat_loss, loss, rtol=1e-6)
    for leaf, remat_leaf in zip(jax.tree.leaves(grads), jax.tree.leaves(remat_grads), strict=True):
        np.testing.assert_allclose(remat_leaf, leaf, rtol=1e-5, atol=1e-6 * np.max(np.abs(leaf)))


# --- causality -------------------------------------------------------------------------------------------------------


def router_influence(it):
    """Which written arrays move what consumers read: the router alone, with updates that do not depend on what was read.

    Returns the largest gradient, over the width, of what consumer m reads at position 3 with respect to written array i (0 is
    the embedding) at each position: [consumers, written, T]. Consumer m is looked at in row m of the batch, so one
    gradient holds them all.
    """
    router, shape_BTD = it.model.router, (*it.tokens_BT.shape, it.config.model.dim)
    params = router.parameters().apply({"params": it.randomised["router"]})
    rng, M = np.random.default_rng(2), num_sites(it.config)
    emitted = it.config.router.rank if it.config.router.key == "emitted" else 0
    shapes = [shape_BTD, *[(*shape_BTD[:2], shape_BTD[2] + emitted)] * M]
    written = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
    direction_D = jnp.asarray(rng.standard_normal(shape_BTD[-1]), jnp.float32)

    def reads(written):
        seen = []

        def site(update_BTD):
            return lambda x_BTD: (seen.append(x_BTD), update_BTD)[1]

        readout_BTD, _ = run_depth(router, params, [site(update_BTD) for update_BTD in written[1:]], written[0])
        return sum(jnp.sum(x[m, 3] @ direction_D) for m, read in enumerate((*seen, readout_BTD)) for x in jax.tree.leaves(read))

    influence_MBT = np.stack([np.abs(gradient).max(axis=-1) for gradient in jax.grad(reads)(written)])
    return influence_MBT.swapaxes(0, 1)[: M + 1]


def check_token_locality(influence_NMT):
    assert np.all(np.delete(influence_NMT, 3, axis=-1) == 0), "a router read another position"


@every_case
def test_a_consumer_reads_what_was_written_before_it_at_its_own_position(built, case):
    influence_NMT = router_influence(built(case))
    for m, influence_M in enumerate(influence_NMT[:, :, 3]):
        allowed = SEES_ONLY[case](m) if case in SEES_ONLY else set(range(m + 1))
        assert set(np.flatnonzero(influence_M)) == allowed
    check_token_locality(influence_NMT)


def test_the_token_locality_check_can_fail(built, monkeypatch):
    norm = keys.rms_norm
    monkeypatch.setattr(keys, "rms_norm", lambda x, eps: norm(x + jnp.mean(x, axis=1, keepdims=True), eps))
    with pytest.raises(AssertionError, match="another position"):
        check_token_locality(router_influence(built("qs_kd")))


def check_token_causality(config, params, tokens_BT):
    """Logits depend on exactly the embeddings up to their own position.

    All tokens of the batch differ and the head is untied, so a row of the embedding matrix is the embedding of one position of
    one sequence. The logits at position t are looked at in sequence t, so one gradient does.
    """
    model, T = depthroute.build(with_model(config, tied_head=False)), tokens_BT.shape[1]
    assert len(np.unique(tokens_BT)) == T * T
    direction_V = jnp.asarray(np.random.default_rng(3).standard_normal(config.model.vocab), jnp.float32)

    def project(embed_VD):
        logits_BTV = model.apply({**params, "embed": {"VD": embed_VD}}, tokens_BT)
        return sum(logits_BTV[t, t] @ direction_V for t in range(T))

    influence_TU = np.abs(jax.grad(project)(params["embed"]["VD"]))[tokens_BT].max(axis=-1)
    assert np.all(influence_TU[np.triu_indices(T, 1)] == 0), "a logit depends on a later token"
    assert np.all(influence_TU[np.tril_indices(T)] > 0), "a logit does not depend on an earlier token"


def causality_inputs(it):
    head_VD = jax.random.normal(jax.random.key(4), it.params["embed"]["VD"].shape)
    return it.config, {**it.randomised, "head": {"VD": head_VD}}, it.tokens_BT


@every_case
def test_a_logit_depends_on_exactly_the_tokens_up_to_its_own(built, case):
    check_token_causality(*causality_inputs(built(case)))


@pytest.mark.parametrize("case", ["residual", "qd_kd"])
def test_the_token_causality_check_fails_without_the_mask(built, case, monkeypatch):
    monkeypatch.setattr("depthroute.nn.attention.jnp.tril", lambda mask: mask)
    with pytest.raises(AssertionError, match="later token"):
        check_token_causality(*causality_inputs(built(case)))


# --- parameters ------------------------------------------------------------------------------------------------------


@every_case
def test_every_router_parameter_gets_a_gradient_in_three_steps(built, case):
    """Each leaf, and each row of each stacked leaf: of each consumer, of each source, of each pair."""
    it = built(case)
    params, (_, grads) = it.params, it.gradient
    reached = jax.tree.map(lambda leaf: np.zeros(leaf.shape[:1], bool), params["router"])
    for attempt in range(3):
        params, grads = jax.tree.map(np.asarray, (params, grads))
        rows = jax.tree.map(lambda g: np.abs(g).reshape(*g.shape[:1], -1).max(axis=-1) > 0, grads["router"])
        reached = jax.tree.map(np.logical_or, reached, rows)
        if attempt < 2:
            params = jax.tree.map(lambda p, g: p - 0.01 * g / (np.max(np.abs(g)) + 1e-20), params, grads)
            _, grads = gradients(it.model, jax.tree.map(jnp.asarray, params), it.sequences_BT, 0.0, 1)
    unreached = {jax.tree_util.keystr(path): rows for path, rows in jax.tree.leaves_with_path(reached) if not np.all(rows)}
    assert not unreached


@every_case
def test_a_consumer_with_one_source_owns_nothing(built, case):
    """Consumers that see one source get what is shared and no rows, and the others share all rows out."""
    it = built(case)
    params = it.model.router.parameters().apply({"params": it.params["router"]})
    consumers = it.model.router.split(params)
    assert len(consumers) == num_sites(it.config) + 1
    if hasattr(it.model.router, "stack"):  # these have rows for sites, not for consumers that choose
        assert bool(consumers[-1]) == (it.config.router.stream_readout == "learned")
        return
    assert all(value is params[name] for name, value in consumers[0].items())
    owned = sum(value.size for consumer in consumers[1:] for name, value in consumer.items() if name not in consumers[0])
    assert owned + sum(value.size for value in consumers[0].values()) == sum(value.size for value in params.values())


@every_case
def test_parameter_counts_in_closed_form(built, case):
    it = built(case)
    count = sum(leaf.size for leaf in jax.tree.leaves(it.params))
    assert num_params(it.config) == count
    assert router_params(it.config) == sum(leaf.size for leaf in jax.tree.leaves(it.params["router"]))


def distinct_equations(program):
    """Equations of a jaxpr and of those inside it, each kind of computation on the same inputs once, as a compiler would."""
    numbers, equations = {}, []

    def number(key):
        return numbers.setdefault(key, len(numbers))

    def walk(jaxpr, inputs):
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        known.update((var, number(("constant", id(jaxpr), i))) for i, var in enumerate(jaxpr.constvars))

        def value(atom):
            return number(("literal", str(atom.val), str(atom.aval))) if hasattr(atom, "val") else known[atom]

        for eqn in jaxpr.eqns:
            operands = [value(atom) for atom in eqn.invars]
            inner = [p for p in eqn.params.values() if hasattr(p, "jaxpr") or hasattr(p, "eqns")]
            if inner:
                assert len(inner) == 1, f"{eqn.primitive} has several bodies"
                results = walk(getattr(inner[0], "jaxpr", inner[0]), operands)
            else:
                key = (eqn.primitive.name, str(eqn.params), *operands)
                if key not in numbers:
                    equations.append(eqn)
                results = [number(key) if i == 0 else number((key, i)) for i in range(len(eqn.outvars))]
            known.update(zip(eqn.outvars, results, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    walk(program.jaxpr, [number(("argument", i)) for i in range(len(program.jaxpr.invars))])
    return equations


def counted_flops(config, params, T):
    """FLOPs per token of the matrix products of the traced forward pass, and of mixes and writes, which are products of an
    array of width one and one of width D.
    """
    model, D = depthroute.build(config), config.model.dim
    total = 0
    for eqn in distinct_equations(jax.make_jaxpr(model.apply)(params, jnp.zeros((1, T), jnp.int32))):
        shapes = [var.aval.shape for var in eqn.invars]
        out = eqn.outvars[0].aval.shape
        per_token = any(size % T == 0 for size in out)  # a score of two static vectors is not
        if eqn.primitive.name == "dot_general" and per_token:
            (contracted, _), _ = eqn.params["dimension_numbers"]
            total += 2 * np.prod(out) * np.prod([shapes[0][axis] for axis in contracted])
        mixes = eqn.primitive.name == "mul" and out in [(1, T, D), (1, T, D // config.router.heads)]
        if mixes and Counter(shapes) == Counter([(1, T, 1), out]) and eqn.invars[0].aval.shape == (1, T, 1):
            total += 2 * T * out[-1]  # multiplied, then added to the sum
        widths = [shape[2:] for shape in shapes]
        n = out[2] if len(out) == 4 else 1
        if eqn.primitive.name == "mul" and len(out) == 4 and widths in ([(n, 1), (1, D)], [(n, 1), (n, D // n)]):
            total += 2 * np.prod(out)  # a write to each stream
    return total / T


@every_case
def test_flop_counts_in_closed_form(built, case):
    """The code computes all T x T attention scores; the closed form counts the (T + 1) / 2 that causality needs."""
    T = 7
    it = built(case)
    config = dataclasses.replace(it.config, data=dataclasses.replace(it.config.data, seq_len=T))
    masked_away = config.model.layers * 2 * 2 * config.model.dim * (T - (T + 1) / 2)
    by_channel = 2 * num_pairs(config) * config.model.dim if config.router.bias == "per_channel" else 0  # look like gains
    assert counted_flops(config, it.params, T) + by_channel == forward_flops(config) + masked_away


@every_preset
def test_a_checkpoint_holds_every_bit(built, case, tmp_path):
    it = built(case)
    optimizer = make_optimizer(it.config)
    state = TrainState(jnp.asarray(3, jnp.int32), it.randomised, optimizer.init(it.randomised))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.save(3, state)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state)
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    assert checkpoints.latest_step() == 3
    restored = checkpoints.restore(abstract)
    checkpoints.close()
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert all(map(np.array_equal, jax.tree.leaves(restored), jax.tree.leaves(state)))


# --- trace -----------------------------------------------------------------------------------------------------------


@every_case
def test_weights_are_normalised_as_their_mixing_declares(built, case):
    it = built(case)
    logits_BTV, trace = it.traced
    if trace is None:
        return
    visible_MS = np.asarray(trace.visible_MS)
    consumers = row_consumers(it.config)
    choosing = [row for row, m in enumerate(consumers) if m in choosers(it.config)]
    for m in choosing:
        weights = np.asarray(trace.weights_BTMS)[:, :, m, visible_MS[m]]
        if it.config.router.bias == "per_channel":
            offset = weights - np.maximum(np.asarray(trace.scores_BTMS)[:, :, m, visible_MS[m]], 0)
            np.testing.assert_allclose(offset, np.broadcast_to(offset[:1, :1], offset.shape), atol=1e-6)
        elif it.config.router.mixing == "softmax":
            np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
            assert (weights >= 0).all()
        elif it.config.router.mixing == "sigmoid":
            assert ((weights > 0) & (weights < 1)).all()
        else:
            np.testing.assert_array_equal(weights, np.asarray(trace.scores_BTMS)[:, :, m, visible_MS[m]])
    for m in set(range(len(visible_MS))) - set(choosing):
        assert np.all(np.asarray(trace.weights_BTMS)[:, :, m, visible_MS[m]] == 1)


@every_case
def test_traces_cover_every_consumer_and_source_and_are_zero_elsewhere(built, case):
    it = built(case)
    _, trace = it.traced
    if trace is None:
        assert hasattr(it.model.router, "stack")
        return
    visible, S = visible_sources(it.config), num_sources(it.config)
    rows = len(row_consumers(it.config))
    assert trace.scores_BTMS.shape == trace.weights_BTMS.shape == (*it.tokens_BT.shape, rows, S)
    expected_MS = np.array([[s in sources for s in range(S)] for sources in visible])
    np.testing.assert_array_equal(trace.visible_MS, expected_MS)
    for array_BTMS in (trace.scores_BTMS, trace.weights_BTMS):
        assert np.all(np.asarray(array_BTMS)[:, :, ~expected_MS] == 0)
    assert np.all(np.asarray(trace.weights_BTMS)[:, :, expected_MS] != 0)
