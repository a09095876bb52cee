"""Does each one train? Every preset, and variants of the hyper-connections, at a small matched budget, two paired seeds.

    depthroute sweep --config configs/ablations/zoo.py --workdir runs/zoo
    python benchmarks/zoo.py table runs/zoo records/2026-12-01_zoo

Model and budget are those of key_query_grid.py; a run takes less than a minute on a core. Every router with parameters has the
rate that zoo_rate.py found best of three, on tune documents and with a seed that the table does not use.
"""

import json
from pathlib import Path

from ml_collections import ConfigDict

import depthroute
from depthroute import config as config_lib
from depthroute.routing.counts import router_params
from depthroute.routing.presets import expand
from depthroute.runs.sweep import chain, fixed, grid, product

HERE = Path(__file__).parent
GRID = config_lib.load_module(HERE / "key_query_grid.py")
RATES = HERE.parents[1] / "records" / "2026-12-01_zoo" / "rates.json"

TITLE = "Every router at one small budget"
QUESTION = "Does each router train, and where does it stand at 0.2 M parameters and 0.4 M tokens?"
NOTE = "Demonstration scale and two seeds: a check that each one works, not a ranking."
BASELINE = "residual"
SEEDS = (0, 1)
KINDS = {"s": "static", "d": "dynamic"}
READ_WRITE = [(read, write) for read in KINDS for write in KINDS if (read, write) != ("d", "d")]  # the presets are dd
VARIANTS = {
    "denseformer_2x2": {"router.preset": "denseformer", "router.memory": "dilated", "router.dilation": 2, "router.period": 2},
    **{f"hyper_dynamic_n{n}": {"router.preset": "hyper_dynamic", "router.streams": n} for n in (1, 2, 8)},
    "hyper_dynamic_no_tanh": {"router.preset": "hyper_dynamic", "router.squash": False},
    **{
        f"{name}_r{read}_w{write}": {"router.preset": preset, "router.read": KINDS[read], "router.write": KINDS[write]}
        for name, preset in (("hyper", "hyper_dynamic"), ("identity_hyper", "identity_hyper"))
        for read, write in READ_WRITE
    },
}
# Eight sublayers are few: with the default eight blocks or sources these would see what the full history shows.
NARROW = {
    "attnres_block": {"router.blocks": 4},
    "attnres_multihead": {"router.blocks": 4},
    "attnres_window": {"router.window": 3},
    "k_dca": {"router.window": 2},
    "laurel_pa": {"router.window": 3},
}
ARMS = {name: {"router.preset": name} for name in depthroute.presets()} | VARIANTS
ARMS |= {name: {**ARMS[name], **axes} for name, axes in NARROW.items()}


def get_config(arg: str = "") -> ConfigDict:
    """The model and the budget that all arms share; takes no argument."""
    return GRID.get_config(arg)


def has_rate(config: ConfigDict, arm: str) -> bool:
    """Whether the arm's router has parameters, and so a rate to choose."""
    return router_params(config_lib.resolve(config_lib.overlay(config, expand(ARMS[arm])))) > 0


def rate(arm: str) -> dict:
    """Overrides for the arm's router rate, as the record of the tuning sweep has it."""
    found = json.loads(RATES.read_text())[arm]
    return {"router.lr_multiplier": found["multiplier"], "router.lr_trials": found["trials"], "router.lr_tuned": found["tuned"]}


def sweep(config: ConfigDict):
    """Every arm with every seed."""
    arms = (fixed({"arm": name, **axes, **(rate(name) if has_rate(config, name) else {})}) for name, axes in ARMS.items())
    return product(chain(*arms), grid("seed", SEEDS))
