import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_blocks as reference

from depthroute.nn.attention import Attention, attend, rotate

B, T, K = 2, 5, 4


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def as_float32(*arrays):
    return [jnp.asarray(array, jnp.float32) for array in arrays]


@pytest.mark.parametrize("base", [10.0, 10000.0])
def test_rotate_turns_pairs_by_position_times_frequency(base):
    x = draw(B, T, 3, K)
    np.testing.assert_allclose(rotate(*as_float32(x), base), reference.rotate(x, base), atol=1e-5)


def test_rotated_products_depend_on_the_distance_alone():
    """The point of the rotary embedding: the same query and key at every position."""
    query, key = (np.tile(draw(1, 1, 1, K, seed=seed), (1, 7, 1, 1)) for seed in (1, 2))
    turned_query, turned_key = (np.asarray(rotate(x, 100.0))[0, :, 0] for x in as_float32(query, key))
    product_TU = turned_query @ turned_key.T
    for distance in range(-6, 7):
        np.testing.assert_allclose(np.diagonal(product_TU, distance), np.diagonal(product_TU, distance)[0], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(turned_query, axis=-1), np.linalg.norm(query[0, :, 0], axis=-1), rtol=1e-5)


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2), (6, 2), (4, 1)])
def test_attend_is_its_equation(heads, kv_heads):
    query, key, value = draw(B, T, heads, K), draw(B, T, kv_heads, K, seed=1), draw(B, T, kv_heads, K, seed=2)
    np.testing.assert_allclose(attend(*as_float32(query, key, value)), reference.attend(query, key, value), atol=1e-5)


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (6, 2), (4, 1)])
def test_gradients_are_those_of_automatic_differentiation(heads, kv_heads):
    def plain(query, key, value):
        key, value = (jnp.repeat(x, heads // kv_heads, axis=2) for x in (key, value))
        scores = jnp.einsum("bthk,buhk->bhtu", query, key) / np.sqrt(K)
        scores = jnp.where(np.tri(T, dtype=bool)[None, None], scores, -jnp.inf)
        return jnp.einsum("bhtu,buhk->bthk", jax.nn.softmax(scores, axis=-1), value)

    arrays = [3 * draw(B, T, heads, K), 3 * draw(B, T, kv_heads, K, seed=1), draw(B, T, kv_heads, K, seed=2)]
    cotangent = draw(B, T, heads, K, seed=3)
    with jax.enable_x64(True):
        found, expected = (jax.vjp(function, *map(jnp.asarray, arrays))[1](cotangent) for function in (attend, plain))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.float64
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_bfloat16_gradients_are_those_of_float32_but_for_rounding():
    arrays = [draw(B, T, 4, K), draw(B, T, 2, K, seed=1), draw(B, T, 2, K, seed=2)]
    narrow = [jnp.asarray(array, jnp.bfloat16) for array in arrays]
    cotangent = jnp.asarray(draw(B, T, 4, K, seed=3), jnp.bfloat16)
    found = jax.vjp(attend, *narrow)[1](cotangent)
    expected = jax.vjp(attend, *(x.astype(jnp.float32) for x in narrow))[1](cotangent.astype(jnp.float32))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(one, np.float32), other, rtol=2**-6, atol=2**-6)


def test_query_heads_read_the_key_value_head_of_their_group():
    """Two groups of two: values that name their head arrive at heads 0, 1 and 2, 3."""
    query, key = as_float32(draw(1, T, 4, K), draw(1, T, 2, K, seed=1))
    value = jnp.broadcast_to(jnp.array([10.0, 20.0])[None, None, :, None], (1, T, 2, K))
    np.testing.assert_allclose(attend(query, key, value)[0, 0, :, 0], [10, 10, 20, 20], rtol=1e-6)


def test_the_first_position_sees_itself_alone():
    query, key, value = as_float32(draw(B, T, 2, K), draw(B, T, 2, K, seed=1), draw(B, T, 2, K, seed=2))
    np.testing.assert_allclose(attend(query, key, value)[:, 0], value[:, 0], rtol=1e-6)


def test_bfloat16_attention_keeps_its_dtype_and_scores_in_float32():
    """Scores of 100 and 100.3 are one number in bfloat16; their softmax must still tell them apart."""
    query = jnp.full((1, 2, 1, 4), 1.0, jnp.bfloat16)
    key = jnp.array([[50.0, 50.0, 50.0, 50.0], [50.0, 50.0, 50.0, 50.25]], jnp.bfloat16)[None, :, None]
    value = jnp.array([[0.0] * 4, [1.0] * 4], jnp.bfloat16)[None, :, None]
    mixed = attend(query, key, value)
    assert mixed.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(mixed, np.float32)[0, 1, 0], 1 / (1 + np.exp(-0.125)), rtol=2**-8)


@pytest.mark.parametrize("prenorm", [True, False])
def test_the_sublayer_is_its_equation_and_its_values_start_as_documented(tiny, prenorm):
    config = tiny(**{"model.dim": 64, "model.heads": 8, "model.kv_heads": 2})
    model = config.model
    module = Attention(8, 2, model.rope_base, model.stream_eps, prenorm, 0, 0.0, 1.0, 5.0, jnp.dtype("float32"))
    x = draw(B, T, 64)
    params = module.init(jax.random.key(0), *as_float32(x))["params"]
    assert ("norm" in params) == prenorm
    expected = reference.attention(model, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params), x)
    np.testing.assert_allclose(module.apply({"params": params}, *as_float32(x)), expected, atol=1e-5)
    for name, axes, std in (("query", "DHK", 1 / 8), ("key", "DGK", 1 / 8), ("value", "DGK", 1 / 8), ("out", "HKD", 1 / 40)):
        assert float(jnp.std(params[name][axes])) == pytest.approx(std, rel=0.1)
