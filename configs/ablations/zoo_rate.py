"""The router's learning rate of every arm of the zoo, best of three multiples of the model's, on the tune split.

    depthroute sweep --config configs/ablations/zoo_rate.py --workdir runs/zoo_rate
    python benchmarks/zoo.py rates runs/zoo_rate records/2026-12-01_zoo

The second command writes rates.json, which zoo.py reads. An arm that is best at the lowest or the highest counts as not tuned.
"""

from pathlib import Path

from ml_collections import ConfigDict

from depthroute import config as config_lib
from depthroute.runs.sweep import chain, fixed

ZOO = config_lib.load_module(Path(__file__).with_name("zoo.py"))

TITLE = "Router learning rates of the zoo"
QUESTION = "At which multiple of the model's learning rate does each router train best?"
NOTE = "One seed, the tune split: for choosing rates, not for comparing arms."
RATES = (1.0, 8.0, 64.0)
SEED = 100  # not among the seeds of the zoo


def get_config(arg: str = "") -> ConfigDict:
    """The zoo's config, evaluated on the tune split at the end; takes no argument."""
    config = ZOO.get_config(arg)
    return config_lib.overlay(config, {"seed": SEED, "train.eval_split": "tune", "train.eval_every": config.train.steps})


def sweep(config: ConfigDict):
    """Every arm whose router has parameters, at every multiplier."""
    return chain(
        *(
            fixed({"arm": f"{name}-x{rate:g}", **axes, "router.lr_multiplier": rate})
            for name, axes in ZOO.ARMS.items()
            if ZOO.has_rate(config, name)
            for rate in RATES
        )
    )
