"""Routers that keep one stream and no history: what becomes of the stream x and of the output u of the site that read it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.nn.norm import rms_norm
from depthroute.nn.params import Parameter, fan_in
from depthroute.routing import presets
from depthroute.routing.buffer import take
from depthroute.routing.contract import Params, Read, Router, Stacked, check_shape, residual_add, unstack
from depthroute.routing.topology import num_sites

Owned = dict[str, tuple[tuple[int, ...], nn.initializers.Initializer]]
HIGHWAY_BIAS = -2.0  # of the gates at first, so that most of the stream is carried (arXiv 1505.00387)
ZEROS, ONES = nn.initializers.zeros, nn.initializers.ones


class SingleStreamParameters(nn.Module):
    """Arrays by name, with their shapes and initial values; a name ends with the axes."""

    owned: Owned

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        params = {}
        for name, (shape, init) in self.owned.items():
            role, _, axes = name.rpartition("_")
            params[name] = Parameter(axes, shape, init, name=role)()
        return params


# --- what a site leaves: (config, its parameters, its number, what it read, what it computed) -> the next stream --------------


def add(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """x + u."""
    return residual_add(x_BTD, update_BTD)


def forget(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """u: no skip at all."""
    check_shape(update_BTD, x_BTD.shape)
    return update_BTD


def norm_after(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """norm(x + u) times a gain (Vaswani et al., arXiv 1706.03762)."""
    normed_BTD = rms_norm(residual_add(x_BTD, update_BTD), config.model.stream_eps)
    return normed_BTD * params["gain_D"].astype(normed_BTD.dtype)[None, None]


def deep_norm(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """norm((2 L)^(1/4) x + u) times a gain (DeepNorm, arXiv 2203.00555)."""
    return norm_after(config, params, m, (2 * config.model.layers) ** 0.25 * x_BTD, update_BTD)


def scale_constant(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """x + alpha u."""
    return residual_add(x_BTD, config.router.skip_scale * update_BTD)


def scale_all(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """x + a u with a learned scalar."""
    return residual_add(x_BTD, params["scale"].astype(x_BTD.dtype) * update_BTD)


def scale_channels(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """x + diag(a) u with a learned vector."""
    check_shape(update_BTD, x_BTD.shape)
    return residual_add(x_BTD, params["scale_D"].astype(x_BTD.dtype)[None, None] * update_BTD)


def gate(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """t u + (1 - t) x with t = sigmoid(norm(x) W / D + b); 1/D as for dynamic queries (queries.py)."""
    normed_BTD = rms_norm(x_BTD.astype(jnp.promote_types(x_BTD.dtype, jnp.float32)), config.router.key_eps)
    logits_BTD = jnp.einsum("BTD,DE->BTE", normed_BTD, params["gate_map_DE"]) / x_BTD.shape[-1]
    gate_BTD = jax.nn.sigmoid(logits_BTD + params["gate_shift_D"][None, None]).astype(x_BTD.dtype)
    check_shape(update_BTD, x_BTD.shape)
    return residual_add(gate_BTD * update_BTD, (1 - gate_BTD) * x_BTD)


def skip_some(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """u plus the first channels of x (partial residual networks, see arXiv 2211.04800)."""
    kept_D = np.arange(config.model.dim) < channels(config)
    return residual_add(jnp.where(kept_D[None, None], x_BTD, jnp.zeros_like(x_BTD)), update_BTD)


def skip_stage(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """x plus u, without a block of channels that passes the stage of site m untouched.

    The block moves by its size from stage to stage, so that parts swap roles.
    """
    D, count, stages = config.model.dim, channels(config), config.router.stages
    passing_SD = np.zeros((stages, D), bool)
    for stage in range(stages):
        passing_SD[stage, (stage * count + np.arange(count)) % D] = True
    passing_D = take(jnp.asarray(passing_SD), m // (num_sites(config) // stages))
    return residual_add(x_BTD, jnp.where(passing_D[None, None], jnp.zeros_like(update_BTD), update_BTD))


def weigh_both(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """a u + b x with (a, b) the softmax of two learned logits (LAuReL-RW, arXiv 2411.07501)."""
    a, b = jax.nn.softmax(params["logit_N"]).astype(x_BTD.dtype)
    return residual_add(b * x_BTD, a * update_BTD)


def low_rank(config: Config, params: Params, m: Any, x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """u + x + x B A with B of D x R and A of R x D (LAuReL-LR)."""
    down_DR, up_RD = (params[name].astype(x_BTD.dtype) for name in ("down_DR", "up_RD"))
    skip_BTD = jnp.einsum("BTR,RD->BTD", jnp.einsum("BTD,DR->BTR", x_BTD, down_DR), up_RD)
    return residual_add(residual_add(x_BTD, update_BTD), skip_BTD)


def channels(config: Config) -> int:
    """How many channels take the skip or pass a stage."""
    return round(config.router.skip_fraction * config.model.dim)


# --- parameters ------------------------------------------------------------------------------------------------------


def own_nothing(config: Config) -> Owned:
    """No parameters."""
    return {}


def own_gains(config: Config) -> Owned:
    """One gain per site, starting at one."""
    return {"gain_MD": ((num_sites(config), config.model.dim), ONES)}


def layer_scale(config: Config) -> float:
    """0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond (CaiT, arXiv 2103.17239)."""
    layers = config.model.layers
    return 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6


def own_low_rank(config: Config) -> Owned:
    """The map down N(0, 1/D), the map up zero."""
    M, D, R = num_sites(config), config.model.dim, config.router.rank
    return {"down_MDR": ((M, D, R), fan_in(D)), "up_MRD": ((M, R, D), ZEROS)}


def own_gate(config: Config) -> Owned:
    """A map of zeros and a bias that carries most of the stream."""
    M, D = num_sites(config), config.model.dim
    return {"gate_map_MDE": ((M, D, D), ZEROS), "gate_shift_MD": ((M, D), nn.initializers.constant(HIGHWAY_BIAS))}


class Rule(NamedTuple):
    """A preset's way: what a site leaves, and what it owns for that."""

    leave: Callable[[Config, Params, Any, jax.Array, jax.Array], jax.Array]
    owned: Callable[[Config], Owned] = own_nothing


RULES: Mapping[str, Rule] = {
    "residual": Rule(add),
    "plain": Rule(forget),
    "postnorm": Rule(norm_after, own_gains),
    "scaled": Rule(scale_constant),
    "rezero": Rule(scale_all, lambda config: {"scale_L": ((config.model.layers,), ZEROS)}),
    "skipinit": Rule(scale_all, lambda config: {"scale_M": ((num_sites(config),), ZEROS)}),
    "layerscale": Rule(
        scale_channels,
        lambda config: {"scale_MD": ((num_sites(config), config.model.dim), nn.initializers.constant(layer_scale(config)))},
    ),
    "deepnorm": Rule(deep_norm, own_gains),
    "highway": Rule(gate, own_gate),
    "partial_residual": Rule(skip_some),
    "stage_bypass": Rule(skip_stage),
    "value_residual": Rule(add),
    "laurel_rw": Rule(weigh_both, lambda config: {"logit_MN": ((num_sites(config), 2), ZEROS)}),
    "laurel_lr": Rule(low_rank, own_low_rank),
}


@dataclass(frozen=True)
class SingleStream:
    """The router of every preset in `RULES`; its state is the stream."""

    config: Config

    @property
    def prenorm(self) -> bool:
        """As the preset says."""
        return presets.prenorm(self.config)

    @property
    def _rule(self) -> Rule:
        return RULES[self.config.router.preset]

    def parameters(self) -> nn.Module:
        """What the rule owns."""
        return SingleStreamParameters(self._rule.owned(self.config))

    def stack(self, params: Params) -> Stacked:
        """Every array has a row for each site, or for each layer, whose sites share it; the read-out has none."""
        sites = {}
        for name, value in params.items():
            role, _, axes = name.rpartition("_")
            rows = jnp.repeat(value, num_sites(self.config) // len(value), axis=0)
            sites[f"{role}_{axes[1:]}".rstrip("_")] = rows
        return Stacked(sites, {})

    def split(self, params: Params) -> Sequence[Params]:
        """One entry of `stack` for each consumer."""
        return unstack(self.stack(params), num_sites(self.config))

    def init_state(self, params_0: Params, x_BTD: jax.Array) -> Any:
        """The stream itself."""
        return x_BTD

    def read(self, params_m: Params, state: Any, m: int) -> Read:
        """The stream itself."""
        return Read(state, None)

    def write(self, params_m: Params, state: Any, m: int, update_BTD: jax.Array) -> Any:
        """As the rule says."""
        return self._rule.leave(self.config, params_m, m, state, update_BTD)

    def readout(self, params_M: Params, state: Any) -> Read:
        """The stream itself."""
        return Read(state, None)


class Reads(NamedTuple):
    """The stream, and what the last sites read, newest first: [K, B, T, D]."""

    x_BTD: jax.Array
    earlier_KBTD: jax.Array


class PreviousActivations(SingleStream):
    """x_{m+1} = u + x_m + sum_j g_{m,j} x_{m-j} over the `window` reads before (LAuReL-PA, arXiv 2411.07501).

    The paper puts a linear map around x_{m-j}; here it is the identity, as in its simplest form. Weights start at zero. Reads
    before the first one do not exist and own no weight.
    """

    def parameters(self) -> nn.Module:
        """One weight for every site and every earlier read that it sees."""
        return SingleStreamParameters({"weight_P": ((len(self._pairs[0]),), ZEROS)})

    @property
    def _pairs(self) -> tuple[np.ndarray, ...]:
        sites, window = np.arange(num_sites(self.config)), np.arange(self.config.router.window)
        return np.nonzero(window[None] < sites[:, None])

    def stack(self, params: Params) -> Stacked:
        """A row of weights for each site, zero where there is nothing to weigh."""
        shape = (num_sites(self.config), self.config.router.window)
        return Stacked({"weight_K": jnp.zeros(shape).at[self._pairs].set(params["weight_P"])}, {})

    def init_state(self, params_0: Params, x_BTD: jax.Array) -> Reads:
        """Nothing has been read."""
        return Reads(x_BTD, jnp.zeros((self.config.router.window, *x_BTD.shape), x_BTD.dtype))

    def read(self, params_m: Params, state: Reads, m: int) -> Read:
        """The stream."""
        return Read(state.x_BTD, None)

    def write(self, params_m: Params, state: Reads, m: int, update_BTD: jax.Array) -> Reads:
        """u + x + the weighted earlier reads; x becomes one of them."""
        weights_K = params_m["weight_K"].astype(state.x_BTD.dtype)
        earlier_BTD = jnp.einsum("K,KBTD->BTD", weights_K, state.earlier_KBTD)
        x_BTD = residual_add(residual_add(state.x_BTD, update_BTD), earlier_BTD)
        return Reads(x_BTD, jnp.concatenate([state.x_BTD[None], state.earlier_KBTD[:-1]]))

    def readout(self, params_M: Params, state: Reads) -> Read:
        """The stream."""
        return Read(state.x_BTD, None)


def build(config: Config) -> Router:
    """The single-stream router that `config.router.preset` names."""
    return PreviousActivations(config) if config.router.preset == "laurel_pa" else SingleStream(config)
