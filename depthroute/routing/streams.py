"""Routers that keep n streams: each site reads a mix of them, mixes them among themselves, and adds its output to each.

    x_m = sum_n a_n h_n,    h'_o = sum_n c_{o,n} h_n + b_o u_m,    h_n = embedding at first,    read-out sum_n h_n

Read a, carry c and write b are static (one value per site) or dynamic (moved by what the streams hold at the token). The form
of the carry names the parametrisation:

* ``free``, hyper-connections (arXiv 2409.19606): value + s tanh(norm(h_n) w), where a_n, b_n and c_{o,n} come from stream n;
* ``sinkhorn``, mHC (arXiv 2512.24880): logit + s norm(h_0 .. h_{n-1}) w, then a = sigmoid, b = 2 sigmoid, c doubly stochastic;
* ``identity``: the same with c = I. Reading is then linear attention over depth, with query a and key b.

Norms have no gain: the published parameter counts have none, or it is part of w. Maps w start at zero and are used as
published, without a fan-in factor: with s = 0.01 one Adam step moves a coefficient by up to 0.01 times the size of a map's
input, times the rate, and a static one by the rate. The read-out of mHC is not stated; here all forms take the sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthroute.config import Config
from depthroute.nn.norm import wide
from depthroute.nn.params import Initializer, Parameter
from depthroute.routing.contract import Params, Read, Router, Stacked, check_shape, unstack
from depthroute.routing.sinkhorn import sinkhorn
from depthroute.routing.stream_passes import keep, project, read_streams, write_streams
from depthroute.routing.topology import num_sites

OF_SITE = {"read": "N", "carry": "ON", "write": "O"}  # axes of the coefficients
OF_STREAM = {"read": "", "carry": "O", "write": ""}  # of those that come from one stream
SCALE = 0.01  # of the dynamic parts at first, in both papers


class StreamParameters(nn.Module):
    """Static values or logits of read, carry and write, and a map and a scale of the dynamic ones, with a row for every site.

    Site 0 has all its rows, as published, although its read changes no more than a scale, which the sublayer's norm removes.
    A map goes from each stream [D] to its own coefficients if the carry is free, from all streams side by side [W] otherwise;
    the axis it takes is its last, since XLA's CPU backend transposes the streams for the gradient of a map of few columns.
    """

    config: Config

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        router, D = self.config.router, self.config.model.dim
        sizes = {"M": num_sites(self.config), "N": router.streams, "O": router.streams, "D": D, "W": router.streams * D}
        params = {}

        def add(name: str, axes: str, init: Initializer) -> None:
            if f"{name}_{axes}" not in params:
                params[f"{name}_{axes}"] = Parameter(axes, tuple(sizes[axis] for axis in axes), init, name=name)()

        for part, axes in OF_SITE.items():
            if getattr(router, part) != "none":
                add(_static_name(self.config, part), f"M{axes}", partial(_initial, part, router.carry_form == "free"))
        for part in _dynamic(self.config):
            add(f"{part}_map", f"M{_map_axes(self.config, part)}", nn.initializers.zeros)
            add(_scale_name(self.config, part), "M", nn.initializers.constant(SCALE))
        return params


def _initial(part: str, free: bool, key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Static values, or logits unless the carry is free.

    Published for a free carry: site m reads stream m mod n alone, writes to all, and carries I. mHC states no initial logits.
    Those of read, 1 for that stream and -1 for the others, and of carry, 0 on the diagonal and -8 off it, are the mhc-lite
    code's (arXiv 2601.05732); zero for write makes b = 1. While streams are copies of one another, any c with rows that sum to
    one changes nothing and any a changes a scale, so all forms start as the pre-norm residual network. Unequal reading is what
    makes the streams differ: if all treated them alike they would stay copies for ever.
    """
    own = jnp.eye(shape[-1], dtype=dtype)
    if part == "read":
        turn_MN = own[jnp.arange(shape[0]) % shape[-1]]
        return turn_MN if free else 2 * turn_MN - 1
    if part == "carry":
        return jnp.broadcast_to(own if free else 8 * (own - 1), shape)
    return jnp.ones(shape, dtype) if free else jnp.zeros(shape, dtype)


def _dynamic(config: Config) -> list[str]:
    return [part for part in OF_SITE if getattr(config.router, part) == "dynamic"]


def _map_axes(config: Config, part: str) -> str:
    return OF_STREAM[part] + "D" if config.router.carry_form == "free" else OF_SITE[part] + "W"


def _static_name(config: Config, part: str) -> str:
    return part if config.router.carry_form == "free" else f"{part}_logit"


def _scale_name(config: Config, part: str) -> str:
    """Hyper-connections give read and carry one scale, mHC gives each its own."""
    return "mix_scale" if config.router.carry_form == "free" and part != "write" else f"{part}_scale"


def _without_sites(name: str) -> str:
    role, axes = name.rsplit("_", 1)
    return f"{role}_{axes[1:]}".rstrip("_")


class Coefficients(NamedTuple):
    """How a site reads, mixes and writes at every token, at least float32; None as the carry leaves all streams as they are."""

    read_BTN: jax.Array
    carry_BTON: jax.Array | None
    write_BTO: jax.Array


@dataclass(frozen=True)
class Streams:
    """The router of every preset with n streams; its state is one array [B, T, N, D]."""

    config: Config
    prenorm: bool = True

    def parameters(self) -> nn.Module:
        """Those of the parts in use."""
        return StreamParameters(self.config)

    def stack(self, params: Params) -> Stacked:
        """Every array has a row for each site; the read-out has none."""
        return Stacked({_without_sites(name): value for name, value in params.items()}, {})

    def split(self, params: Params) -> Sequence[Params]:
        """One entry of `stack` for each consumer."""
        return unstack(self.stack(params), num_sites(self.config))

    def init_state(self, params_0: Params, x_BTD: jax.Array) -> jax.Array:
        """n copies of the embedding."""
        return jnp.broadcast_to(x_BTD[:, :, None], (*x_BTD.shape[:2], self.config.router.streams, x_BTD.shape[-1]))

    def read(self, params_m: Params, state: jax.Array, m: int) -> Read:
        """The weighted sum of the streams."""
        return Read(read_streams(self.coefficients(params_m, state).read_BTN, state), None)

    def write(self, params_m: Params, state: jax.Array, m: int, update_BTD: jax.Array) -> jax.Array:
        """The streams mixed, plus the update in the share of each; coefficients are those of the streams before."""
        check_shape(update_BTD, state[:, :, 0].shape)
        _, carry_BTON, write_BTO = self.coefficients(params_m, state)
        return write_streams(carry_BTON, write_BTO, state, update_BTD)

    def readout(self, params_M: Params, state: jax.Array) -> Read:
        """The sum of the streams."""
        return Read(jnp.sum(wide(state), axis=2).astype(state.dtype), None)

    def coefficients(self, params_m: Params, streams_BTND: jax.Array) -> Coefficients:
        """Read, carry and write of one site, from one pass over the streams."""
        router = self.config.router
        moves = self._moves(params_m, streams_BTND)

        def value(part: str) -> jax.Array:
            static = params_m[f"{_static_name(self.config, part)}_{OF_SITE[part]}"][None, None]
            return static + params_m[_scale_name(self.config, part)] * moves[part] if part in moves else static

        def everywhere(coefficient: jax.Array) -> jax.Array:
            return jnp.broadcast_to(coefficient, (*streams_BTND.shape[:2], *coefficient.shape[2:]))

        if router.carry_form == "free":
            return Coefficients(*(everywhere(value(part)) for part in OF_SITE))
        carry = None
        if router.carry_form == "sinkhorn":
            logits = jnp.moveaxis(value("carry"), (2, 3), (0, 1))
            carry = everywhere(jnp.moveaxis(keep(sinkhorn(logits, router.sinkhorn_iterations)), (0, 1), (2, 3)))
        return Coefficients(everywhere(jax.nn.sigmoid(value("read"))), carry, everywhere(2 * jax.nn.sigmoid(value("write"))))

    def _moves(self, params_m: Params, streams_BTND: jax.Array) -> dict[str, jax.Array]:
        """What tokens add to the dynamic parts, before their scale: norm(streams) w, squashed if the carry is free.

        The norm is applied after the product, so that one pass serves both.
        """
        router, parts = self.config.router, _dynamic(self.config)
        if not parts:
            return {}
        free = router.carry_form == "free"
        (*leading, N, D) = streams_BTND.shape
        inputs = wide(streams_BTND).reshape(-1, D if free else N * D)
        maps = [params_m[f"{part}_map_{_map_axes(self.config, part)}"] for part in parts]
        move = project(inputs, jnp.concatenate([w.reshape(-1, w.shape[-1]) for w in maps]), router.key_eps)
        if free and router.squash:
            move = jnp.tanh(move)
        split = jax.lax.split(move, [w.size // w.shape[-1] for w in maps], axis=1)
        shapes = [(*leading, *((N,) if free else ()), *w.shape[:-1]) for w in maps]
        moves = {part: own.reshape(shape) for part, own, shape in zip(parts, split, shapes, strict=True)}
        return {part: own.swapaxes(2, 3) if free and part == "carry" else own for part, own in moves.items()}


def build(config: Config) -> Router:
    """n streams with the parts that the axes of `config.router` name."""
    return Streams(config)
