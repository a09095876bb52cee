"""Measurements made up for the baseline and two routers at two depths, and the document that follows from them."""

from pathlib import Path

import pytest

from depthroute import config as config_lib
from depthroute.bench.arms import make_plan
from depthroute.bench.machine import Probe
from depthroute.bench.measure import Measured
from depthroute.bench.records import make_records

TINY = Path(__file__).parents[2] / "configs" / "tiny.py"
PROBE = Probe(peak_flops=4e9, bandwidth=1e9)
MEASURED = {
    2: {
        "residual": Measured([0.020, 0.010, 0.030], 0.5, 1.5, 1_000_000),
        "attnres": Measured([0.011, 0.013, 0.012], 1.0, 2.0, 1_500_000),
        "qd_ks": Measured([0.012, 0.012, 0.012], 1.0, 2.0, 1_600_000),
    },
    4: {
        "residual": Measured([0.020, 0.021, 0.022], 0.6, 1.6, 1_400_000),
        "attnres": Measured([0.025, 0.024, 0.030], 1.0, 2.6, 3_000_000),
        "qd_ks": Measured([0.026, 0.026, 0.026], 1.0, 2.0, 3_200_000),
    },
}


@pytest.fixture(scope="session")
def plan():
    """plan(routers, layers, **overrides) -> the plan of configs/tiny.py."""
    return lambda routers=(), layers=(2,), **overrides: make_plan(config_lib.load_file(TINY)[0], overrides, routers, layers)


@pytest.fixture(scope="session")
def measured():
    """{layers: {router: Measured}}."""
    return MEASURED


@pytest.fixture
def records_of(plan):
    """records_of(depths) -> the records of a run that has got as far as these depths."""
    found = plan(["attnres", "qd_ks"], (2, 4))
    return lambda *depths: make_records(found, {layers: MEASURED[layers] for layers in depths}, PROBE)


@pytest.fixture
def records(records_of):
    """The records of the whole run."""
    return records_of(2, 4)


@pytest.fixture
def document(records):
    rate = {"before": 2e9, "after": 1.9e9, "best": 2e9}
    return {
        "rejected": None,
        "shape": {"batch": 8, "seq_len": 64, "dim": 32, "heads": 2, "mlp_dim": 64, "vocab": 257},
        "dtype": "float32",
        "history": "buffer",
        "remat": True,
        "devices": ["cpu:cpu"],
        "repeats": 3,
        "peak_flops": rate,
        "bandwidth": rate,
        "provenance": {"versions": {"jax": "0.10.2"}},
        "records": records,
    }
