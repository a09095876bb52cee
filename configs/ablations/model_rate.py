"""The model's learning rate for the key x query grid, chosen for the residual arm on the tune split.

    depthroute sweep --config configs/ablations/model_rate.py --workdir runs/model_rate

The rate favours the baseline: routing arms take it as it is and tune only their router's.
"""

from pathlib import Path

from ml_collections import ConfigDict

from depthroute import config as config_lib

RATE = config_lib.load_module(Path(__file__).with_name("router_rate.py"))

TITLE = "Model learning rate of the residual arm"
QUESTION = "At which learning rate does the residual baseline train best?"
NOTE = "One seed, the tune split: for choosing a rate, not for comparing."
BASELINE = "residual-lr0.003"
RATES = (0.001, 0.002, 0.003, 0.004)


def get_config(arg: str = "") -> ConfigDict:
    """The config of the router-rate sweep; takes no argument."""
    return RATE.get_config(arg)


def sweep(config: ConfigDict):
    """The residual arm at every rate."""
    return [{"arm": f"residual-lr{rate:g}", "train.lr": rate} for rate in RATES]
