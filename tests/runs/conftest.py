"""Synthetic sweep folders, written as a sweep would leave them."""

import json
from pathlib import Path

import pytest

from depthroute import config
from depthroute.runs import metrics

BASE = Path(__file__).parents[2] / "configs" / "base.py"
RATES = {"residual": {}, "qs_ks": {"lr_multiplier": 0.3, "lr_trials": 5, "lr_tuned": True}}
LOSSES = {"residual": (2.0, 2.1, 2.2), "qs_ks": (1.9, 2.01, 2.09)}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def run_files(arm, seed, val_loss):
    """The files of a finished run, as {name: content}; `config` is nested."""
    nested = config.load_file(BASE)[0].to_dict()
    nested |= {"arm": arm, "seed": seed}
    router = {"preset": arm, "query": "static", "key": "static", "mixing": "softmax"} if arm == "qs_ks" else {}
    nested["router"] |= router | RATES.get(arm, {})
    result = {
        "arm": arm,
        "seed": seed,
        "val_loss": val_loss,
        "bits_per_byte": val_loss * 1.4427,
        "steps": 100,
        "tokens": 102400,
        "params": 1000,
        "router_params": 10 if arm == "qs_ks" else 0,
        "flops_per_token": 5.5e6,
        "tokens_per_s": 3000.0,
        "eval_split": "val",
        "eval_tokens": 65536,
        "eval_sequences": 256,
        "data_fingerprint": "abc",
    }
    provenance = {
        "git_commit": "c0ffee",
        "git_dirty": False,
        "versions": {"jax": "0.10.2"},
        "python": "3.11",
        "devices": ["cpu"],
    }
    status = {"state": "done", "step": 100, "steps": 100, "reason": ""}
    return {"config": nested, "result": result, "provenance": provenance, "status": status}


@pytest.fixture
def make_sweep(tmp_path):
    """make_sweep(losses={arm: losses by seed}, edit=function(files, arm, seed), **changes to sweep.json) -> folder."""

    def make(losses=LOSSES, edit=lambda files, arm, seed: None, **changes):
        runs = [{"name": f"{arm}-seed{seed}", "arm": arm, "seed": seed} for arm in losses for seed in range(len(losses[arm]))]
        plan = {
            "title": "Title",
            "question": "Question?",
            "note": "demonstration scale",
            "baseline": "residual",
            "arms": list(losses),
            "labels": {},
            "factors": sorted(
                f"router.{f}" for f in ("key", "lr_multiplier", "lr_trials", "lr_tuned", "mixing", "preset", "query")
            ),
            "runs": runs,
            "config_file": "configs/x.py",
        }
        write(tmp_path / "sweep.json", plan | changes)
        for run in runs:
            files = run_files(run["arm"], run["seed"], losses[run["arm"]][run["seed"]])
            edit(files, run["arm"], run["seed"])
            for name, content in files.items():
                write(tmp_path / run["name"] / f"{name}.json", content)
            if not files:
                continue
            lines = [{"step": s, "split": p, "loss": 9 - s, "tokens": s * 10} for s in (1, 2) for p in ("train", "val")]
            (tmp_path / run["name"] / "metrics.jsonl").write_bytes(b"".join(map(metrics.encode, lines)))
        return tmp_path

    return make
