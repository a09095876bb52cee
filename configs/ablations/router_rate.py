"""The router's learning rate of every arm of the key x query grid, chosen on the tune split, which no table uses.

    depthroute sweep --config configs/ablations/router_rate.py --workdir runs/router_rate
    python benchmarks/router_rates.py runs/router_rate records/2026-12-01_router_rates

The second command draws the curves and writes rates.json, which key_query_grid.py reads. Every arm gets the same seven
multipliers of the model's rate: five from 0.01 to 3, and two more because most arms were best at 3. One whose best is still at
an edge gets two more beyond that edge, once.
"""

from pathlib import Path

from ml_collections import ConfigDict

from depthroute import config as config_lib
from depthroute.runs.sweep import chain, fixed

GRID = config_lib.load_module(Path(__file__).with_name("key_query_grid.py"))

TITLE = "Router learning rates"
QUESTION = "At which multiple of the model's learning rate does each arm's router train best?"
NOTE = "One seed, the tune split: for choosing rates, not for comparing arms."
RATES = (0.01, 0.04, 0.17, 0.7, 3.0, 12.0, 50.0)
EXTENDED = {"attnres": (0.0006, 0.0025)}  # tried when the range ended at 3 and its best was the lowest
SEED = 100  # not among the seeds of the grid


def get_config(arg: str = "") -> ConfigDict:
    """The grid's config, evaluated on the tune split at the end; takes no argument."""
    config = GRID.get_config(arg)
    return config_lib.overlay(
        config,
        {"seed": SEED, "train.eval_split": "tune", "train.eval_every": config.train.steps},
    )


def sweep(config: ConfigDict):
    """Every routed arm at every multiplier, and the residual baseline once."""
    points = [
        fixed({"arm": f"{name}-x{rate:g}", "router.preset": name, "router.lr_multiplier": rate})
        for name in GRID.ROUTED
        for rate in (*RATES, *EXTENDED.get(name, ()))
    ]
    return chain(fixed({"arm": "residual"}), *points)
