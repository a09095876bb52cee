"""Weights of depth attention over the slots of a buffer, and their gradients by hand.

`Table`: nothing in the scores depends on the token, so all weights are one table, made beforehand. `Scorer`: a query, a key or
both depend on the token. Forward, consumer m makes its row of scores. Backward, nothing of size (consumer, slot) is kept. A
row is made again for the gradient of a dynamic query, which its site needs at once. And when a slot is reached, all consumers
that read it have been, so its column gives the gradients of its value, of its key and of static queries:

    row m:     ds_{m,i} = pull(a_{m,i}, <dx_m, v_i>),   dq_m = sum_i ds_{m,i} k_i
    column i:  dv_i = sum_m a_{m,i} dx_m,               dk_i = sum_m ds_{m,i} q_m

Neither needs a mask: where a consumer does not see a slot, its weight and the gradient of that are zero, and so is the score's;
and a consumer that sees one slot only has a query of zero.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.nn.norm import inverse_rms, wide
from depthroute.routing.buffer import all_dots, dots, mix, mix_and_dots, put, table_dots, table_mix, take
from depthroute.routing.contract import Params
from depthroute.routing.counts_history import FULL_WIDTH, key_width
from depthroute.routing.depth_attention import DepthAttention
from depthroute.routing.depth_parameters import is_shared
from depthroute.routing.mixing import MIXINGS, Mixing, Normaliser
from depthroute.routing.plan import Plan, make_plan

# Keys that have a buffer; a full-width key is its value times a number.
STORED = ("dynamic_projected", "dynamic_sliced", "hybrid", "centred", "stop_gradient")
WITHOUT_KERNELS = {
    "query": ("input", "mlp"),
    "key": ("emitted", "recurrent"),
    "bias": ("per_channel",),
    "mixing": ("relu",),
    "source_norm": (True,),
    "memory": ("ends",),
    "ways": ("kv", "qkv", "qkvr"),
    "placement": ("add",),
}


def has_kernels(config: Config) -> bool:
    """Whether the scan with a backward pass by hand covers the axes of `config`; `append_scan` covers all."""
    router = config.router
    return router.heads == 1 and not any(getattr(router, axis) in values for axis, values in WITHOUT_KERNELS.items())


class ScoreParams(NamedTuple):
    """Router parameters with a row for every consumer and every slot, zero where there is no choice; None if not in use.

    `query` is the table [M, R] of static queries, gain and scale included, or the rows that dynamic ones are made from.
    """

    query: Any
    key_MSR: jax.Array | None
    bias_MS: jax.Array | None
    shared: Params


def prepare(router: DepthAttention, params: Params) -> ScoreParams:
    """The parameters of `router` laid out for the buffer; differentiated by JAX."""
    plan = make_plan(router.config)
    M = len(plan.source_S)
    choosers = np.flatnonzero(~plan.alone_M)
    pairs = np.nonzero(plan.visible_MS & ~plan.alone_M[:, None])

    def spread(name: str, where: Any, shape: tuple[int, ...]) -> jax.Array | None:
        if name not in params:
            return None
        return jnp.zeros(shape + params[name].shape[1:], params[name].dtype).at[where].set(params[name])

    names = {"query_MR": "query_R", "query_map_MDR": "query_map_DR", "key_gain_MD": "key_gain_D"}
    rows: Any = {own: spread(name, choosers, (M,)) for name, own in names.items() if name in params}
    if router.config.router.query == "static":
        rows = jax.vmap(lambda row: router.query(row, jnp.zeros((1, 1, 1))))(rows)
    shared = {name: value for name, value in params.items() if is_shared(name)}
    for name in shared.keys() & {"key_SR", "key_mean_SD"}:
        shared[name] = shared[name][plan.source_S]
    return ScoreParams(rows, spread("key_PR", pairs, (M, M)), spread("bias_P", pairs, (M, M)), shared)


class Row(NamedTuple):
    """Scores and weights of a consumer over all slots, [S, B, T]; where they are fixed [S], or of all consumers [M, S]."""

    scores: jax.Array
    weights: jax.Array


def fixed_row(router: DepthAttention, params: ScoreParams) -> Row:
    """Scores and weights of every consumer on every slot where they are the same for all tokens: [M, S]."""
    plan = make_plan(router.config)
    scores_MS = jnp.zeros(plan.visible_MS.shape)
    if params.key_MSR is not None:
        scores_MS = jnp.einsum("MR,MSR->MS", params.query, params.key_MSR)
    elif "key_SR" in params.shared:
        scores_MS = jnp.einsum("MR,SR->MS", params.query, params.shared["key_SR"])
    if params.bias_MS is not None:
        scores_MS += params.bias_MS
    weights_MS = MIXINGS[router.config.router.mixing].of(jnp.where(plan.visible_MS, scores_MS, -jnp.inf))
    return Row(scores_MS, jnp.where(plan.visible_MS, jnp.where(plan.alone_M[:, None], 1, weights_MS), 0))


class Memory(NamedTuple):
    """What a scorer keeps beside the values; None where the axes need none.

    Keys are [S, B, T, R], or for full-width ones the inverse RMS of the values [S, B, T]. The window has scores of static
    queries that are near: they are made in groups of G consumers, against all slots in one pass when a group begins, and then
    against each slot as it is written.
    """

    keys: jax.Array | None
    window_SGBT: jax.Array | None
    normaliser: Normaliser  # of consumers reached, [M, B, T]
    query_MBTR: jax.Array | None  # dynamic queries of consumers reached


@dataclass(frozen=True)
class Table:
    """Weights that are the same for all tokens, as one array [M, S]; same methods as `Scorer`, without a memory."""

    router: DepthAttention
    dynamic_query = False

    def parameters(self, prepared: ScoreParams) -> jax.Array:
        """All weights."""
        return fixed_row(self.router, prepared).weights

    def start(self, weights_MS: jax.Array, values_SBTD: jax.Array) -> None:
        """Nothing to keep."""

    def write(self, weights_MS: jax.Array, memory: None, values_SBTD: jax.Array, slot: Any, value_BTD: jax.Array) -> None:
        """Nothing to keep."""

    def read(self, weights_MS: jax.Array, memory: None, values_SBTD: jax.Array, m: Any, z_BTD: jax.Array) -> tuple[Row, None]:
        """The row of consumer m; its scores are those of `fixed_row`."""
        weights_S = take(weights_MS, m)
        return Row(weights_S, weights_S), None

    def column_gradient(
        self,
        weights_MS: jax.Array,
        memory: None,
        values_SBTD: jax.Array,
        slot: int | jax.Array,
        dx_MBTD: jax.Array,
        mean_MBT: jax.Array,
        grads_MS: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """The gradient of the value in `slot`; those of the weights wait for `finish`."""
        weights_M = jax.lax.dynamic_index_in_dim(weights_MS, slot, 1, keepdims=False)
        return mix(dx_MBTD, weights_M, *make_plan(self.router.config).readers.of(slot)), grads_MS

    def finish(self, values_SBTD: jax.Array, dx_MBTD: jax.Array, grads_MS: jax.Array) -> jax.Array:
        """The gradient of all weights, when all of both buffers is there: one matrix product."""
        return all_dots(dx_MBTD, values_SBTD)


@dataclass(frozen=True)
class Scorer:
    """Scores and weights where a query, a key or both depend on the token."""

    router: DepthAttention

    def parameters(self, prepared: ScoreParams) -> ScoreParams:
        """As they are."""
        return prepared

    @property
    def plan(self) -> Plan:
        """Who sees what."""
        return make_plan(self.router.config)

    @property
    def dynamic_query(self) -> bool:
        """Whether consumers make their query from the token."""
        return self.router.config.router.query == "dynamic"

    @property
    def dynamic_key(self) -> bool:
        """Whether slots make their key from the token."""
        return self._stored or self.router.config.router.key in FULL_WIDTH

    @property
    def _stored(self) -> bool:
        return self.router.config.router.key in STORED

    @property
    def _mixing(self) -> Mixing:
        return MIXINGS[self.router.config.router.mixing]

    @property
    def _group(self) -> int:
        return isqrt(len(self.plan.source_S))

    # --- forward -----------------------------------------------------------------------------------------------------

    def start(self, params: ScoreParams, values_SBTD: jax.Array) -> Memory:
        """The memory when slot 0 has been written."""
        S, B, T, _ = values_SBTD.shape
        R = key_width(self.router.config)

        def zeros(*shape: int) -> jax.Array:
            return jnp.zeros(shape, wide(values_SBTD[0]).dtype)

        memory = Memory(
            keys=(zeros(S, B, T, R) if self._stored else zeros(S, B, T)) if self.dynamic_key else None,
            window_SGBT=None if self.dynamic_query else zeros(S, self._group, B, T),
            normaliser=Normaliser(zeros(S, B, T), zeros(S, B, T)),
            query_MBTR=zeros(S, B, T, R) if self.dynamic_query else None,
        )
        return self.write(params, memory, values_SBTD, 0, values_SBTD[0])

    def write(
        self, params: ScoreParams, memory: Memory, values_SBTD: jax.Array, slot: int | jax.Array, value_BTD: jax.Array
    ) -> Memory:
        """The memory after `value_BTD` was written to `slot`, which makes it the turn of consumer `slot`."""
        if memory.keys is None:
            return memory
        if self._stored:
            key = self.router.key(params.shared, slot, value_BTD)
        elif self.router.config.router.key == "dynamic_full":
            key = inverse_rms(value_BTD, self.router.config.router.key_eps)[..., 0]
        else:
            key = jnp.ones_like(memory.keys[0])
        keys = put(memory.keys, slot, key)
        if memory.window_SGBT is None:
            return memory._replace(keys=keys)
        first = slot // self._group * self._group
        query_MR = jnp.pad(params.query, ((0, -len(params.query) % self._group), (0, 0)))
        query_GR = jax.lax.dynamic_slice_in_dim(query_MR, first, self._group)

        def score(i: jax.Array, window_SGBT: jax.Array) -> jax.Array:
            key_BTR = take(keys, i) if self._stored else wide(take(values_SBTD, i)) * take(keys, i)[..., None]
            return put(window_SGBT, i, table_dots(query_GR, key_BTR))

        begin = jnp.where(slot == first, 0, slot)
        return memory._replace(keys=keys, window_SGBT=jax.lax.fori_loop(begin, slot + 1, score, memory.window_SGBT))

    def read(
        self, params: ScoreParams, memory: Memory, values_SBTD: jax.Array, m: jax.Array, z_BTD: jax.Array
    ) -> tuple[Row, Memory]:
        """The routing of consumer m, whose query is made from `z_BTD` if it is dynamic."""
        query_BTR = None
        if memory.query_MBTR is not None:
            query_BTR = self.router.query(self._query_params(params, m), z_BTD)
            memory = memory._replace(query_MBTR=put(memory.query_MBTR, m, query_BTR))
        row, normaliser = self._row(self._scores(params, memory, values_SBTD, m, query_BTR), m)
        parts = (put(all_MBT, m, one_1BT[0]) for all_MBT, one_1BT in zip(memory.normaliser, normaliser, strict=True))
        return row, memory._replace(normaliser=Normaliser(*parts))

    def _scores(
        self, params: ScoreParams, memory: Memory, values_SBTD: jax.Array, m: jax.Array, query_BTR: jax.Array | None
    ) -> jax.Array:
        if query_BTR is None:
            assert memory.window_SGBT is not None
            scores_SBT = jax.lax.dynamic_index_in_dim(memory.window_SGBT, m % self._group, 1, keepdims=False)
        elif memory.keys is None:
            scores_SBT = table_dots(self._static_keys(params, m), query_BTR)
        elif self._stored:
            scores_SBT = dots(memory.keys, query_BTR, *self.plan.reads.of(m))
        else:
            scores_SBT = dots(values_SBTD, query_BTR, *self.plan.reads.of(m)) * memory.keys
        return scores_SBT if params.bias_MS is None else scores_SBT + take(params.bias_MS, m)[:, None, None]

    def _row(self, scores_SBT: jax.Array, m: jax.Array) -> tuple[Row, Normaliser]:
        visible_S11 = take(jnp.asarray(self.plan.visible_MS), m)[:, None, None]
        normaliser = self._mixing.normalise(jnp.where(visible_S11, scores_SBT, -jnp.inf), 0)
        weights_SBT = jnp.where(take(jnp.asarray(self.plan.alone_M), m), 1, self._mixing.weigh(scores_SBT, normaliser))
        return Row(scores_SBT, jnp.where(visible_S11, weights_SBT, 0)), normaliser

    # --- backward ----------------------------------------------------------------------------------------------------

    def row_gradient(
        self,
        params: ScoreParams,
        memory: Memory,
        values_SBTD: jax.Array,
        m: jax.Array,
        z_BTD: jax.Array,
        dx_BTD: jax.Array,
        grads: ScoreParams,
    ) -> tuple[jax.Array, ScoreParams]:
        """The gradient of what consumer m made its query from, given that of what it saw; adds those of parameters."""
        assert memory.query_MBTR is not None
        query_BTR = take(memory.query_MBTR, m)
        _, pull_query = jax.vjp(self.router.query, self._query_params(params, m), z_BTD)
        row, _ = self._row(self._scores(params, memory, values_SBTD, m, query_BTR), m)
        dweights_SBT = dots(values_SBTD, dx_BTD, *self.plan.reads.of(m))
        mean_1BT = jnp.sum(row.weights * dweights_SBT, axis=0, keepdims=True)
        dscores_SBT = self._mixing.pull(row.weights, dweights_SBT, mean_1BT)
        if memory.keys is None:
            dquery_BTR = table_mix(self._static_keys(params, m), dscores_SBT)
            dkey_SR = jnp.einsum("SBT,BTR->SR", dscores_SBT, query_BTR)
            if grads.key_MSR is None:
                grads = grads._replace(shared={**grads.shared, "key_SR": grads.shared["key_SR"] + dkey_SR})
            else:
                grads = grads._replace(key_MSR=put(grads.key_MSR, m, dkey_SR))
        elif self._stored:
            dquery_BTR = mix(memory.keys, dscores_SBT, *self.plan.reads.of(m))
        else:
            dquery_BTR = mix(values_SBTD, dscores_SBT * memory.keys, *self.plan.reads.of(m))
        if grads.bias_MS is not None:
            grads = grads._replace(bias_MS=put(grads.bias_MS, m, jnp.sum(dscores_SBT, axis=(1, 2))))
        dparams, dz_BTD = pull_query(dquery_BTR)
        return dz_BTD, grads._replace(query={name: put(grads.query[name], m, dparams[name]) for name in grads.query})

    def column_gradient(
        self,
        params: ScoreParams,
        memory: Memory,
        values_SBTD: jax.Array,
        slot: int | jax.Array,
        dx_MBTD: jax.Array,
        mean_MBT: jax.Array,
        grads: ScoreParams,
    ) -> tuple[jax.Array, ScoreParams]:
        """The gradient of the value in `slot`, given those of what its readers saw; adds those of parameters.

        `mean_MBT` is <dx_m, x_m>, which is the sum of weights times their gradients.
        """
        readers, value_BTD = self.plan.readers.of(slot), take(values_SBTD, slot)
        visible_M11 = jax.lax.dynamic_index_in_dim(jnp.asarray(self.plan.visible_MS), slot, 1)[..., None]
        alone_M11 = jnp.asarray(self.plan.alone_M)[:, None, None]
        if self.dynamic_key:
            key, pull_key = jax.vjp(
                lambda shared, value_BTD: self.router.key(shared, slot, value_BTD), params.shared, value_BTD
            )
        else:
            key = jax.lax.dynamic_index_in_dim(self._static_keys(params, None), slot, -2, keepdims=False)
        weights_MBT = self._mixing.weigh(self._column(params, memory, key, slot), memory.normaliser)
        weights_MBT = jnp.where(visible_M11, jnp.where(alone_M11, 1, weights_MBT), 0)
        if not self.dynamic_key:
            return mix(dx_MBTD, weights_MBT, *readers), grads
        dvalue_BTD, dweights_MBT = mix_and_dots(dx_MBTD, weights_MBT, value_BTD, *readers)
        dscores_MBT = self._mixing.pull(weights_MBT, dweights_MBT, mean_MBT)
        if memory.query_MBTR is not None:
            dkey_BTR = mix(memory.query_MBTR, dscores_MBT, *readers)
        else:
            dkey_BTR = table_mix(params.query, dscores_MBT)
            grads = grads._replace(query=grads.query + jnp.einsum("MBT,BTR->MR", dscores_MBT, key))
            if grads.bias_MS is not None:
                dbias_M = jnp.sum(dscores_MBT, axis=(1, 2))
                grads = grads._replace(bias_MS=jax.lax.dynamic_update_index_in_dim(grads.bias_MS, dbias_M, slot, 1))
        dshared, through_key_BTD = pull_key(dkey_BTR)
        return dvalue_BTD + through_key_BTD, grads._replace(shared=jax.tree.map(jnp.add, grads.shared, dshared))

    def finish(self, values_SBTD: jax.Array, dx_MBTD: jax.Array, grads: ScoreParams) -> ScoreParams:
        """Nothing is left to add."""
        return grads

    def _column(self, params: ScoreParams, memory: Memory, key: jax.Array, slot: int | jax.Array) -> jax.Array:
        """Scores of all readers of a slot with this key: [M, B, T]."""
        if memory.query_MBTR is None:
            scores_MBT = table_dots(params.query, key)
        elif self.dynamic_key:
            scores_MBT = dots(memory.query_MBTR, key, *self.plan.readers.of(slot))
        else:
            scores_MBT = jnp.einsum("MBTR,R->MBT" if key.ndim == 1 else "MBTR,MR->MBT", memory.query_MBTR, key)
        if params.bias_MS is not None:
            scores_MBT += jax.lax.dynamic_index_in_dim(params.bias_MS, slot, 1)[..., None]
        return scores_MBT

    # --- both --------------------------------------------------------------------------------------------------------

    def _query_params(self, params: ScoreParams, m: jax.Array) -> Params:
        return {name: take(rows, m) for name, rows in params.query.items()}

    def _static_keys(self, params: ScoreParams, m: jax.Array | None) -> jax.Array:
        """Of all slots: [S, R], as consumer m sees them; for all consumers [M, S, R] where they differ and m is None."""
        if params.key_MSR is None:
            return params.shared["key_SR"]
        return params.key_MSR if m is None else take(params.key_MSR, m)


def weigher(router: DepthAttention) -> Table | Scorer:
    """The one that the axes of `router` need."""
    axes = router.config.router
    scored = axes.query == "dynamic" or (axes.query == "static" and axes.key in (*STORED, *FULL_WIDTH))
    return Scorer(router) if scored else Table(router)
