"""Which keys does depth routing need? The key x query grid at demonstration scale, three paired seeds.

    depthroute sweep --config configs/ablations/key_query_grid.py --workdir runs/key_query_grid

or ``make ablation``. Two CPU cores take about five minutes. The model's learning rate is the best of four for the `residual`
arm (model_rate.py; records/2026-12-01_model_rate). Each routing arm has its own router rate, chosen by router_rate.py on tune
documents with a seed the table does not use, and read from the record of that sweep.
"""

import json
from pathlib import Path

from ml_collections import ConfigDict

from depthroute import config as config_lib
from depthroute.model.counts import match_mlp_dim, num_params
from depthroute.routing.presets import expand
from depthroute.runs.sweep import chain, fixed, grid, product

HERE = Path(__file__).parent
RATES = HERE.parents[1] / "records" / "2026-12-01_router_rates" / "rates.json"

TITLE = "Which keys does depth routing need?"
QUESTION = "Must the keys be computed from what each layer just produced, or is one learned vector per layer enough?"
NOTE = "Demonstration scale: 0.2 M parameters, 0.4 M tokens. It shows how the question is asked, not its answer."
BASELINE = "residual"
LABELS = {
    "residual": "residual",
    "residual_matched": "residual, MLP widened to the largest cell",
    "attnres": "AttnRes: static q, full-width dynamic k",
    "qs_ks": "static q, static k",
    "qs_kd": "static q, dynamic k",
    "qd_ks": "dynamic q, static k",
    "qd_kd": "dynamic q, dynamic k",
    "qd_kh": "dynamic q, hybrid k",
}
ROUTED = ("attnres", "qs_ks", "qs_kd", "qd_ks", "qd_kd", "qd_kh")
SEEDS = (0, 1, 2)


def get_config(arg: str = "") -> ConfigDict:
    """The model and the budget that all arms share; takes no argument."""
    config, _ = config_lib.load_file(f"{HERE.parent / 'base.py'}:{arg}")
    return config_lib.overlay(
        config,
        {
            "arm": "residual",
            "model.layers": 4,
            "model.dim": 64,
            "model.heads": 2,
            "model.kv_heads": 2,
            "model.mlp_dim": 160,
            "router.rank": 16,
            "data.seq_len": 128,
            "data.batch": 8,
            "train.steps": 400,
            "train.lr": 3e-3,
            "train.warmup": 20,
            "train.eval_every": 100,
            "train.eval_sequences": 512,
            "train.checkpoint_every": 200,
        },
    )


def arm(name: str) -> dict:
    """Overrides of a routed arm: its preset, and its rate as the record of the tuning sweep has it."""
    rate = json.loads(RATES.read_text())[name]
    return {
        "arm": name,
        "router.preset": name,
        "router.lr_multiplier": rate["multiplier"],
        "router.lr_trials": rate["trials"],
        "router.lr_tuned": rate["tuned"],
    }


def matched_mlp_dim(config: ConfigDict) -> int:
    """MLP width at which `residual` has the parameter count of the largest routed arm."""
    largest = max(num_params(config_lib.resolve(config_lib.overlay(config, expand({"router.preset": r})))) for r in ROUTED)
    return match_mlp_dim(config_lib.resolve(config), largest)


def sweep(config: ConfigDict):
    """Every arm with every seed."""
    arms = chain(
        fixed({"arm": "residual"}),
        fixed({"arm": "residual_matched", "model.mlp_dim": matched_mlp_dim(config)}),
        *(fixed(arm(name)) for name in ROUTED),
    )
    return product(arms, grid("seed", SEEDS))
