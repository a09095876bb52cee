"""Depth attention: every consumer mixes all earlier sources, by a query and keys, by learned biases, or both.

    x_m = sum_i a_{m,i} v_i,   a_m = mixing(s_m),   s_{m,i} = q_m . k_i / sqrt(R) + b_{m,i}

Queries, keys and mixings are looked up by name and are the only places where arms of an ablation differ. Scores are divided by
the square root of the key width everywhere: keys have coordinates of size one, so one Adam step on a static query then moves
scores by the same order of size at any width. Published AttnRes (arXiv 2603.15031) has no such factor; under Adam the factor
is the same as dividing the query's learning rate by sqrt(D).

Biases with a value for every channel are added to the weights, not to the scores. A consumer may make several mixes: one for
each group of channels (`heads`), for each input of attention (`ways`), or for the keys and the values of each of its heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthroute.config import Config
from depthroute.nn.norm import rms_norm
from depthroute.routing.contract import Params, Read, ReadTrace, Router, Ways, residual_add
from depthroute.routing.counts_history import FULL_WIDTH
from depthroute.routing.depth_parameters import DepthAttentionParameters, split
from depthroute.routing.history import BufferHistory, ListHistory, table_dots
from depthroute.routing.keys import KEYS, Source
from depthroute.routing.mixing import MIXINGS
from depthroute.routing.queries import QUERIES, mlp_scores
from depthroute.routing.topology import groups, mixes, num_sites, source_in

Seen = ListHistory | BufferHistory


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
    """The history, and what queries are computed from."""

    history: Any
    written: Written


class Entry(NamedTuple):
    """What a site leaves in the history, and in `Written`."""

    value_BTD: jax.Array
    key: jax.Array | None
    newest_BTD: jax.Array
    total_BTD: jax.Array


@dataclass(frozen=True)
class DepthAttention:
    """The router of every history preset."""

    config: Config
    prenorm: bool = True

    def parameters(self) -> nn.Module:
        """Those of the axes in use."""
        return DepthAttentionParameters(self.config)

    def split(self, params: Params) -> Sequence[Params]:
        """One entry per consumer (see `depth_parameters.split`)."""
        return split(self.config, params)

    def init_state(self, params_0: Params, x_BTD: jax.Array) -> DepthState:
        """The embedding is source 0."""
        entry = self.first(params_0, x_BTD)
        return DepthState(ListHistory().append(entry.value_BTD, entry.key), Written(x_BTD, x_BTD, x_BTD, 0))

    def read(self, params_m: Params, state: DepthState, m: int) -> Read:
        """The weighted sums of what it sees of what was written so far."""
        in_sources = [[source_in(self.config, slot) for slot in group] for group in groups(self.config)[m]]
        seen = state.history.seen(in_sources)
        return self.route(params_m, seen, state.written, mixes(self.config, m), m < num_sites(self.config))

    def write(self, params_m: Params, state: DepthState, m: int, update_BTD: jax.Array) -> DepthState:
        """Adds the update as a source, as a cumulative state, or to its block."""
        source, history = source_in(self.config, m + 1), state.history
        grows = source < len(history.values)
        read = self.read(params_m, state, m) if self.config.router.sources == "states" else None
        block_BTD = history.values[source] if grows else None
        entry = self.entry(params_m, state.written, source, update_BTD, read, block_BTD, history.keys[-1])
        put = history.replace_newest if grows else history.append
        written = Written(state.written.embedding_BTD, entry.newest_BTD, entry.total_BTD, state.written.writes + 1)
        return DepthState(put(entry.value_BTD, entry.key), written)

    def readout(self, params_M: Params, state: DepthState) -> Read:
        """One more consumer, with its own query."""
        return self.read(params_M, state, num_sites(self.config))

    # --- what both forms of the history share ------------------------------------------------------------------------

    def first(self, params: Params, x_BTD: jax.Array) -> Entry:
        """The embedding's entry."""
        value_BTD = self._normed(x_BTD)
        key = self.key(params, 0, value_BTD) if self._keyed else None
        return Entry(value_BTD, key, x_BTD, x_BTD)

    def entry(
        self,
        params: Params,
        written: Written,
        source: Any,
        update_BTD: jax.Array,
        read: Read | None,
        block_BTD: jax.Array | None,
        previous_BTR: jax.Array | None,
    ) -> Entry:
        """The entry of a site: given what it wrote, what it had read (for states), its block so far, and the key before it."""
        emitted_BTR = None
        if self.config.router.key == "emitted":
            D = self.config.model.dim
            update_BTD, emitted_BTR = update_BTD[..., :D], update_BTD[..., D:]
        base_BTD = block_BTD
        if read is not None:
            base_BTD = read.x_BTD.residual if isinstance(read.x_BTD, Ways) else read.x_BTD
        value_BTD = self._normed(update_BTD if base_BTD is None else residual_add(base_BTD, update_BTD))
        key = self.key(params, source, value_BTD, previous_BTR, emitted_BTR) if self._keyed else None
        return Entry(value_BTD, key, update_BTD, residual_add(written.total_BTD, update_BTD))

    def route(self, params_m: Params, seen: Seen, written: Written, count: int, is_site: bool) -> Read:
        """What a consumer reads: `count` mixes of what it sees, put together as its site takes them."""
        router = self.config.router
        if count == 0:
            return Read(written.total_BTD, None)
        if seen.alone is True:
            one_BTCS = jnp.broadcast_to(seen.seen_S, (*written.embedding_BTD.shape[:2], count, seen.num_sources))
            trace = ReadTrace(jnp.zeros_like(one_BTCS), one_BTCS)
            mixed = [seen.newest_BTD] * (count if router.heads == 1 else 1)
        else:
            trace = self._weigh(params_m, seen, written, count)
            mixed = [self._mix(params_m, seen, trace.weights_BTCS, c) for c in range(count)]
            if "bias_CSD" in params_m:
                mean_BTCS = jnp.broadcast_to(jnp.mean(params_m["bias_CSD"], axis=-1)[None, None], trace.weights_BTCS.shape)
                trace = trace._replace(weights_BTCS=trace.weights_BTCS + mean_BTCS if router.query != "none" else mean_BTCS)
            mixed = [x_BTD.astype(written.embedding_BTD.dtype) for x_BTD in mixed]
        if router.ways == "kv":
            stream_BTD, half = written.total_BTD, count // 2
            return Read(Ways(stream_BTD, stream_BTD, jnp.stack(mixed[:half], 2), jnp.stack(mixed[half:], 2)), trace)
        if router.ways != "one" and is_site:
            query, key, value = mixed[:3]
            return Read(Ways(mixed[-1] if router.ways == "qkvr" else query, query, key, value), trace)
        x_BTD = jnp.concatenate(mixed, axis=-1)
        return Read(residual_add(written.total_BTD, x_BTD) if router.placement == "add" else x_BTD, trace)

    def query(self, params_m: Params, z_BTD: jax.Array) -> jax.Array:
        """What a mix looks for, ready for a dot product with a key: gain and scale are in it. [R] or [B, T, R]."""
        router = self.config.router
        query = QUERIES[router.query](params_m, z_BTD, router.key_eps)
        if router.key_gain:
            query = query * (params_m["key_gain_D"] if query.ndim == 1 else params_m["key_gain_D"][None, None])
        return query * query.shape[-1] ** -0.5

    def key(
        self,
        params: Params,
        source: Any,
        value_BTD: jax.Array,
        previous_BTR: jax.Array | None = None,
        emitted_BTR: jax.Array | None = None,
    ) -> jax.Array:
        """The key of a source that is the same for all its consumers: [R] or [B, T, R]."""
        router = self.config.router
        described = Source(source, value_BTD, previous_BTR, emitted_BTR, router.rank, router.key_eps)
        return KEYS[router.key](params, described)

    @property
    def _keyed(self) -> bool:
        return self.config.router.key in KEYS

    def _normed(self, value_BTD: jax.Array) -> jax.Array:
        return rms_norm(value_BTD, self.config.model.stream_eps) if self.config.router.source_norm else value_BTD

    def _weigh(self, params_m: Params, seen: Seen, written: Written, count: int) -> ReadTrace:
        """Scores and weights of all mixes, zero where the source is not seen; without the channels' own weights."""
        scores_BTCS = jnp.stack([seen.hide(row, 0) for row in self._scores(params_m, seen, written, count)], axis=2)
        rows = [MIXINGS[self.config.router.mixing].of(seen.hide(scores_BTCS[:, :, c], -jnp.inf)) for c in range(count)]
        rows = [seen.hide(jnp.where(seen.alone, 1, weights_BTS), 0) for weights_BTS in rows]
        return ReadTrace(scores_BTCS, jnp.stack(rows, axis=2))

    def _scores(self, params_m: Params, seen: Seen, written: Written, count: int) -> list[jax.Array]:
        """Of each mix, [B, T, S]."""
        router = self.config.router
        from_source = router.query in ("mlp", "input")
        z_BTD = seen.newest_BTD if from_source else QUERY_INPUTS[router.query_input](written)
        biases: Sequence[jax.Array | None] = list(params_m["bias_CS"]) if "bias_CS" in params_m else [None] * count
        if router.query == "mlp":
            scores_BTCS = mlp_scores(params_m, z_BTD, router.key_eps)
            rows = [scores_BTCS[:, :, c] for c in range(count)]
        else:
            rows = [self._dots(params_m, seen, z_BTD, c) for c in range(count)]
        return [row if bias_S is None else row + bias_S[None, None] for row, bias_S in zip(rows, biases, strict=True)]

    def _dots(self, params_m: Params, seen: Seen, z_BTD: jax.Array, c: int) -> jax.Array:
        router = self.config.router
        if router.query == "none":
            return jnp.zeros((*z_BTD.shape[:2], seen.num_sources))
        own = {name.replace("_C", "_", 1): value[c] for name, value in params_m.items() if "_C" in name}
        query = self.query(own, z_BTD)
        if "key_SR" in own:
            return table_dots(query, own["key_SR"], z_BTD.shape[:2])
        if router.heads > 1 and router.key in FULL_WIDTH:
            seen = seen.head(c, router.heads, True)
        return seen.dots(query)

    def _mix(self, params_m: Params, seen: Seen, weights_BTCS: jax.Array, c: int) -> jax.Array:
        if self.config.router.heads > 1:
            seen = seen.head(c, self.config.router.heads, False)
        if "bias_CSD" not in params_m:
            return seen.mix(weights_BTCS[:, :, c])
        channels_BTD = seen.mix_channels(params_m["bias_CSD"][c])
        return channels_BTD if self.config.router.query == "none" else channels_BTD + seen.mix(weights_BTCS[:, :, c])


def build(config: Config) -> Router:
    """Depth attention at the point that the axes of `config.router` name."""
    return DepthAttention(config)
