"""What the machine can do: the fastest matrix product and the fastest pass over memory, measured on the first device."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from depthroute.bench.limits import tokens_per_device
from depthroute.config import Config

REPEATS = 10
STRETCH_S = 0.02  # least length of a timed stretch of calls
PAIRS = 4  # products per call, in pairs there and back
TRIAD_ELEMENTS = 2**26  # 256 MiB per array: more than last-level caches hold
DRIFT = 0.15


class Probe(NamedTuple):
    """FLOP/s and bytes/s."""

    peak_flops: float
    bandwidth: float


class Prober:
    """Measures both, as often as asked, on the same arrays: others would lie on other pages, which are faster or slower.

    The peak is the best over products of the model's own shapes and of 1024 x 1024 x 1024, in its dtype.
    """

    def __init__(self, config: Config):
        m, rows = config.model, tokens_per_device(config) // config.train.accumulate
        self._shapes = ((rows, m.dim, m.mlp_dim), (rows, m.dim, m.dim), (1024, 1024, 1024))
        self._dtype = jnp.dtype(m.dtype)
        self._a, self._b = jnp.zeros(TRIAD_ELEMENTS), jnp.ones(TRIAD_ELEMENTS)

    def measure(self) -> Probe:
        """Both, now."""
        seconds, self._a = _fastest(lambda a: _triad(a, self._b), self._a)
        return Probe(max(_gemm_flops(*shape, self._dtype) for shape in self._shapes), 3 * self._b.nbytes / seconds)


def drift(probes: Sequence[Probe]) -> str | None:
    """Why a run with these probes is rejected: a peak or bandwidth that moved by more than `DRIFT`; None if neither did."""
    for name in Probe._fields:
        values = [getattr(probe, name) for probe in probes]
        if max(values) / min(values) - 1 > DRIFT:
            shown = ", ".join(f"{value / 1e9:.1f}" for value in values)
            unit = "GFLOP/s" if name == "peak_flops" else "GB/s"
            return f"{name} moved by more than {DRIFT:.0%} during the run ({shown} {unit}); the machine was not quiet"
    return None


@jax.jit
def _there_and_back(x: jax.Array, there: jax.Array, back: jax.Array) -> jax.Array:
    for _ in range(PAIRS):
        x = (x @ there) @ back
    return x / jnp.max(jnp.abs(x))  # so that calls can follow each other


def _gemm_flops(rows: int, inner: int, columns: int, dtype: jnp.dtype) -> float:
    keys = jax.random.split(jax.random.key(0), 3)
    x, there, back = (
        jax.random.normal(key, shape, dtype) * shape[0] ** -0.5
        for key, shape in zip(keys, ((rows, inner), (inner, columns), (columns, inner)), strict=True)
    )
    return PAIRS * 4 * rows * inner * columns / _fastest(lambda x: _there_and_back(x, there, back), x)[0]


@jax.jit(donate_argnums=0)
def _triad(a: jax.Array, b: jax.Array) -> jax.Array:
    return 0.5 * a + b


def _fastest(call: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[float, jax.Array]:
    """Least seconds per call, each on the result of the one before, over stretches long enough to time; and the last result."""

    def stretch(x: jax.Array, calls: int) -> tuple[float, jax.Array]:
        began = time.perf_counter()
        for _ in range(calls):
            x = call(x)
        jax.block_until_ready(x)
        return (time.perf_counter() - began) / calls, x

    x = jax.block_until_ready(call(x))
    once, x = stretch(x, 1)
    calls, least = math.ceil(STRETCH_S / once), math.inf
    for _ in range(REPEATS):
        seconds, x = stretch(x, calls)
        least = min(least, seconds)
    return least, x
