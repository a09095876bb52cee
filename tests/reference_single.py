"""Routers with one stream, of the reference decoder, in float64 NumPy."""

import numpy as np
from reference_blocks import rms_norm, softmax


def bypassing(config, m):
    """Channels that pass the stage of site m."""
    D = config.model.dim
    count, stage = round(config.router.skip_fraction * D), m // (2 * config.model.layers // config.router.stages)
    return [(stage * count + i) % D for i in range(count)]


def next_stream(config, p, m, x, u, before):
    """The stream after site m, which read x (and earlier ones `before`, newest first) and computed u."""
    router, preset, D = config.router, config.router.preset, x.shape[-1]
    if preset == "plain":
        return u
    if preset in ("residual", "value_residual"):
        return x + u
    if preset == "postnorm":
        return rms_norm(x + u, config.model.stream_eps) * p["gain"]["MD"][m]
    if preset == "deepnorm":
        return rms_norm((2 * config.model.layers) ** 0.25 * x + u, config.model.stream_eps) * p["gain"]["MD"][m]
    if preset == "scaled":
        return x + router.skip_scale * u
    if preset == "rezero":
        return x + p["scale"]["L"][m // 2] * u
    if preset == "skipinit":
        return x + p["scale"]["M"][m] * u
    if preset == "layerscale":
        return x + p["scale"]["MD"][m] * u
    if preset == "highway":
        logits = rms_norm(x, router.key_eps) @ p["gate_map"]["MDE"][m] / D + p["gate_shift"]["MD"][m]
        t = 1 / (1 + np.exp(-logits))
        return t * u + (1 - t) * x
    if preset == "partial_residual":
        count = round(router.skip_fraction * D)
        return np.concatenate([x[..., :count] + u[..., :count], u[..., count:]], axis=-1)
    if preset == "stage_bypass":
        u = u.copy()
        u[..., bypassing(config, m)] = 0
        return x + u
    if preset == "laurel_rw":
        a, b = softmax(p["logit"]["MN"][m])
        return a * u + b * x
    if preset == "laurel_lr":
        return x + u + x @ p["down"]["MDR"][m] @ p["up"]["MRD"][m]
    if preset == "laurel_pa":
        first = sum(min(i, router.window) for i in range(m))
        return x + u + sum(p["weight"]["P"][first + j] * y for j, y in enumerate(before[: router.window]))
    raise AssertionError(f"the reference has no single-stream preset {preset!r}; add its equation here")


def single_stream(config, p, x, functions):
    before = []
    for m, f in enumerate(functions):
        x, before = next_stream(config, p, m, x, f(x), before), [x, *before]
    return x, None, None
