"""Routers with one stream, of the reference decoder, in float64 NumPy."""

from reference_blocks import rms_norm


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
