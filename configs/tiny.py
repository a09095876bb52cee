"""A few seconds on a laptop: for trying things out, for tests and for notebooks.

depthroute train --config configs/tiny.py --config.router.preset=attnres --workdir runs/tiny
"""

from pathlib import Path

from ml_collections import ConfigDict

from depthroute import config as config_lib

BASE = Path(__file__).with_name("base.py")


def get_config(arg: str = "") -> ConfigDict:
    """Two layers of width 32, 60 steps; takes no argument."""
    config, _ = config_lib.load_file(f"{BASE}:{arg}")
    return config_lib.overlay(
        config,
        {
            "arm": "tiny",
            "model.layers": 2,
            "model.dim": 32,
            "model.heads": 2,
            "model.kv_heads": 1,
            "model.mlp_dim": 64,
            "router.rank": 8,
            "router.blocks": 2,
            "data.seq_len": 64,
            "data.batch": 8,
            "train.steps": 60,
            "train.lr": 4e-3,
            "train.warmup": 10,
            "train.eval_every": 30,
            "train.eval_sequences": 64,
            "train.checkpoint_every": 30,
        },
    )
