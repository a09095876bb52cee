"""Routers with n streams, of the reference decoder, in float64 NumPy."""

import itertools

import numpy as np
from reference_blocks import rms_norm, softmax


def sinkhorn(logits_BTON, iterations):
    """Columns (sums over O), then rows, made to sum to one, so many times."""
    p = np.exp(logits_BTON - logits_BTON.max(axis=(-1, -2), keepdims=True))
    for _ in range(iterations):
        p = p / p.sum(axis=-2, keepdims=True)
        p = p / p.sum(axis=-1, keepdims=True)
    return p


def carry_of(form, logits, n, iterations):
    """A carry [B, T, O, N] from its logits [B, T, E] or [B, T, O, N]."""
    if form == "sinkhorn":
        return sinkhorn(logits, iterations)
    if form == "permutations":
        weights = softmax(logits)
        orders = list(itertools.permutations(range(n)))
        return sum(weights[..., k, None, None] * np.eye(n)[list(order)] for k, order in enumerate(orders))
    if form == "kronecker":
        carry = np.ones((*logits.shape[:2], 1, 1))
        for pair in np.split(logits, int(np.log2(n)), axis=-1):
            p, q = np.moveaxis(softmax(pair), -1, 0)
            factor = np.stack([np.stack([p, q], -1), np.stack([q, p], -1)], -2)
            carry = np.stack(
                [np.stack([np.kron(c, f) for c, f in zip(a, b, strict=True)]) for a, b in zip(carry, factor, strict=True)]
            )
        return carry
    skew = np.zeros((*logits.shape[:2], n, n))
    for k, (i, j) in enumerate(itertools.combinations(range(n), 2)):
        skew[..., i, j] = 8 * np.tanh(logits[..., k] / 8)
        skew[..., j, i] = -skew[..., i, j]
    return (np.eye(n) - skew) @ np.linalg.inv(np.eye(n) + skew)


def stream_coefficients(config, p, m, h):
    """Read [B, T, N] (of fractions [B, T, O, N]), carry [B, T, O, N] and write [B, T, O] of site m, from the streams h."""
    router, n = config.router, config.router.streams
    free = router.carry_form == "free"
    squash = np.tanh if free and router.squash else lambda x: x
    side_by_side = rms_norm(np.concatenate(h, axis=-1), router.key_eps)
    axes = {"read": "ON" if router.split_width else "N", "carry": "ON", "write": "O"}
    if router.carry_form in ("permutations", "kronecker", "orthogonal"):
        axes["carry"] = "E"
    values = {}
    for part, own in axes.items():
        if getattr(router, part) == "none":
            continue
        static = p[part if free else f"{part}_logit"]["M" + own][m]
        value = np.broadcast_to(static, (*h[0].shape[:2], *static.shape)).copy()
        if getattr(router, part) == "dynamic":
            scale = p["mix_scale" if free and part != "write" else f"{part}_scale"]["M"][m]
            if free:
                w = p[f"{part}_map"]["MOD" if own == "ON" else "MD"][m]
                for i in range(n):
                    value[..., i] += scale * squash(rms_norm(h[i], router.key_eps) @ w.T)
            else:
                value += scale * np.einsum("btw,...w->bt...", side_by_side, p[f"{part}_map"][f"M{own}W"][m])
        values[part] = value
    if free:
        return values["read"], values["carry"], values["write"]
    carry = np.broadcast_to(np.eye(n), (*h[0].shape[:2], n, n))
    if router.carry_form != "identity":
        carry = carry_of(router.carry_form, values["carry"], n, router.sinkhorn_iterations)
    return 1 / (1 + np.exp(-values["read"])), carry, 2 / (1 + np.exp(-values["write"]))


def streams(config, p, x, functions):
    router, n = config.router, config.router.streams
    h = np.split(x, n, axis=-1) if router.split_width else [x] * n
    for m, f in enumerate(functions):
        read, carry, write = stream_coefficients(config, p, m, h)
        if router.split_width:
            seen = [sum(read[..., o, i, None] * h[i] for i in range(n)) for o in range(n)]
            updates = np.split(f(np.concatenate(seen, axis=-1)), n, axis=-1)
        else:
            updates = [f(sum(read[..., i, None] * h[i] for i in range(n)))] * n
        h = [sum(carry[..., o, i, None] * h[i] for i in range(n)) + write[..., o, None] * updates[o] for o in range(n)]
    if router.split_width:
        return np.concatenate(h, axis=-1), None, None
    if router.stream_readout == "learned":
        side_by_side = rms_norm(np.concatenate(h, axis=-1), router.key_eps)
        logits = p["head_logit"]["N"] + p["head_scale"]["scalar"] * side_by_side @ p["head_map"]["NW"].T
        return sum(h[i] / (1 + np.exp(-logits[..., i, None])) for i in range(n)), None, None
    return sum(h), None, None
