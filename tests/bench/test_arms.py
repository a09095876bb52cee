import pytest

from depthroute.bench.arms import ARMS, DEFAULT_ROUTERS, parse_layers, parse_names
from depthroute.errors import UserError
from depthroute.routing.topology import visible_slots


def test_every_depth_has_the_same_arms_and_the_baseline_first(plan):
    found = plan(["qd_ks", "residual", "attnres"], (4, 2, 4))
    assert list(found) == [2, 4]
    for layers, configs in found.items():
        assert list(configs) == ["residual", "qd_ks", "attnres"]
        assert [c.arm for c in configs.values()] == list(configs)
        assert {(c.model.layers, c.engine.history, c.model.remat) for c in configs.values()} == {(layers, "buffer", True)}


def test_overrides_win_in_every_arm(plan):
    configs = plan(["qd_ks"], (2,), **{"engine.history": "list", "model.remat": "false", "router.rank": "4"})[2]
    assert {(c.engine.history, c.model.remat, c.router.rank) for c in configs.values()} == {("list", False, 4)}


def test_an_arm_may_change_axes_of_its_preset(plan):
    config = plan(["denseformer_4x5"], (12,))[12]["denseformer_4x5"]
    assert config.router.preset == "denseformer"
    assert [slots for slots in visible_slots(config) if len(slots) > 1] == [(1, 5), (2, 6, 10)]


def test_the_default_routers_are_known():
    assert set(DEFAULT_ROUTERS) <= set(ARMS)


@pytest.mark.parametrize(
    ("routers", "overrides", "message"),
    [
        (["atnres"], {}, "unknown router 'atnres' (did you mean 'attnres'?)"),
        ([], {"router.preset": "attnres"}, "give --routers instead"),
        ([], {"model.layers": "3"}, "give --layers instead"),
        ([], {"parallel.strategy": "pmap"}, "parallel.strategy is 'pmap'; allowed: 'jit'"),
        (["qd_ks"], {"router.rank": "64"}, "router.rank is 64"),
    ],
)
def test_what_cannot_be_measured_is_refused(plan, routers, overrides, message):
    with pytest.raises(UserError) as refused:
        plan(routers, **overrides)
    assert message in str(refused.value)


def test_lists_on_the_command_line():
    assert parse_names("a, b,c") == ("a", "b", "c") and parse_names("") == ()
    assert parse_layers("12,24, 48") == (12, 24, 48)
    for wrong in ("", "a", "1,-2", "0", "1.5"):
        with pytest.raises(UserError, match="layers is"):
            parse_layers(wrong)
