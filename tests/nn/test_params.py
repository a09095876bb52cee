"""An initial value depends on the key and the path alone."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depthroute.nn.params import Parameter, fan_in, key_for, normal


class Few(nn.Module):
    @nn.compact
    def __call__(self):
        return Parameter("D", (5,), normal(1.0), name="b")()


class More(nn.Module):
    @nn.compact
    def __call__(self):
        Parameter("D", (3,), normal(1.0), name="a")()
        Parameter("D", (4,), normal(1.0), name="c")()
        return Parameter("D", (5,), normal(1.0), name="b")()


def test_other_parameters_change_nothing():
    few, more = (module.init(jax.random.key(0))["params"] for module in (Few(), More()))
    np.testing.assert_array_equal(few["b"]["D"], more["b"]["D"])
    assert not np.array_equal(few["b"]["D"], Few().init(jax.random.key(1))["params"]["b"]["D"])


def test_parameters_of_different_names_differ():
    module = More().init(jax.random.key(0))["params"]
    assert not np.array_equal(module["a"]["D"][:3], module["c"]["D"][:3])


def test_keys_depend_on_the_name_alone():
    key = jax.random.key(0)
    assert key_for(key, "embed") == key_for(key, "embed")
    assert key_for(key, "embed") != key_for(key, "head")
    assert key_for(key, "embed") != key_for(jax.random.key(1), "embed")


@pytest.mark.parametrize("init, std", [(normal(0.02), 0.02), (fan_in(64), 1 / 8), (fan_in(64, 4.0), 1 / 32)])
def test_standard_deviations(init, std):
    values = init(jax.random.key(0), (100, 100), jnp.float32)
    assert float(jnp.std(values)) == pytest.approx(std, rel=0.03)
    assert abs(float(jnp.mean(values))) < 0.05 * std
