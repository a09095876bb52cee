import gc
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthroute.bench import measure as measure_lib
from depthroute.bench.measure import WARMUP, StatePool, interleave, measure, random_tokens
from depthroute.errors import UserError
from depthroute.training.parallel import make_programs


def test_rounds_go_over_all_arms_back_and_forth_and_the_first_are_not_kept():
    order, ticks = [], []

    def turn(name):
        return lambda: order.append(name) or float(len(order))

    times = interleave({name: turn(name) for name in "abc"}, 3, ticks.append)
    assert "".join(order) == "abccbaabccbaabc"
    assert WARMUP == 2 and times == {"a": [7.0, 12.0, 13.0], "b": [8.0, 11.0, 14.0], "c": [9.0, 10.0, 15.0]}
    assert ticks == [f"round {i} of 5" for i in (1, 2, 3, 4, 5)]


def test_garbage_is_collected_before_rounds_and_not_during_them():
    enabled = []
    interleave({"a": lambda: enabled.append(gc.isenabled()) or 0.0}, 1, lambda text: None)
    assert enabled == [False] * 3 and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        interleave({"a": lambda: 1 / 0}, 1, lambda text: None)
    assert gc.isenabled()


def test_a_pool_of_one_arm_trains_as_its_programs_do(plan):
    config = plan()[2]["residual"]
    programs, tokens_BT = make_programs(config), random_tokens(config)
    pool = StatePool({"residual": programs})
    expected = programs.init(jax.random.key(0))
    for _ in range(2):
        state, _ = programs.step(pool.take("residual"), tokens_BT)
        pool.give("residual", state)
        expected, _ = programs.step(expected, tokens_BT)
    jax.tree.map(np.testing.assert_array_equal, pool.take("residual"), expected)


def test_arms_share_what_they_have_in_common_and_only_that(plan, monkeypatch):
    made, init = [], measure_lib._init
    monkeypatch.setattr(measure_lib, "_init", lambda p, keys, seed: made.extend(keys) or init(p, keys, seed))
    configs = plan(["attnres", "qd_ks"])[2]
    programs = {name: make_programs(config) for name, config in configs.items()}
    pool = StatePool(programs)
    assert len(made) == len(set(made)) == len(pool._arrays)
    sizes = {name: len(jax.tree.leaves(p.abstract)) for name, p in programs.items()}
    for name, p in programs.items():
        state = pool.take(name)
        assert jax.tree.structure(state) == jax.tree.structure(p.abstract)
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(state)] == [(x.shape, x.dtype) for x in jax.tree.leaves(p.abstract)]
        assert len(pool._arrays) == sum(sizes.values()) - 2 * sizes["residual"] - sizes[name]
        pool.give(name, state)


def test_arms_are_measured_in_turn_on_one_state(plan, monkeypatch):
    pools = []
    monkeypatch.setattr(measure_lib, "StatePool", lambda programs: pools.append(StatePool(programs)) or pools[0])
    found = measure(plan(["postnorm"])[2], 2, lambda text: None)
    assert list(found) == ["residual", "postnorm"]
    for m in found.values():
        assert len(m.steps_s) == 2 and min(m.steps_s) > 0 and m.lower_s > 0 and m.compile_s > 0 and m.temp_bytes > 0
    assert int(pools[0].take("residual").step) == 2 * (WARMUP + 2)


def test_a_loss_that_is_not_finite_is_refused():
    pool = SimpleNamespace(take=lambda name: "state", give=lambda name, state: None)
    turn = measure_lib._turn("attnres", lambda state, tokens_BT: (state, {"loss": jnp.array(jnp.nan)}), pool, "tokens")
    with pytest.raises(UserError, match="loss of router 'attnres' is nan"):
        turn()
