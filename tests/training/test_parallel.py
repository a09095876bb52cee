"""The same training on one device, on eight by jit, by jit with sharded parameters, and by pmap."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from depthroute.data.batches import Batches
from depthroute.errors import UserError
from depthroute.training.parallel import fsdp_spec, make_mesh, make_programs

PLACEMENTS = {
    "data": {"parallel.data": 8},
    "data and fsdp": {"parallel.data": 2, "parallel.fsdp": 4},
    "pmap": {"parallel.data": 8, "parallel.strategy": "pmap"},
}
STEPS = 5


@pytest.fixture
def batches_SBT(small, corpus):
    config = small()
    batches = Batches(corpus.split("train"), 0, config.data.batch, config.data.seq_len)
    return [batches.batch(step) for step in range(STEPS)]


def train(config, batches_SBT):
    """Initial parameters, the first gradient as it was clipped, and the losses of the first steps."""
    programs = make_programs(config)
    state = programs.init(jax.random.key(config.seed))
    initial = jax.tree.map(np.asarray, programs.one_copy(state).params)
    gradient, losses = None, []
    for tokens_BT in batches_SBT:
        state, metrics = programs.step(state, programs.put(tokens_BT))
        losses.append(float(metrics["loss"]))
        if gradient is None:  # Adam's first mean is the gradient times 1 - beta1
            means = [mean for _, mean in optax.tree.get_all_with_path(programs.one_copy(state).opt_state, "mu")]
            gradient = [np.asarray(leaf) / (1 - config.train.beta1) for leaf in jax.tree.leaves(means)]
    return initial, gradient, losses


@pytest.mark.parametrize("preset", ["qd_kd", pytest.param("residual", marks=pytest.mark.slow)])
def test_devices_change_nothing_but_rounding(small, batches_SBT, preset):
    initial, gradient, losses = train(small(**{"router.preset": preset}), batches_SBT)
    largest = max(np.abs(leaf).max() for leaf in gradient)
    assert len(gradient) == len(jax.tree.leaves(initial)) and len(set(losses)) == STEPS
    for name, placement in PLACEMENTS.items():
        found_initial, found_gradient, found_losses = train(small(**{"router.preset": preset, **placement}), batches_SBT)
        jax.tree.map(np.testing.assert_array_equal, found_initial, initial)
        for found, expected in zip(found_gradient, gradient, strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * largest, err_msg=name)
        np.testing.assert_allclose(found_losses, losses, rtol=2e-6, err_msg=name)


def test_fsdp_shards_parameters_and_optimizer_state(small):
    config = small(**{"router.preset": "qd_kd", **PLACEMENTS["data and fsdp"]})
    programs = make_programs(config)
    state = programs.init(jax.random.key(0))
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert held < 0.3 * whole
    shards = state.params["embed"]["VD"].addressable_shards
    assert {shard.data.shape for shard in shards} == {(257, 4)}
    assert len({str(shard.index) for shard in shards}) == 4
    for leaf, abstract in zip(jax.tree.leaves(state), jax.tree.leaves(programs.abstract), strict=True):
        assert leaf.sharding.is_equivalent_to(abstract.sharding, leaf.ndim)


@pytest.mark.parametrize(
    ("shape", "fsdp", "expected"),
    [
        ((257, 16), 4, P(None, "fsdp")),  # 257 cannot be cut in four
        ((8, 16), 4, P(None, "fsdp")),
        ((16, 8), 4, P("fsdp", None)),
        ((16, 16), 4, P("fsdp", None)),
        ((3, 5), 4, P()),
        ((), 4, P()),
        ((16, 16), 1, P()),
    ],
)
def test_the_longest_axis_that_divides_is_sharded(shape, fsdp, expected):
    assert fsdp_spec(shape, fsdp) == expected


@pytest.mark.parametrize("spec", [P(), P("data"), P("fsdp"), P("data", "fsdp"), P(("data", "fsdp"))])
def test_random_draws_do_not_depend_on_placement(spec):
    def draw(key):
        return jax.random.normal(key, (64, 32))

    placed = jax.jit(draw, out_shardings=NamedSharding(make_mesh(2, 4), spec))(jax.random.key(3))
    np.testing.assert_array_equal(placed, jax.jit(draw)(jax.random.key(3)))


def test_more_devices_than_there_are_is_one_line(small):
    with pytest.raises(UserError, match=r"parallel.data is 16; allowed: .* 8 devices") as error:
        make_programs(small(**{"parallel.data": 16, "data.batch": 16}))
    assert "\n" not in str(error.value)


def test_pmap_devices_hold_equal_copies(small, batches_SBT):
    programs = make_programs(small(**{"router.preset": "qd_kd", **PLACEMENTS["pmap"]}))
    state, _ = programs.step(programs.init(jax.random.key(0)), programs.put(batches_SBT[0]))
    for leaf in jax.tree.leaves(state):
        np.testing.assert_array_equal(leaf, jnp.broadcast_to(leaf[:1], leaf.shape))
    copied = programs.all_copies(programs.one_copy(state))
    jax.tree.map(np.testing.assert_array_equal, copied, state)


def test_runs_that_differ_in_names_and_seed_share_programs(small):
    config = small()
    router = dataclasses.replace(config.router, lr_trials=5, lr_tuned=True)
    assert make_programs(dataclasses.replace(config, arm="other", seed=7, router=router)) is make_programs(config)
    assert make_programs(small(**{"train.lr": 1e-3})) is not make_programs(config)
    assert make_programs(small(**{"router.lr_multiplier": 0.5})) is not make_programs(config)
