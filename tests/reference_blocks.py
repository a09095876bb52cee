"""Norms, sublayers and layers of the reference decoder, in float64 NumPy."""

import jax
import numpy as np


def rms_norm(x, eps):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rotate(x_BTHK, base):
    """Each pair (x_j, x_{j + K/2}) as a complex number, turned by position x base^(-2j/K)."""
    T, half = x_BTHK.shape[1], x_BTHK.shape[-1] // 2
    turn_TK = np.exp(1j * np.outer(np.arange(T), base ** (-np.arange(half) / half)))
    turned = (x_BTHK[..., :half] + 1j * x_BTHK[..., half:]) * turn_TK[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def attend(query_BTHK, key_BTGK, value_BTGK):
    """One query at a time over the positions up to its own."""
    B, T, H, K = query_BTHK.shape
    G = key_BTGK.shape[2]
    mixed_BTHK = np.zeros_like(query_BTHK)
    for b, t, h in np.ndindex(B, T, H):
        g = h // (H // G)
        weights_U = softmax(key_BTGK[b, : t + 1, g] @ query_BTHK[b, t, h] / np.sqrt(K))
        mixed_BTHK[b, t, h] = weights_U @ value_BTGK[b, : t + 1, g]
    return mixed_BTHK


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def prenorm(model, p, x):
    return rms_norm(x, model.stream_eps) * p["norm"]["gain"]["D"] if "norm" in p else x


def attention(model, p, x_BTD, key_input=None, value_input=None, share=0.0, first=None):
    """Keys and values from inputs of their own, if given; those may have an axis over heads. `first` is mixed into values."""
    key_x, value_x = (x_BTD if own is None else own for own in (key_input, value_input))
    x_BTD, key_x, value_x = (prenorm(model, p, x) for x in (x_BTD, key_x, value_x))
    project = "btd,dgk->btgk" if key_x.ndim == 3 else "btgd,dgk->btgk"
    query = rotate(np.einsum("btd,dhk->bthk", x_BTD, p["query"]["DHK"]), model.rope_base)
    key = rotate(np.einsum(project, key_x, p["key"]["DGK"]), model.rope_base)
    value = np.einsum(project, value_x, p["value"]["DGK"])
    value = value if first is None else (1 - share) * value + share * first
    mixed = attend(query, key, value)
    out = np.einsum("bthk,hkd->btd", mixed, p["out"]["HKD"])
    return with_emitted(p, out, mixed.reshape(out.shape))


def with_emitted(p, out, hidden):
    return np.concatenate([out, hidden @ p["emit"]["FR"]], axis=-1) if "emit" in p else out


def mlp(model, p, x_BTD):
    x_BTD = prenorm(model, p, x_BTD)
    up = x_BTD @ p["up"]["DF"]
    if model.mlp == "swiglu":
        gate = x_BTD @ p["gate"]["DF"]
        hidden = gate / (1 + np.exp(-gate)) * up
    else:
        hidden = gelu(up)
    return with_emitted(p, hidden @ p["down"]["FD"], hidden)


def sites(config, layers, x0):
    """The functions between reads: every sublayer, or whole layers without the residual around them."""
    functions, share, first = [], config.router.value_share, None
    if share:
        p = jax.tree.map(lambda leaf: leaf[0], layers["attention"])
        first = np.einsum("btd,dgk->btgk", prenorm(config.model, p, x0), p["value"]["DGK"])
    for i in range(config.model.layers):
        layer = jax.tree.map(lambda leaf, i=i: leaf[i], layers)

        def attend_(x, *inputs, p=layer["attention"]):
            return attention(config.model, p, x, *inputs, share=share, first=first)

        def think(x, p=layer["mlp"]):
            return mlp(config.model, p, x)

        def whole(x, attend_=attend_, think=think):
            residual, *inputs = x if isinstance(x, tuple) else (x, x)
            attended = attend_(*inputs)
            return attended + think(residual + attended)

        functions += [whole] if config.router.sites == "layer" else [attend_, think]
    return functions
