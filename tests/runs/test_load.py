"""load_run gives back the config, the parameters and the routing of a run."""

import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.special import log_softmax

import depthroute
from depthroute import cli
from depthroute.config import resolve
from depthroute.data import corpus as corpus_lib
from depthroute.errors import UserError
from depthroute.runs.folder import read_json
from depthroute.training.state import params_sha256

TINY = Path(__file__).parents[2] / "configs" / "tiny.py"
SETTINGS = (
    "model.layers=1 model.dim=16 model.mlp_dim=16 router.rank=4 router.preset=qd_kd data.seq_len=16 train.steps=12 "
    "train.warmup=2 train.eval_every=6 train.eval_sequences=20 train.checkpoint_every=4 train.log_every=1"
)


def run(workdir, settings=""):
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    words = [f"--config.{word}" for word in f"{SETTINGS} {settings}".split()]
    assert cli.main(["train", "--config", str(TINY), *words, "--workdir", str(workdir)]) == 0
    for number, handler in kept.items():
        signal.signal(number, handler)
    return workdir


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("finished") / "run")


def test_loading_touches_nothing_in_the_folder(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "checkpoints" / "13.orbax-checkpoint-tmp").mkdir()  # as a save under way leaves it
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    depthroute.load_run(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_config_and_parameters_are_the_runs(finished):
    loaded = depthroute.load_run(finished)
    result = read_json(finished / "result.json")
    assert loaded.config == resolve(read_json(finished / "config.json"))
    assert (loaded.step, loaded.path) == (12, finished)
    assert params_sha256(loaded.params) == result["params_sha256"]
    assert sum(leaf.size for leaf in jax.tree.leaves(loaded.params)) == result["params"]
    assert len({device for leaf in jax.tree.leaves(loaded.params) for device in leaf.devices()}) == 1


def test_trace_gives_the_logits_of_the_result_and_weights_that_sum_to_one(finished):
    loaded, result = depthroute.load_run(str(finished)), read_json(finished / "result.json")
    val = corpus_lib.load(loaded.config.data, 257).split("val")
    available = (len(val) - 1) // 16
    tokens_BT = np.stack([val.window(i * available // 20 * 16, 17) for i in range(20)])
    logits_BTV, trace = loaded.trace(tokens_BT[:, :-1])
    log_p_BTV = log_softmax(np.asarray(logits_BTV, np.float64), axis=-1)
    loss = -np.take_along_axis(log_p_BTV, tokens_BT[:, 1:, None], axis=-1).mean()
    assert result["val_loss"] == pytest.approx(loss, rel=1e-6)
    assert trace.weights_BTMS.shape == trace.scores_BTMS.shape == (20, 16, 3, 3)
    np.testing.assert_allclose(trace.weights_BTMS.sum(-1), 1, rtol=1e-5)
    assert not np.any(np.where(trace.visible_MS, 0, trace.weights_BTMS[0, 0]))
    recorded = [[value or 0.0 for value in row] for row in read_json(finished / "routing.json")["weights_MS"]]
    np.testing.assert_allclose(trace.weights_BTMS.mean((0, 1)), recorded, atol=1e-5)


def test_folders_without_a_run_are_refused(finished, tmp_path):
    with pytest.raises(UserError, match="config.json"):
        depthroute.load_run(tmp_path)
    shutil.copy(finished / "config.json", tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match="has no checkpoint") as error:
            depthroute.load_run(tmp_path)
        assert "\n" not in str(error.value)
        (tmp_path / "checkpoints").mkdir(exist_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["parallel.fsdp=4 parallel.data=2", "parallel.data=4 parallel.strategy=pmap"])
def test_a_run_of_many_devices_is_opened_on_one(tmp_path, parallel):
    loaded = depthroute.load_run(run(tmp_path / "run", parallel))
    assert params_sha256(loaded.params) == read_json(tmp_path / "run" / "result.json")["params_sha256"]
    assert len({device for leaf in jax.tree.leaves(loaded.params) for device in leaf.devices()}) == 1
