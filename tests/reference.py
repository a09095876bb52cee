"""The decoder once more, in float64 NumPy, as slow and literal as its equations: the independent truth of the tests.

Nothing here is shared with the library but the config and the layout of the parameter tree.
"""

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


def attention(model, p, x_BTD):
    if "norm" in p:
        x_BTD = rms_norm(x_BTD, model.stream_eps) * p["norm"]["gain"]["D"]
    query = rotate(np.einsum("btd,dhk->bthk", x_BTD, p["query"]["DHK"]), model.rope_base)
    key = rotate(np.einsum("btd,dgk->btgk", x_BTD, p["key"]["DGK"]), model.rope_base)
    value = np.einsum("btd,dgk->btgk", x_BTD, p["value"]["DGK"])
    return np.einsum("bthk,hkd->btd", attend(query, key, value), p["out"]["HKD"])


def mlp(model, p, x_BTD):
    if "norm" in p:
        x_BTD = rms_norm(x_BTD, model.stream_eps) * p["norm"]["gain"]["D"]
    up = x_BTD @ p["up"]["DF"]
    if model.mlp == "swiglu":
        gate = x_BTD @ p["gate"]["DF"]
        hidden = gate / (1 + np.exp(-gate)) * up
    else:
        hidden = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
    return hidden @ p["down"]["FD"]


def sites(config, layers):
    """The functions between reads: every sublayer, or whole layers without the residual around them."""
    functions = []
    for i in range(config.model.layers):
        layer = jax.tree.map(lambda leaf, i=i: leaf[i], layers)

        def attend_(x, p=layer["attention"]):
            return attention(config.model, p, x)

        def think(x, p=layer["mlp"]):
            return mlp(config.model, p, x)

        def whole(x, attend_=attend_, think=think):
            return attend_(x) + think(x + attend_(x))

        functions += [whole] if config.router.sites == "layer" else [attend_, think]
    return functions


def sources(config, x0, reads, written):
    """What there is to read for the next consumer, in order."""
    router = config.router
    if router.memory == "blocks":
        M = config.model.layers * (1 if router.sites == "layer" else 2)
        starts = [b * (M // router.blocks) for b in range(router.blocks)]
        blocks = [written[a:b] for a, b in zip(starts, [*starts[1:], M], strict=True)]
        return [x0, *(sum(block) for block in blocks if block)]
    if router.sources == "states":
        return [x0, *(x + u for x, u in zip(reads, written, strict=True))]
    return [x0, *written]


def seen(config, m, count):
    """Which of the sources consumer m sees."""
    router = config.router
    if router.memory != "dilated":
        return range(count)
    return [i for i in range(count) if (m - i) % router.dilation == 0] if m % router.period == 0 else [m]


def query(config, p, row, x0, written):
    router = config.router
    z = {"newest": written[-1], "mean": (x0 + sum(written)) / (1 + len(written)), "embedding": x0}[router.query_input]
    w_R = np.broadcast_to(p["query"]["MR"][row], (*x0.shape[:2], p["query"]["MR"].shape[-1]))
    if router.query == "static":
        return w_R
    return w_R + rms_norm(z, router.key_eps) @ p["query_map"]["MDR"][row] / x0.shape[-1]


def key(config, p, row, i, v_i, pair):
    """k_i as a consumer sees it; `row` numbers the consumers that have a choice, `pair` their sources, row by row."""
    router = config.router
    if router.key == "static":
        return p["key"]["SR"][i]
    if router.key == "static_per_consumer":
        return p["key"]["PR"][pair]
    normed = rms_norm(v_i, router.key_eps)
    if router.key == "dynamic_full":
        return normed * p["key_gain"]["MD"][row] if router.key_gain else normed
    projected = normed @ p["key_map"]["DR"] / v_i.shape[-1]
    return projected if router.key == "dynamic_projected" else p["key"]["SR"][i] + p["key_gate"]["scalar"] * projected


def depth_attention(config, p, x0, functions):
    """x_m = sum_i a_{m,i} v_i with a_m = mixing(s_m), s_{m,i} = q_m . k_i / sqrt(R) + b_{m,i}.

    Returns what the read-out sees, and scores and weights of every consumer as lists of [B, T, S_m].
    """
    router = config.router
    mix = {"softmax": softmax, "sigmoid": lambda s: 1 / (1 + np.exp(-s)), "free": lambda s: s}[router.mixing]
    reads, written, row, pair = [], [], 0, 0
    all_scores, all_weights = [], []
    for m in range(len(functions) + 1):
        values = sources(config, x0, reads, written)
        visible = seen(config, m, len(values))
        s = np.zeros((*x0.shape[:2], len(visible)))
        a = np.ones_like(s)
        if len(visible) > 1:
            for j, i in enumerate(visible):
                if router.query != "none":
                    q = query(config, p, row, x0, written)
                    s[..., j] += np.sum(q * key(config, p, row, i, values[i], pair), axis=-1) / np.sqrt(q.shape[-1])
                if router.bias == "learned":
                    s[..., j] += p["bias"]["P"][pair]
                pair += 1
            a = mix(s)
            row += 1
        reads.append(sum(a[..., j, None] * values[i] for j, i in enumerate(visible)))
        all_scores.append(s)
        all_weights.append(a)
        if m < len(functions):
            written.append(functions[m](reads[-1]))
    return reads[-1], all_scores, all_weights


def single_stream(config, p, x, functions):
    for m, f in enumerate(functions):
        u = f(x)
        if config.router.preset == "plain":
            x = u
        elif config.router.preset == "residual":
            x = x + u
        elif config.router.preset == "postnorm":
            x = rms_norm(x + u, config.model.stream_eps) * p["gain"]["MD"][m]
        else:
            raise AssertionError(f"the reference has no single-stream preset {config.router.preset!r}; add its equation here")
    return x, None, None


def sinkhorn(logits_BTON, iterations):
    """Columns (sums over O), then rows, made to sum to one, so many times."""
    p = np.exp(logits_BTON - logits_BTON.max(axis=(-1, -2), keepdims=True))
    for _ in range(iterations):
        p = p / p.sum(axis=-2, keepdims=True)
        p = p / p.sum(axis=-1, keepdims=True)
    return p


def stream_coefficients(config, p, m, h):
    """Read [B, T, N], carry [B, T, O, N] and write [B, T, O] of site m, from the streams h."""
    router, n = config.router, config.router.streams
    free = router.carry_form == "free"
    squash = np.tanh if free and router.squash else lambda x: x
    side_by_side = rms_norm(np.concatenate(h, axis=-1), router.key_eps)
    values = {}
    for part, axes in {"read": "N", "carry": "ON", "write": "O"}.items():
        if getattr(router, part) == "none":
            continue
        value = np.broadcast_to(
            p[part if free else f"{part}_logit"]["M" + axes][m], (*h[0].shape[:2], *(n for _ in axes))
        ).copy()
        if getattr(router, part) == "dynamic":
            scale = p["mix_scale" if free and part != "write" else f"{part}_scale"]["M"][m]
            if free:
                w = p[f"{part}_map"]["MOD" if part == "carry" else "MD"][m]
                for i in range(n):
                    value[..., i] += scale * squash(rms_norm(h[i], router.key_eps) @ w.T)
            else:
                value += scale * np.einsum("btw,...w->bt...", side_by_side, p[f"{part}_map"][f"M{axes}W"][m])
        values[part] = value
    if free:
        return values["read"], values["carry"], values["write"]
    identity = np.broadcast_to(np.eye(n), (*h[0].shape[:2], n, n))
    carry = identity if router.carry_form == "identity" else sinkhorn(values["carry"], router.sinkhorn_iterations)
    return 1 / (1 + np.exp(-values["read"])), carry, 2 / (1 + np.exp(-values["write"]))


def streams(config, p, x, functions):
    n = config.router.streams
    h = [x] * n
    for m, f in enumerate(functions):
        read, carry, write = stream_coefficients(config, p, m, h)
        u = f(sum(read[..., i, None] * h[i] for i in range(n)))
        h = [sum(carry[..., o, i, None] * h[i] for i in range(n)) + write[..., o, None] * u for o in range(n)]
    return sum(h), None, None


def decoder(config, params, tokens_BT):
    """Logits [B, T, V], and scores and weights of every consumer or None for a router without weights."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    run = depth_attention if config.router.read == "none" else streams
    if config.router.preset in ("residual", "plain", "postnorm"):
        run = single_stream
    x, scores, weights = run(config, p["router"], p["embed"]["VD"][np.asarray(tokens_BT)], sites(config, p["layers"]))
    if "norm" in p:
        x = rms_norm(x, config.model.stream_eps) * p["norm"]["gain"]["D"]
    return x @ p["embed" if config.model.tied_head else "head"]["VD"].T, scores, weights
