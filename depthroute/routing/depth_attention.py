"""Depth attention: every consumer mixes all earlier sources, by a query and keys, by learned biases, or both.

    x_m = sum_i a_{m,i} v_i,   a_m = mixing(s_m),   s_{m,i} = q_m . k_i / sqrt(R) + b_{m,i}

Queries, keys and mixings are looked up by name and are the only places where arms of an ablation differ. Scores are divided by
the square root of the key width everywhere: keys have coordinates of size one, so one Adam step on a static query then moves
scores by the same order of size at any width. Published AttnRes (arXiv 2603.15031) has no such factor; under Adam the factor
is the same as dividing the query's learning rate by sqrt(D).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.nn.params import Parameter, normal
from depthroute.routing.contract import Params, Read, ReadTrace, Router, residual_add
from depthroute.routing.history import ListHistory
from depthroute.routing.keys import KEYS
from depthroute.routing.mixing import MIXINGS
from depthroute.routing.queries import QUERIES
from depthroute.routing.topology import choosers, num_pairs, num_sites, num_sources, source_in, visible_sources

PER_CONSUMER = ("_MR", "_MDR", "_MD", "_P", "_PR")
DOTS = {(1, 1): "R,R->", (3, 1): "BTR,R->BT", (1, 3): "R,BTR->BT", (3, 3): "BTR,BTR->BT"}


class DepthAttentionParameters(nn.Module):
    """Parameters of the axes in use, with rows for the consumers that have a choice (M) and their pairs (P).

    Initial values: queries, their maps and gates zero, gains one, static keys N(0, 1), the key map N(0, D), which through its
    1/D gives keys of size one. Biases start at zero under softmax and sigmoid; free mixing starts as the sum of all outputs,
    or as the newest state alone.
    """

    config: Config

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        router, D = self.config.router, self.config.model.dim
        M, P, S = len(choosers(self.config)), num_pairs(self.config), num_sources(self.config)
        R = D if router.key == "dynamic_full" else router.rank
        zeros, ones = nn.initializers.zeros, nn.initializers.ones
        params = {}
        if router.query != "none":
            params["query_MR"] = Parameter("MR", (M, R), zeros, name="query")()
        if router.query == "dynamic":
            params["query_map_MDR"] = Parameter("MDR", (M, D, R), zeros, name="query_map")()
        if router.key in ("static", "hybrid"):
            params["key_SR"] = Parameter("SR", (S, R), normal(1.0), name="key")()
        if router.key == "static_per_consumer":
            params["key_PR"] = Parameter("PR", (P, R), normal(1.0), name="key")()
        if router.key in ("dynamic_projected", "hybrid"):
            params["key_map_DR"] = Parameter("DR", (D, R), normal(D**0.5), name="key_map")()
        if router.key == "hybrid":
            params["key_gate"] = Parameter("scalar", (), zeros, name="key_gate")()
        if router.key_gain:
            params["key_gain_MD"] = Parameter("MD", (M, D), ones, name="key_gain")()
        if router.bias == "learned":
            params["bias_P"] = Parameter("P", (P,), _initial_bias(self.config), name="bias")()
        return params


def _initial_bias(config: Config):
    def init(key, shape, dtype):
        if config.router.mixing != "free":
            return jnp.zeros(shape, dtype)
        if config.router.sources == "outputs":
            return jnp.ones(shape, dtype)
        visible = visible_sources(config)
        newest = np.cumsum([len(visible[m]) for m in choosers(config)]) - 1
        return jnp.zeros(shape, dtype).at[newest].set(1.0)

    return init


class Written(NamedTuple):
    """What a dynamic query may be computed from."""

    embedding_BTD: jax.Array
    newest_BTD: jax.Array  # what the last site wrote
    total_BTD: jax.Array  # the embedding and everything written since, added up
    writes: int | jax.Array


QUERY_INPUTS = {
    "newest": lambda written: written.newest_BTD,
    "mean": lambda written: written.total_BTD / (written.writes + 1),
    "embedding": lambda written: written.embedding_BTD,
}


class DepthState(NamedTuple):
    """The history in its list form, and what queries are computed from."""

    history: ListHistory
    written: Written


@dataclass(frozen=True)
class DepthAttention:
    """The router of every history preset."""

    config: Config
    prenorm: bool = True

    def parameters(self) -> nn.Module:
        """Those of the axes in use."""
        return DepthAttentionParameters(self.config)

    def split(self, params: Params) -> Sequence[Params]:
        """Rows of the per-consumer arrays, under the name without the consumer axis, and the shared arrays."""
        visible, owners = visible_sources(self.config), choosers(self.config)
        shared = {name: value for name, value in params.items() if not name.endswith(PER_CONSUMER)}
        consumers: list[dict[str, jax.Array]] = [dict(shared) for _ in visible]
        for name in params.keys() - shared.keys():
            role, axes = name.rsplit("_", 1)
            per_pair = axes.startswith("P")
            sizes = [len(visible[m]) if per_pair else 1 for m in owners]
            own_name = f"{role}_{axes.replace('P', 'S') if per_pair else axes[1:]}"
            for m, part in zip(owners, jax.lax.split(params[name], sizes, axis=0), strict=True):
                consumers[m][own_name] = part if per_pair else part[0]
        return consumers

    def init_state(self, params_0: Params, x_BTD: jax.Array) -> DepthState:
        """The embedding is source 0."""
        history = ListHistory().append(x_BTD, self._key(params_0, 0, x_BTD))
        return DepthState(history, Written(x_BTD, x_BTD, x_BTD, 0))

    def read(self, params_m: Params, state: DepthState, m: int) -> Read:
        """The weighted sum of what it sees of what was written so far."""
        sources = visible_sources(self.config)[m]
        if len(sources) == 1:
            x_BTD = state.history.values[sources[0]]
            one_BTS = jnp.ones((*x_BTD.shape[:2], 1))
            return Read(x_BTD, ReadTrace(jnp.zeros_like(one_BTS), one_BTS))
        seen = state.history.select(sources)
        scores_BTS = self._scores(params_m, state, seen)
        weights_BTS = MIXINGS[self.config.router.mixing].of(scores_BTS)
        return Read(seen.mix(weights_BTS), ReadTrace(scores_BTS, weights_BTS))

    def write(self, params_m: Params, state: DepthState, m: int, update_BTD: jax.Array) -> DepthState:
        """Adds the update as a source, as a cumulative state, or to its block."""
        total_BTD = residual_add(state.written.total_BTD, update_BTD)
        value_BTD, source, history = update_BTD, source_in(self.config, m + 1), state.history
        if self.config.router.sources == "states":
            value_BTD = residual_add(self.read(params_m, state, m).x_BTD, update_BTD)
        grows = source < len(history.values)
        if grows:
            value_BTD = residual_add(history.values[source], update_BTD)
        key = self._key(params_m, source, value_BTD)
        put = history.replace_newest if grows else history.append
        written = Written(state.written.embedding_BTD, update_BTD, total_BTD, state.written.writes + 1)
        return DepthState(put(value_BTD, key), written)

    def readout(self, params_M: Params, state: DepthState) -> Read:
        """One more consumer, with its own query."""
        return self.read(params_M, state, num_sites(self.config))

    def query(self, params_m: Params, z_BTD: jax.Array) -> jax.Array:
        """What the consumer looks for, ready for a dot product with a key: gain and scale are in it. [R] or [B, T, R]."""
        router = self.config.router
        query = QUERIES[router.query](params_m, z_BTD, router.key_eps)
        if router.key_gain:
            query = query * (params_m["key_gain_D"] if query.ndim == 1 else params_m["key_gain_D"][None, None])
        return query * query.shape[-1] ** -0.5

    def key(self, params: Params, source: Any, value_BTD: jax.Array) -> jax.Array:
        """The key of a source that is the same for all its consumers: [R] or [B, T, R]."""
        return KEYS[self.config.router.key](params, source, value_BTD, self.config.router.key_eps)

    def _key(self, params: Params, source: int, value_BTD: jax.Array) -> jax.Array | None:
        return self.key(params, source, value_BTD) if self.config.router.key in KEYS else None

    def _scores(self, params_m: Params, state: DepthState, seen: ListHistory) -> jax.Array:
        router = self.config.router
        shape_BTS = (*state.written.embedding_BTD.shape[:2], len(seen.values))
        scores_BTS = jnp.zeros(shape_BTS)
        if router.query != "none":
            query = self.query(params_m, QUERY_INPUTS[router.query_input](state.written))
            keys = tuple(params_m["key_SR"]) if router.key == "static_per_consumer" else seen.keys
            dots = [jnp.einsum(DOTS[query.ndim, key.ndim], query, key) for key in keys if key is not None]
            scores_BTS = jnp.stack([jnp.broadcast_to(dot, shape_BTS[:2]) for dot in dots], axis=-1)
        if router.bias == "learned":
            scores_BTS += params_m["bias_S"][None, None]
        return scores_BTS


def build(config: Config) -> Router:
    """Depth attention at the point that the axes of `config.router` name."""
    return DepthAttention(config)
