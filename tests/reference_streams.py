"""Routers with n streams, of the reference decoder, in float64 NumPy."""

import numpy as np
from reference_blocks import rms_norm


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
