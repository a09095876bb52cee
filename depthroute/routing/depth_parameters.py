"""Parameters of depth attention: what each axis in use owns, and who gets which part of it."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.nn.params import Parameter, fan_in, normal
from depthroute.routing.contract import Params
from depthroute.routing.counts_history import key_width
from depthroute.routing.topology import choosers, groups, mixes, num_pairs, num_rows, num_sites, num_sources

MAPPED = ("dynamic_projected", "hybrid", "centred", "stop_gradient", "recurrent", "emitted")  # keys with a shared map
WAVE_BASE = 10000.0  # longest wavelength of sinusoidal keys, in sources, over 2 pi


def waves(sources: int, width: int) -> jax.Array:
    """Sine and cosine of the depth at geometric wavelengths, of size one as learned keys are: [S, R] (arXiv 1706.03762)."""
    half = (width + 1) // 2
    angle = np.outer(np.arange(sources), WAVE_BASE ** (-np.arange(half) / half))
    return jnp.asarray(2**0.5 * np.concatenate([np.sin(angle), np.cos(angle)], axis=1)[:, :width], jnp.float32)


class DepthAttentionParameters(nn.Module):
    """Parameters of the axes in use, with rows for the mixes that have a choice (M) and their pairs with what they see (P).

    Initial values: queries, their maps and gates zero, gains one, static keys N(0, 1), the key map N(0, D), which through its
    1/D gives keys of size one; static keys that are multiplied by a query which does not start at zero start at zero instead.
    Biases start as `router.bias_start` says. Sinusoidal keys are constants and owned by nobody.
    """

    config: Config

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        router, D, R = self.config.router, self.config.model.dim, key_width(self.config)
        M, P, S = num_rows(self.config), num_pairs(self.config), num_sources(self.config)
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        params = {}

        def add(name: str, axes: str, shape: tuple[int, ...], init: nn.initializers.Initializer) -> None:
            params[f"{name}_{axes}" if axes != "scalar" else name] = Parameter(axes, shape, init, name=name)()

        if router.query in ("static", "dynamic"):
            add("query", "MR", (M, R), zeros)
        if router.query == "dynamic":
            add("query_map", "MDR", (M, D, R), zeros)
        if router.query == "mlp":
            sizes = [mixes(self.config, m) * len(groups(self.config)[m]) for m in choosers(self.config)]
            add("mlp_in", "PD", (P, D), fan_in(D))
            add("mlp_out", "Q", (sum(size**2 for size in sizes),), zeros)
        elif router.key == "static_per_consumer":
            add("key", "PR", (P, R), zeros if router.query == "input" else normal(1.0))
        if router.key in ("static", "hybrid"):
            add("key", "SR", (S, R), normal(1.0))
        if router.key == "sinusoidal":
            params["key_SR"] = waves(S, R)
        if router.key in MAPPED:
            add("key_map", "DR", (D, R), normal(D**0.5))
        if router.key == "hybrid":
            add("key_gate", "scalar", (), zeros)
        if router.key == "centred":
            add("key_mean", "SD", (S, D), zeros)
        if router.key == "recurrent":
            add("key_step", "RE", (R, R), fan_in(R))
            add("key_shift", "R", (R,), zeros)
        if router.key_gain:
            add("key_gain", "MD", (M, D // router.heads), ones)
        if router.bias == "learned":
            add("bias", "P", (P,), _initial_bias(self.config))
        if router.bias == "per_channel":
            add("bias", "PD", (P, D), _initial_bias(self.config))
        return params


def _initial_bias(config: Config):
    def init(key, shape, dtype):
        seen = groups(config)
        rows = [(mixes(config, m), len(seen[m])) for m in choosers(config)]
        start = {
            "zero": lambda count: np.zeros(count),
            "one": lambda count: np.ones(count),
            "newest": lambda count: np.eye(count)[-1],
            "mean": lambda count: np.full(count, 1 / count),
        }[config.router.bias_start]
        values_P = np.concatenate([np.zeros(0), *(np.tile(start(count), copies) for copies, count in rows)])
        return jnp.broadcast_to(jnp.asarray(values_P, dtype).reshape(-1, *(1,) * (len(shape) - 1)), shape)

    return init


def is_shared(name: str) -> bool:
    """Whether all consumers get the whole array."""
    return name.rpartition("_")[2][:1] not in ("M", "P", "Q")


def split(config: Config, params: Params) -> Sequence[Params]:
    """What each consumer gets: shared arrays whole, of the others its rows, with leading axes C over mixes and S over groups.

    A consumer without a choice gets no rows. ``query_MR`` becomes ``query_CR``, ``bias_P`` becomes ``bias_CS``, ``mlp_out_Q``
    becomes ``mlp_out_CSEU``, from hidden units (C, S) to scores (E, U).
    """
    seen = groups(config)
    consumers: list[dict[str, jax.Array]] = [
        {name: value for name, value in params.items() if is_shared(name)} for _ in range(num_sites(config) + 1)
    ]
    owners = choosers(config)
    for name in params.keys() - consumers[0].keys():
        role, axes = name.rsplit("_", 1)
        own_axes = {"M": "C", "P": "CS", "Q": "CSEU"}[axes[0]] + axes[1:]
        shapes = [(mixes(config, m), len(seen[m])) for m in owners]
        letters = {"M": 1, "P": 2, "Q": 4}[axes[0]]
        leading = [(shape * 2)[:letters] for shape in shapes]
        parts = jax.lax.split(params[name], [int(np.prod(shape)) for shape in leading], axis=0)
        for m, shape, part in zip(owners, leading, parts, strict=True):
            consumers[m][f"{role}_{own_axes}"] = part.reshape(*shape, *part.shape[1:])
    return consumers
