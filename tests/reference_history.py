"""Depth attention of the reference decoder, in float64 NumPy: one source, one mix and one consumer at a time."""

import numpy as np
from reference_blocks import gelu, rms_norm, softmax

MIXINGS = {
    "softmax": softmax,
    "sigmoid": lambda s: 1 / (1 + np.exp(-s)),
    "relu": lambda s: np.maximum(s, 0),
    "free": lambda s: s,
}


def sources(config, x0, reads, written):
    """What there is to read for the next consumer, in order."""
    router = config.router
    if router.memory == "blocks":
        M = config.model.layers * (1 if router.sites == "layer" else 2)
        starts = [b * (M // router.blocks) for b in range(router.blocks)]
        blocks = [written[a:b] for a, b in zip(starts, [*starts[1:], M], strict=True)]
        found = [x0, *(sum(block) for block in blocks if block)]
    elif router.sources == "states":
        found = [x0, *(x + u for x, u in zip(reads, written, strict=True))]
    else:
        found = [x0, *written]
    return [rms_norm(v, config.model.stream_eps) for v in found] if router.source_norm else found


def seen(config, m, count):
    """Which of the sources consumer m sees, as groups that it sees as one."""
    router = config.router
    if router.memory == "dilated":
        return [[i] for i in range(count) if (m - i) % router.dilation == 0] if m % router.period == 0 else [[m]]
    if router.memory == "window":
        return [[i] for i in range(count) if i == 0 or i > m - router.window]
    if router.memory == "ends":
        middle = [i for i in range(1, count) if i <= m - router.window]
        newest = [[i] for i in range(1, count) if i > m - router.window]
        return [[0], *([middle] if middle else []), *newest]
    return [[i] for i in range(count)]


def mixes(config, m, sites):
    """How many mixes consumer m makes."""
    ways = {"one": config.router.heads, "kv": 2 * config.model.kv_heads, "qkv": 3, "qkvr": 4}[config.router.ways]
    if m < sites or config.router.ways == "one":
        return ways
    return 0 if config.router.ways == "kv" else 1


def query(config, p, row, newest, x0, written):
    router = config.router
    if router.query == "input":
        return rms_norm(newest, router.key_eps)
    z = {"newest": written[-1], "mean": (x0 + sum(written)) / (1 + len(written)), "embedding": x0}[router.query_input]
    w_R = np.broadcast_to(p["query"]["MR"][row], (*x0.shape[:2], p["query"]["MR"].shape[-1]))
    if router.query == "static":
        return w_R
    return w_R + rms_norm(z, router.key_eps) @ p["query_map"]["MDR"][row] / x0.shape[-1]


def waves(i, R):
    half = (R + 1) // 2
    angles = [i / 10000 ** (j / half) for j in range(half)]
    return np.sqrt(2) * np.array([*map(np.sin, angles), *map(np.cos, angles)])[:R]


def key(config, p, i, v_i, emitted, earlier):
    """k_i, the same for all consumers; `earlier` are the keys before it."""
    router, D = config.router, v_i.shape[-1]
    if router.key == "static":
        return p["key"]["SR"][i]
    if router.key == "sinusoidal":
        return waves(i, router.rank)
    if router.key == "dynamic_raw":
        return v_i
    if router.key == "dynamic_sliced":
        return rms_norm(v_i[..., D - router.rank :], router.key_eps)
    if router.key == "emitted" and i > 0:
        return rms_norm(emitted[i - 1], router.key_eps)
    normed = rms_norm(v_i - (p["key_mean"]["SD"][i] if router.key == "centred" else 0), router.key_eps)
    if router.key == "dynamic_full":
        return normed
    projected = normed @ p["key_map"]["DR"] / D
    if router.key == "hybrid":
        return p["key"]["SR"][i] + p["key_gate"]["scalar"] * projected
    if router.key == "recurrent":
        step = np.tanh(earlier[-1] @ p["key_step"]["RE"] + projected + p["key_shift"]["R"]) if i else projected
        return rms_norm(step, router.key_eps)
    return rms_norm(projected, router.key_eps) if router.key == "emitted" else projected


class Rows:
    """Hands out the parameters of mixes and pairs in the order in which they are stored."""

    def __init__(self, p):
        self.p, self.row, self.pair, self.square = p, 0, 0, 0

    def take(self, counter, count):
        first = getattr(self, counter)
        setattr(self, counter, first + count)
        return slice(first, first + count)


def scores_of(config, p, rows, count, groups, keys, newest, x0, written):
    """[B, T, S] for each mix, and the per-channel biases [S, D] of each mix or zeros."""
    router, S, D = config.router, len(groups), x0.shape[-1]
    pairs = [rows.take("pair", S) for _ in range(count)]
    scores = [np.zeros((*x0.shape[:2], S)) for _ in range(count)]
    if router.query == "mlp":
        W1 = p["mlp_in"]["PD"][pairs[0].start : pairs[-1].stop]
        W2 = p["mlp_out"]["Q"][rows.take("square", (count * S) ** 2)].reshape(count * S, count * S)
        everything = gelu(rms_norm(newest, router.key_eps) @ W1.T) @ W2
        scores = [everything[..., c * S : (c + 1) * S] for c in range(count)]
    for c in range(count):
        row = rows.take("row", 1).start
        for j, group in enumerate(groups if router.query not in ("none", "mlp") else []):
            q = query(config, p, row, newest, x0, written)
            if router.key == "static_per_consumer":
                k = p["key"]["PR"][pairs[c]][j]
            else:
                k = sum(keys[i] for i in group)
                if router.heads > 1 and k.shape[-1] == D:
                    k = np.split(k, router.heads, axis=-1)[c]
                if router.key_gain:
                    k = k * p["key_gain"]["MD"][row]
            scores[c][..., j] += np.sum(q * k, axis=-1) / np.sqrt(q.shape[-1])
        if router.bias == "learned":
            scores[c] = scores[c] + p["bias"]["P"][pairs[c]]
    channels = [p["bias"]["PD"][pair] if router.bias == "per_channel" else np.zeros((S, D)) for pair in pairs]
    return scores, channels


def combine(config, mixed, stream, is_site):
    """What a site takes: one array, or (residual, query, key, value)."""
    router = config.router
    if router.ways == "kv":
        half = len(mixed) // 2
        return (stream, stream, np.stack(mixed[:half], 2), np.stack(mixed[half:], 2)) if is_site else stream
    if router.ways != "one" and is_site:
        return (mixed[3] if router.ways == "qkvr" else mixed[0], *mixed[:3])
    if router.heads > 1:
        mixed = [np.concatenate([np.split(x, router.heads, axis=-1)[h] for h, x in enumerate(mixed)], axis=-1)]
    return stream + mixed[0] if router.placement == "add" else mixed[0]


def depth_attention(config, p, x0, functions):
    """x_m = sum_i a_{m,i} v_i with a_m = mixing(s_m), s_{m,i} = q_m . k_i / sqrt(R) + b_{m,i}.

    Returns what the read-out sees, and scores and weights of every mix of every consumer, as lists of [B, T, sources seen].
    """
    router, M, D = config.router, len(functions), x0.shape[-1]
    reads, written, emitted, keys, rows = [], [], [], [], Rows(p)
    all_scores, all_weights = [], []
    for m in range(M + 1):
        values = sources(config, x0, reads, written)
        keys = [key(config, p, i, v, emitted, keys[:i]) for i, v in enumerate(values)] if router.key in KEYED else []
        groups, count = seen(config, m, len(values)), mixes(config, m, M)
        mixed = [values[-1]] * count
        if len(groups) > 1 and count:
            scores, channels = scores_of(config, p, rows, count, groups, keys, values[-1], x0, written)
            weights = [MIXINGS[router.mixing](s) for s in scores]
            totals = [sum(values[i] for i in group) for group in groups]
            both = list(zip(weights, channels, strict=True))
            mixed = [sum((a[..., j, None] + b[j]) * v for j, v in enumerate(totals)) for a, b in both]
            weights = [a + b.mean(axis=-1) for a, b in both]
        else:
            scores, weights = ([f((*x0.shape[:2], 1)) for _ in range(count)] for f in (np.zeros, np.ones))
        of_source = [j for j, group in enumerate(groups) for _ in group]
        all_scores += [s[..., of_source] for s in scores]
        all_weights += [a[..., of_source] for a in weights]
        x = combine(config, mixed, x0 + sum(written), m < M)
        reads.append(x[0] if isinstance(x, tuple) else x)
        if m < M:
            out = functions[m](x)
            written.append(out[..., :D])
            emitted.append(out[..., D:])
    return reads[-1], all_scores or None, all_weights or None


KEYED = (
    "static",
    "sinusoidal",
    "dynamic_full",
    "dynamic_raw",
    "dynamic_sliced",
    "dynamic_projected",
    "stop_gradient",
    "centred",
    "hybrid",
    "emitted",
    "recurrent",
)
