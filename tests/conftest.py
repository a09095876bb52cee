"""What all tests share: JAX set up strictly, a cache folder of the session's own, tiny configs and the models they describe."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

import depthroute
from depthroute.config import Config
from depthroute.training.step import gradients

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)  # these programs are small: compiling them costs more than running


def pytest_collection_modifyitems(items):
    """Tests of one case, and the others of one file, follow each other and stay in one process: they share what is made."""

    def group(item):
        case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
        return f"{item.path.stem} {case or ''}"

    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: (item.path, group(item)))


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory):
    """No test reads or fills the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny():
    """tiny(**{"router.preset": ...}) -> Config."""
    return cases.tiny


@dataclass(frozen=True)
class Built:
    """A case's model with its initial parameters, and what it computes; everything is made once a session.

    `randomised` are the initial parameters with every gain and every router parameter moved at random, so that no zero and no
    one hides a mistake. Functions run without jit, so that cases share compiled operations; `jitted` is the exception.
    """

    config: Config
    tokens_BT: jax.Array

    @cached_property
    def model(self):
        return depthroute.build(self.config)

    @cached_property
    def params(self):
        return self.model.init(jax.random.key(0))

    @cached_property
    def randomised(self):
        rng = np.random.default_rng(1)

        def move(path, leaf):
            names = [entry.key for entry in path]
            scale = 0.5 if "router" in names or "gain" in names else 0.0
            return jnp.asarray(np.asarray(leaf) + scale * rng.standard_normal(leaf.shape), jnp.float32)

        return jax.tree.map_with_path(move, self.params)

    @cached_property
    def traced(self):
        """(logits, trace) at the randomised parameters."""
        return self.model.apply(self.randomised, self.tokens_BT, trace=True)

    @cached_property
    def reference(self):
        """(logits, scores, weights) at the randomised parameters, in float64 NumPy."""
        return reference.decoder(self.config, self.randomised, self.tokens_BT)

    @cached_property
    def gradient(self):
        """(loss, gradient) at the initial parameters."""
        return gradients(self.model, self.params, self.sequences_BT, 0.0, 1)

    @property
    def sequences_BT(self):
        """The tokens and one more, to be predicted from the last."""
        return jnp.concatenate([self.tokens_BT, self.tokens_BT[:, :1]], axis=1)

    @cached_property
    def jitted(self):
        return jax.jit(self.model.apply)


@pytest.fixture(scope="session")
def built():
    """built(case) -> Built, for a name in cases.CASES."""
    tokens_BT = jnp.asarray(np.random.default_rng(0).permutation(64).reshape(8, 8))
    return lru_cache(maxsize=16)(lambda case: Built(cases.tiny(**cases.CASES[case]), tokens_BT))
