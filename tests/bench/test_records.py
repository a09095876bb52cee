import pytest

from depthroute.bench import limits
from depthroute.bench.records import exponent, slope
from depthroute.model.counts import training_flops


def of(records, router, layers):
    return next(record for record in records if (record["router"], record["layers"]) == (router, layers))


def test_growth_by_hand():
    assert slope((12, 48), (1000.0, 8200.0), 50.0) == 2.0  # 7200 bytes over 72 sublayers, in units of 50
    assert exponent((12, 48), (10.0, 160.0)) == pytest.approx(2.0)
    assert exponent((12, 24), (10.0, 20.0)) == pytest.approx(1.0)


def test_there_is_a_record_of_every_router_and_depth(records):
    assert [(r["layers"], r["router"]) for r in records] == [
        (layers, router) for layers in (2, 4) for router in ("residual", "attnres", "qd_ks")
    ]
    assert len({tuple(record) for record in records}) == 1
    assert set(records[0]) >= {"router", "layers", "step_s", "step_ratio", "compile_s", "temp_bytes", "slope_btd"}


def test_times_are_compared_at_the_same_depth_fastest_with_fastest(records):
    assert of(records, "attnres", 2)["step_ratio"] == pytest.approx(1.1)
    assert of(records, "attnres", 4)["step_ratio"] == pytest.approx(1.2)
    assert of(records, "residual", 2)["median_s"] == 0.020 and of(records, "residual", 2)["step_s"] == 0.010
    assert of(records, "attnres", 4)["compile_s"] == 3.6 and of(records, "attnres", 4)["compile_ratio"] == pytest.approx(1.2)


def test_memory_grows_by_sublayer_in_arrays_of_the_stream(records, plan):
    unit = 8 * 64 * 32 * 4
    record = of(records, "attnres", 2)
    assert record["slope_btd"] == pytest.approx(1_500_000 / 4 / unit)
    assert record["exponent"] == pytest.approx(1.0)
    assert record["extra_btd"] == pytest.approx(500_000 / unit)
    shallow, deep = (plan(["attnres"], (2, 4))[layers]["attnres"] for layers in (2, 4))
    grown = 4 * (of(records, "attnres", 4)["params"] - record["params"])
    assert limits.gradient_bytes(deep) - limits.gradient_bytes(shallow) == grown
    assert record["slope_net_btd"] == pytest.approx((1_500_000 - grown) / 4 / unit)


def test_one_depth_has_no_growth(records_of):
    for record in records_of(2):
        assert record["slope_btd"] is record["slope_net_btd"] is record["exponent"] is record["compile_ratio"] is None


def test_distances_to_the_machine(records, plan):
    """Peak 4 GFLOP/s, 1 GB/s: 12 accesses of 32 floats for 512 tokens are a limit of 0.79 ms; routing took 1 ms."""
    record, plain = of(records, "attnres", 2), of(records, "residual", 2)
    config = plan(["attnres"])[2]["residual"]
    assert record["limit_s"] == pytest.approx(12 * 32 * 4 * 512 / 1e9)
    assert record["distance"] == pytest.approx(0.001 / record["limit_s"])
    assert plain["mfu"] == pytest.approx(training_flops(config) * 512 / 0.010 / 4e9)
    assert plain["over_products"] == pytest.approx(0.010 / (limits.product_flops(config) * 512 / 4e9))
    assert record["over_products"] is plain["limit_s"] is plain["distance"] is None
