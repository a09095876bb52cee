"""Routers that keep one stream and no history."""

from collections.abc import Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax

from depthroute.config import Config
from depthroute.nn.norm import rms_norm
from depthroute.nn.params import Parameter
from depthroute.routing.contract import Params, Read, Router, Stacked, residual_add, unstack
from depthroute.routing.topology import num_sites


class NoParameters(nn.Module):
    """Owns nothing."""

    def __call__(self) -> dict[str, jax.Array]:
        return {}


class NormGains(nn.Module):
    """One gain per site, starting at one."""

    sites: int
    dim: int

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        return {"gain_MD": Parameter("MD", (self.sites, self.dim), nn.initializers.ones, name="gain")()}


@dataclass(frozen=True)
class Residual:
    """x_{m+1} = x_m + u_m; with the sublayers' norms, the pre-norm residual network (He et al., arXiv 1512.03385)."""

    config: Config
    prenorm: bool = True

    def parameters(self) -> nn.Module:
        """No parameters."""
        return NoParameters()

    def stack(self, params: Params) -> Stacked:
        """Nothing for anybody."""
        return Stacked({}, {})

    def split(self, params: Params) -> Sequence[Params]:
        """One entry of `stack` for each consumer."""
        return unstack(self.stack(params), num_sites(self.config))

    def init_state(self, params_0: Params, x_BTD: jax.Array) -> jax.Array:
        """The stream itself."""
        return x_BTD

    def read(self, params_m: Params, state: jax.Array, m: int) -> Read:
        """The stream itself."""
        return Read(state, None)

    def write(self, params_m: Params, state: jax.Array, m: int, update_BTD: jax.Array) -> jax.Array:
        """x + u."""
        return residual_add(state, update_BTD)

    def readout(self, params_M: Params, state: jax.Array) -> Read:
        """The stream itself."""
        return Read(state, None)


@dataclass(frozen=True)
class Plain(Residual):
    """x_{m+1} = u_m: no skip at all."""

    def write(self, params_m: Params, state: jax.Array, m: int, update_BTD: jax.Array) -> jax.Array:
        """u, and x is forgotten."""
        return update_BTD


@dataclass(frozen=True)
class PostNorm(Residual):
    """x_{m+1} = norm(x_m + u_m) with a learned gain; sublayers see the stream as it is (Vaswani et al., arXiv 1706.03762)."""

    prenorm: bool = False

    def parameters(self) -> nn.Module:
        """A gain per site."""
        return NormGains(num_sites(self.config), self.config.model.dim)

    def stack(self, params: Params) -> Stacked:
        """A gain for each site and nothing for the read-out."""
        return Stacked({"gain_D": params["gain_MD"]}, {})

    def write(self, params_m: Params, state: jax.Array, m: int, update_BTD: jax.Array) -> jax.Array:
        """norm(x + u) times the gain."""
        normed_BTD = rms_norm(residual_add(state, update_BTD), self.config.model.stream_eps)
        return normed_BTD * params_m["gain_D"].astype(normed_BTD.dtype)[None, None]


ROUTERS = {"residual": Residual, "plain": Plain, "postnorm": PostNorm}


def build(config: Config) -> Router:
    """The single-stream router that `config.router.preset` names."""
    return ROUTERS[config.router.preset](config)
