"""Routers that keep n streams: each site reads a mix of them, mixes them among themselves, and adds its output to each.

    x_m = sum_n a_n h_n,    h'_o = sum_n c_{o,n} h_n + b_o u_m,    h_n = embedding at first,    read-out sum_n h_n

Read a, carry c and write b are static (one value per site) or dynamic (moved by what the streams hold at the token). The form
of the carry names the parametrisation:

* ``free``, hyper-connections (arXiv 2409.19606): value + s tanh(norm(h_n) w), where a_n, b_n and c_{o,n} come from stream n;
* ``sinkhorn``, mHC (arXiv 2512.24880): logit + s norm(h_0 .. h_{n-1}) w, then a = sigmoid, b = 2 sigmoid, c doubly stochastic;
* ``permutations``, ``kronecker``, ``orthogonal``: the same with c from another set of matrices (carries.py);
* ``identity``: the same with c = I. Reading is then linear attention over depth, with query a and key b.

With ``split_width`` (frac-connections, arXiv 2503.14125) the streams are n fractions of the width instead of copies of it: a is
a matrix, x the fractions it makes side by side, b_o scales a fraction of u, and the read-out puts all fractions together.

Norms have no gain: the published parameter counts have none, or it is part of w. Maps w start at zero and are used as
published, without a fan-in factor: with s = 0.01 one Adam step moves a coefficient by up to 0.01 times the size of a map's
input, times the rate, and a static one by the rate. The read-out of mHC is not stated; here all forms take the sum unless a
learned one is asked for: sum_n sigmoid(l_n + s norm(h_0 .. h_{n-1}) w_n) h_n, as DeepSeek-V4 has it in `transformers`.

Codes differ from papers and from each other. A site's stream at first: LIMe's counts layers (``stream_index="layer"``),
hyper-connections' draws it at random. mHC at first: mhc-lite's logits are the default here; hyper-connection-factory has zero
logits and maps N(0, 0.02^2) (``stream_start="random_maps"``); lucidrains' has carry logits I, so c is 0.48 on its diagonal;
MaxText has maps of random fan-in; DeepSeek-V4 adds an eps to a and takes b = sigmoid + eps or 2 sigmoid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthroute.config import Config
from depthroute.nn.norm import wide
from depthroute.routing.carries import CARRIES
from depthroute.routing.contract import Params, Read, Router, Stacked, check_shape, unstack
from depthroute.routing.stream_parameters import (
    PARTS,
    StreamParameters,
    dynamic_parts,
    map_axes,
    own_axes,
    scale_name,
    static_name,
)
from depthroute.routing.stream_passes import keep, project, read_fractions, read_streams, write_fractions, write_streams
from depthroute.routing.topology import num_sites


def _without_sites(name: str) -> str:
    role, axes = name.rsplit("_", 1)
    return f"{role}_{axes[1:]}".rstrip("_")


class Coefficients(NamedTuple):
    """How a site reads, mixes and writes at every token, at least float32; None as the carry leaves all streams as they are.

    `read` is [B, T, N], or [B, T, O, N] of fractions.
    """

    read: jax.Array
    carry_BTON: jax.Array | None
    write_BTO: jax.Array


@dataclass(frozen=True)
class Streams:
    """The router of every preset with n streams; its state is one array [B, T, N, D], of fractions [B, T, N, D / N]."""

    config: Config
    prenorm: bool = True

    def parameters(self) -> nn.Module:
        """Those of the parts in use."""
        return StreamParameters(self.config)

    def stack(self, params: Params) -> Stacked:
        """Every array has a row for each site, but those of a learned read-out."""
        head = {name: value for name, value in params.items() if name.startswith("head_")}
        sites = {_without_sites(name): value for name, value in params.items() if name not in head}
        return Stacked(sites, head)

    def split(self, params: Params) -> Sequence[Params]:
        """One entry of `stack` for each consumer."""
        return unstack(self.stack(params), num_sites(self.config))

    def init_state(self, params_0: Params, x_BTD: jax.Array) -> jax.Array:
        """n copies of the embedding, or its fractions."""
        (*leading, D), n = x_BTD.shape, self.config.router.streams
        if self.config.router.split_width:
            return x_BTD.reshape(*leading, n, D // n)
        return jnp.broadcast_to(x_BTD[:, :, None], (*leading, n, D))

    def read(self, params_m: Params, state: jax.Array, m: int) -> Read:
        """The weighted sum of the streams."""
        return Read(self.see(self.coefficients(params_m, state), state), None)

    def write(self, params_m: Params, state: jax.Array, m: int, update_BTD: jax.Array) -> jax.Array:
        """The streams mixed, plus the update in the share of each; coefficients are those of the streams before."""
        return self.leave(self.coefficients(params_m, state), state, update_BTD)

    def readout(self, params_M: Params, state: jax.Array) -> Read:
        """The sum of the streams, their weighted sum, or all fractions."""
        router, (*leading, N, D) = self.config.router, state.shape
        if router.split_width:
            return Read(state.reshape(*leading, N * D), None)
        if router.stream_readout == "learned":
            moves = project(wide(state).reshape(-1, N * D), params_M["head_map_NW"], router.key_eps).reshape(*leading, N)
            logits_BTN = params_M["head_logit_N"][None, None] + params_M["head_scale"] * moves
            return Read(read_streams(jax.nn.sigmoid(logits_BTN), state), None)
        return Read(jnp.sum(wide(state), axis=2).astype(state.dtype), None)

    def see(self, by: Coefficients, streams_BTND: jax.Array) -> jax.Array:
        """What a site with these coefficients sees: [B, T, D]."""
        return read_fractions(by.read, streams_BTND) if self.config.router.split_width else read_streams(by.read, streams_BTND)

    def leave(self, by: Coefficients, streams_BTND: jax.Array, update_BTD: jax.Array) -> jax.Array:
        """The streams after a site with these coefficients."""
        (*leading, N, D) = streams_BTND.shape
        split = self.config.router.split_width
        check_shape(update_BTD, (*leading, N * D if split else D))
        if not split:
            return write_streams(by.carry_BTON, by.write_BTO, streams_BTND, update_BTD)
        assert by.carry_BTON is not None
        return write_fractions(by.carry_BTON, by.write_BTO, streams_BTND, update_BTD)

    def coefficients(self, params_m: Params, streams_BTND: jax.Array) -> Coefficients:
        """Read, carry and write of one site, from one pass over the streams."""
        router = self.config.router
        moves = self._moves(params_m, streams_BTND)

        def value(part: str) -> jax.Array:
            static = params_m[f"{static_name(self.config, part)}_{own_axes(self.config, part)}"][None, None]
            return static + params_m[scale_name(self.config, part)] * moves[part] if part in moves else static

        def everywhere(coefficient: jax.Array) -> jax.Array:
            return jnp.broadcast_to(coefficient, (*streams_BTND.shape[:2], *coefficient.shape[2:]))

        if router.carry_form == "free":
            return Coefficients(*(everywhere(value(part)) for part in PARTS))
        carry = None
        if router.carry_form != "identity":
            logits = jnp.moveaxis(value("carry"), (0, 1), (-2, -1))
            carry = keep(CARRIES[router.carry_form](logits, router.sinkhorn_iterations))
            carry = everywhere(jnp.moveaxis(carry, (0, 1), (2, 3)))
        return Coefficients(everywhere(jax.nn.sigmoid(value("read"))), carry, everywhere(2 * jax.nn.sigmoid(value("write"))))

    def _moves(self, params_m: Params, streams_BTND: jax.Array) -> dict[str, jax.Array]:
        """What tokens add to the dynamic parts, before their scale: norm(streams) w, squashed if the carry is free.

        The norm is applied after the product, so that one pass serves both.
        """
        router, parts = self.config.router, dynamic_parts(self.config)
        if not parts:
            return {}
        free = router.carry_form == "free"
        (*leading, N, D) = streams_BTND.shape
        inputs = wide(streams_BTND).reshape(-1, D if free else N * D)
        maps = [params_m[f"{part}_map_{map_axes(self.config, part)}"] for part in parts]
        move = project(inputs, jnp.concatenate([w.reshape(-1, w.shape[-1]) for w in maps]), router.key_eps)
        if free and router.squash:
            move = jnp.tanh(move)
        split = jax.lax.split(move, [w.size // w.shape[-1] for w in maps], axis=1)
        shapes = [(*leading, *((N,) if free else ()), *w.shape[:-1]) for w in maps]
        moves = {part: own.reshape(shape) for part, own, shape in zip(parts, split, shapes, strict=True)}
        return {part: own.swapaxes(2, 3) if free and own.ndim == 4 else own for part, own in moves.items()}


def build(config: Config) -> Router:
    """n streams with the parts that the axes of `config.router` name."""
    return Streams(config)
