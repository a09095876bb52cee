"""The depth loop over a buffered history: one scan over layers, with a backward pass by hand.

Automatic differentiation of such a loop would keep a copy of the growing history for every step. Here the only arrays of the
size of the history are the values that were written and what the consumers saw; backward, the gradient of what a consumer saw
takes the place of what it saw. Sites are computed again from what they saw, as `jax.checkpoint` would.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.model.depth import Site, Trace, visible
from depthroute.nn.norm import wide
from depthroute.routing.buffer import mix, put, take, take_now
from depthroute.routing.contract import Params, residual_add
from depthroute.routing.depth_attention import QUERY_INPUTS, DepthAttention, Written
from depthroute.routing.depth_weights import Row, Scorer, Table, fixed_row, prepare, weigher
from depthroute.routing.plan import Plan, make_plan

Tree = Any


class Forward(NamedTuple):
    """State of the scan; consumers and slots not reached yet are zero."""

    x_BTD: jax.Array  # what the next site sees, or the read-out
    values_SBTD: jax.Array
    seen_MBTD: jax.Array
    written: Written
    memory: Any  # the weigher's
    totals_MBTD: jax.Array | None  # of `written`, if queries are made from the mean


class Kept(NamedTuple):
    """What the backward pass needs of the forward pass, and the arguments of both."""

    layers: Tree
    weights: Tree
    x_BTD: jax.Array
    values_SBTD: jax.Array
    seen_MBTD: jax.Array
    memory: Any  # the weigher's
    totals_MBTD: jax.Array | None


class Backward(NamedTuple):
    """State of the scan in reverse; a gradient is named after what it is of."""

    seen_MBTD: jax.Array  # what consumers saw, and for those reached its gradient
    dx_BTD: jax.Array  # of what the consumer reached last saw
    mean_MBT: jax.Array  # <gradient, what was seen>, for those reached
    dgrown_BTD: jax.Array  # of a slot, through the next one that grew out of it
    dembedding_BTD: jax.Array  # through queries
    dtotal_BTD: jax.Array  # of the sum of everything written, through queries
    dweights: Tree


def scan_history(
    router: DepthAttention, params: Params, sites: Callable[[Tree], Sequence[Site]], layers: Tree, x_BTD: jax.Array
) -> jax.Array:
    """What the read-out sees, as `run_depth` computes it, in memory that grows with depth and not with its square.

    Args as those of `scan_depth`. Differentiable once, in reverse.
    """
    scan = HistoryScan(router, sites)
    return _run(scan, layers, scan.weigher.parameters(prepare(router, params)), x_BTD)


def trace_history(
    router: DepthAttention, params: Params, sites: Callable[[Tree], Sequence[Site]], layers: Tree, x_BTD: jax.Array
) -> tuple[jax.Array, Trace]:
    """The same, and how every consumer was routed. Not differentiable."""
    scan, plan, prepared = HistoryScan(router, sites), make_plan(router.config), prepare(router, params)
    end, rows = scan.forward(layers, scan.weigher.parameters(prepared), x_BTD, trace=True)
    if isinstance(scan.weigher, Table):
        row = fixed_row(router, prepared)
        table = jax.tree.map(lambda part: jnp.broadcast_to(part[1:], (*x_BTD.shape[:2], *part[1:].shape)), row)
    else:
        rows = jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), rows)
        table = jax.tree.map(lambda part: jnp.moveaxis(part, (0, 1), (2, 3)), rows)
    readers_MS = plan.visible_MS & ~plan.alone_M[:, None]

    def by_source(part_BTMS: jax.Array, first: float, where_MS: np.ndarray) -> jax.Array:
        first_BTMS = jnp.zeros_like(part_BTMS[:, :, :1]).at[..., 0].set(first)
        part_BTMS = jnp.where(where_MS[None, None], jnp.concatenate([first_BTMS, part_BTMS], axis=2), 0)
        return jnp.zeros((*part_BTMS.shape[:3], 1 + max(plan.source_S)), part_BTMS.dtype).at[..., plan.source_S].add(part_BTMS)

    scores_BTMS, weights_BTMS = by_source(table.scores, 0, readers_MS), by_source(table.weights, 1, plan.visible_MS)
    return end.x_BTD, Trace(scores_BTMS, weights_BTMS, jnp.asarray(visible(router.config)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(scan: "HistoryScan", layers: Tree, weights: Tree, x_BTD: jax.Array) -> jax.Array:
    return scan.forward(layers, weights, x_BTD)[0].x_BTD


def _run_forward(scan: "HistoryScan", layers: Tree, weights: Tree, x_BTD: jax.Array) -> tuple[jax.Array, Kept]:
    end, _ = scan.forward(layers, weights, x_BTD)
    memory = None if end.memory is None else end.memory._replace(window_SGBT=None)
    return end.x_BTD, Kept(layers, weights, end.x_BTD, end.values_SBTD, end.seen_MBTD, memory, end.totals_MBTD)


def _run_backward(scan: "HistoryScan", kept: Kept, dx_BTD: jax.Array) -> tuple[Tree, Tree, jax.Array]:
    return scan.backward(kept, dx_BTD)


_run.defvjp(_run_forward, _run_backward)


@dataclass(frozen=True)
class HistoryScan:
    """The loop of one router over `sites(parameters of a layer)`, in both directions.

    Site m sees what consumer m read and writes slot m + 1; then consumer m + 1 reads. So consumer 0 sees the embedding and
    the last one is the read-out.
    """

    router: DepthAttention
    sites: Callable[[Tree], Sequence[Site]]

    @property
    def plan(self) -> Plan:
        """Who sees what."""
        return make_plan(self.router.config)

    @property
    def weigher(self) -> Table | Scorer:
        """What turns scores into weights, and back."""
        return weigher(self.router)

    @property
    def _from_mean(self) -> bool:
        axes = self.router.config.router
        return axes.query == "dynamic" and axes.query_input == "mean"

    @property
    def _query_input(self) -> Callable[[Written], jax.Array]:
        return QUERY_INPUTS[self.router.config.router.query_input]

    # --- forward -----------------------------------------------------------------------------------------------------

    def forward(self, layers: Tree, weights: Tree, x_BTD: jax.Array, trace: bool = False) -> tuple[Forward, Row | None]:
        """All sites and reads; `weights` are the weigher's parameters.

        With `trace`, also the rows of all consumers but the first, with leading axes [L, sites of a layer].
        """
        buffer_MBTD = put(jnp.zeros((len(self.plan.alone_M), *x_BTD.shape), x_BTD.dtype), 0, x_BTD)
        state = Forward(
            x_BTD=x_BTD,
            values_SBTD=buffer_MBTD,
            seen_MBTD=buffer_MBTD,
            written=Written(x_BTD, x_BTD, x_BTD, jnp.zeros((), jnp.int32)),
            memory=self.weigher.start(weights, buffer_MBTD),
            totals_MBTD=buffer_MBTD if self._from_mean else None,
        )

        def layer(state: Forward, xs: tuple[jax.Array, Tree]) -> tuple[Forward, Row | None]:
            index, params = xs
            sites, rows = self.sites(params), []
            for i, site in enumerate(sites):
                state, row = self._site(state, site, weights, index * len(sites) + i)
                rows.append(row)
            return state, jax.tree.map(lambda *parts: jnp.stack(parts), *rows) if trace else None

        L = jax.tree.leaves(layers)[0].shape[0]
        return jax.lax.scan(layer, state, (jnp.arange(L, dtype=jnp.int32), layers))

    def _site(self, state: Forward, site: Site, weights: Tree, m: jax.Array) -> tuple[Forward, Row]:
        x_BTD, slot = state.x_BTD, m + 1
        update_BTD = site(x_BTD)
        value_BTD = self._value(state.values_SBTD, x_BTD, update_BTD, m)
        values_SBTD = put(state.values_SBTD, slot, value_BTD)
        total_BTD = residual_add(state.written.total_BTD, update_BTD)
        written = Written(state.written.embedding_BTD, update_BTD, total_BTD, slot)
        memory: Any = self.weigher.write(weights, state.memory, values_SBTD, slot, value_BTD)
        row, memory = self.weigher.read(weights, memory, values_SBTD, slot, self._query_input(written))
        totals_MBTD = state.totals_MBTD
        if totals_MBTD is not None:
            totals_MBTD = put(totals_MBTD, slot, total_BTD)
        seen_BTD = mix(values_SBTD, row.weights, *self.plan.reads.of(slot)).astype(x_BTD.dtype)
        return Forward(seen_BTD, values_SBTD, put(state.seen_MBTD, slot, seen_BTD), written, memory, totals_MBTD), row

    def _value(self, values_SBTD: jax.Array, x_BTD: jax.Array, update_BTD: jax.Array, m: jax.Array) -> jax.Array:
        """What slot m + 1 holds: the output of site m, the state after it, or its block so far."""
        if self.router.config.router.sources == "states":
            return residual_add(x_BTD, update_BTD)
        if self.router.config.router.memory == "blocks":
            grown_BTD = residual_add(take(values_SBTD, m), update_BTD)
            return jnp.where(take(jnp.asarray(self.plan.grows_S), m + 1), grown_BTD, update_BTD)
        return update_BTD

    # --- backward ----------------------------------------------------------------------------------------------------

    def backward(self, kept: Kept, dx_BTD: jax.Array) -> tuple[Tree, Tree, jax.Array]:
        """Gradients of layers, weights and embedding, given that of what the read-out saw."""
        zeros_BTD, last = jnp.zeros_like(dx_BTD), len(self.plan.alone_M) - 1
        mean_MBT = jnp.zeros(kept.seen_MBTD.shape[:-1], wide(dx_BTD).dtype)
        dweights = jax.tree.map(jnp.zeros_like, kept.weights)
        state = Backward(kept.seen_MBTD, dx_BTD, mean_MBT, zeros_BTD, zeros_BTD, zeros_BTD, dweights)
        state = self._put_gradient(state, last, kept.x_BTD, dx_BTD)

        def layer(state: Backward, xs: tuple[jax.Array, Tree]) -> tuple[Backward, Tree]:
            index, params = xs
            count, dparams = len(self.sites(params)), jax.tree.map(jnp.zeros_like, params)
            for i in reversed(range(count)):
                state, more = self._site_gradient(state, kept, partial(self._call, i), params, index * count + i)
                dparams = jax.tree.map(jnp.add, dparams, more)
            return state, dparams

        L = jax.tree.leaves(kept.layers)[0].shape[0]
        state, dlayers = jax.lax.scan(layer, state, (jnp.arange(L, dtype=jnp.int32), kept.layers), reverse=True)
        state, dvalue_BTD = self._slot_gradient(state, kept, 0)
        dweights = self.weigher.finish(kept.values_SBTD, state.seen_MBTD, state.dweights)
        return dlayers, dweights, dvalue_BTD + state.dembedding_BTD + state.dtotal_BTD

    def _call(self, i: int, params: Tree, x_BTD: jax.Array) -> jax.Array:
        return self.sites(params)[i](x_BTD)

    def _site_gradient(self, state: Backward, kept: Kept, site: Callable, params: Tree, m: jax.Array) -> tuple[Backward, Tree]:
        """Consumer m + 1, slot m + 1 and site m, in reverse."""
        axes, slot = self.router.config.router, m + 1
        x_BTD = take_now(state.seen_MBTD, m)
        update_BTD, pull_site = jax.vjp(site, params, x_BTD)
        state, dvalue_BTD = self._slot_gradient(state, kept, slot)
        dupdate_BTD = dvalue_BTD
        if self.weigher.dynamic_query:
            if axes.sources == "outputs" and axes.memory != "blocks":
                update_BTD = take(kept.values_SBTD, slot)  # the same, without computing it again
            state, dnewest_BTD = self._query_gradient(state, kept, update_BTD, slot)
            dupdate_BTD = dvalue_BTD + dnewest_BTD + state.dtotal_BTD
        dparams, dx_BTD = pull_site(dupdate_BTD)
        if axes.sources == "states":
            dx_BTD = dx_BTD + dvalue_BTD
        return self._put_gradient(state, m, x_BTD, dx_BTD), dparams

    def _put_gradient(self, state: Backward, m: int | jax.Array, x_BTD: jax.Array, dx_BTD: jax.Array) -> Backward:
        """Consumer m is reached: `dx_BTD` takes the place of what it saw."""
        mean_MBT = put(state.mean_MBT, m, jnp.sum(wide(dx_BTD) * wide(x_BTD), axis=-1))
        return state._replace(seen_MBTD=put(state.seen_MBTD, m, dx_BTD), dx_BTD=dx_BTD, mean_MBT=mean_MBT)

    def _slot_gradient(self, state: Backward, kept: Kept, slot: int | jax.Array) -> tuple[Backward, jax.Array]:
        """The gradient of the value in `slot`, all of whose readers have been reached."""
        dvalue_BTD, dweights = self.weigher.column_gradient(
            kept.weights, kept.memory, kept.values_SBTD, slot, state.seen_MBTD, state.mean_MBT, state.dweights
        )
        state = state._replace(dweights=dweights)
        dvalue_BTD = dvalue_BTD.astype(state.dgrown_BTD.dtype) + state.dgrown_BTD
        if self.router.config.router.memory == "blocks":
            grows = take(jnp.asarray(self.plan.grows_S), slot)
            state = state._replace(dgrown_BTD=jnp.where(grows, dvalue_BTD, jnp.zeros_like(dvalue_BTD)))
        return state, dvalue_BTD

    def _query_gradient(self, state: Backward, kept: Kept, newest_BTD: jax.Array, m: jax.Array) -> tuple[Backward, jax.Array]:
        """Through the dynamic query of consumer m: returns the gradient of what was written last."""
        total_BTD = newest_BTD if kept.totals_MBTD is None else take(kept.totals_MBTD, m)
        inputs = (kept.values_SBTD[0], newest_BTD, total_BTD)
        z_BTD, pull_input = jax.vjp(
            lambda v0_BTD, u_BTD, sum_BTD: self._query_input(Written(v0_BTD, u_BTD, sum_BTD, m)), *inputs
        )
        assert isinstance(self.weigher, Scorer)
        dz_BTD, dweights = self.weigher.row_gradient(
            kept.weights, kept.memory, kept.values_SBTD, m, z_BTD, state.dx_BTD, state.dweights
        )
        dembedding_BTD, dnewest_BTD, dtotal_BTD = pull_input(dz_BTD)
        state = state._replace(
            dembedding_BTD=state.dembedding_BTD + dembedding_BTD, dtotal_BTD=state.dtotal_BTD + dtotal_BTD, dweights=dweights
        )
        return state, dnewest_BTD
