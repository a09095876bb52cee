"""The depth loop over buffers that are only appended to: every history router, scanned over layers, differentiated by JAX.

Site m reads slots up to m of the buffers and leaves one slot more in each. As slots are never changed, the buffers as they are
in the end serve every step of the backward pass, with what came later hidden; nothing else is kept. The scan in reverse takes
each site's function once more, at the final buffers, and adds what `jax.vjp` gives to a gradient of each buffer. So memory
grows with depth, and not with its square; time is that of passes over whole buffers. `history_scan` is faster, for the axes
that it has kernels for.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.model.depth import Site, Trace, visible
from depthroute.routing.buffer import put, take
from depthroute.routing.contract import Params, Read, ReadTrace
from depthroute.routing.depth_attention import DepthAttention, Entry, Written
from depthroute.routing.depth_parameters import is_shared, split
from depthroute.routing.history import BufferHistory
from depthroute.routing.topology import groups, mixes, num_sites, source_in, visible_slots

Tree = Any
Buffers = dict[str, jax.Array]


def scan_append(
    router: DepthAttention,
    params: Params,
    sites: Callable[[Tree], Sequence[Site]],
    layers: Tree,
    x_BTD: jax.Array,
    trace: bool = False,
) -> tuple[jax.Array, Trace | None]:
    """What the read-out sees, as `run_depth` computes it, and with `trace` how every consumer was routed.

    Args as those of `scan_depth`.
    """
    shared, own, last = _prepare(router, params)
    L = jax.tree.leaves(layers)[0].shape[0]
    per_layer = num_sites(router.config) // L
    own = {name: rows.reshape(L, per_layer, *rows.shape[1:]) for name, rows in own.items()}
    first, axes, sources = _slot(router.first(shared, x_BTD)), router.config.router, _sources(router)

    def step(i: int, layer: tuple[Tree, Params], shared: Params, buffers: Buffers, m: jax.Array) -> tuple[Buffers, Read]:
        params_m = {**shared, **{name: rows[i] for name, rows in layer[1].items()}}
        read, written, previous = _read(router, params_m, buffers, m, True)
        update = sites(layer[0])[i](read.x_BTD)
        block_BTD = None
        if axes.memory == "blocks":
            block_BTD = jnp.where(take(jnp.asarray(np.diff(sources, prepend=-1) == 0), m + 1), take(buffers["values"], m), 0)
        before = read if axes.sources == "states" else None
        return _slot(router.entry(shared, written, m + 1, update, before, block_BTD, previous)), read

    if not trace:
        buffers = _fill(step, per_layer, (layers, own), shared, first)
        return _read(router, {**shared, **last}, buffers, num_sites(router.config), False)[0].x_BTD, None
    buffers, traces = _append(step, per_layer, (layers, own), shared, first)
    read, _, _ = _read(router, {**shared, **last}, buffers, num_sites(router.config), False)
    return read.x_BTD, _trace(router, traces, read.trace)


def _append(
    step: Callable, per_layer: int, layers: Tree, shared: Params, first: Buffers
) -> tuple[Buffers, list[ReadTrace | None]]:
    """The buffers after all sites, and the traces of all, with leading axes [L, sites of a layer]."""
    L = jax.tree.leaves(layers)[0].shape[0]
    buffers = jax.tree.map(lambda x: put(jnp.zeros((L * per_layer + 1, *x.shape), x.dtype), 0, x), first)

    def layer(buffers: Buffers, xs: tuple[jax.Array, Tree]) -> tuple[Buffers, list[ReadTrace | None]]:
        index, own = xs
        traces = []
        for i in range(per_layer):
            m = index * per_layer + i
            slot, read = step(i, own, shared, buffers, m)
            buffers = {name: put(buffer, m + 1, slot[name]) for name, buffer in buffers.items()}
            traces.append(read.trace)
        return buffers, traces

    return jax.lax.scan(layer, buffers, (jnp.arange(L, dtype=jnp.int32), layers))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fill(step: Callable, per_layer: int, layers: Tree, shared: Params, first: Buffers) -> Buffers:
    return _append(step, per_layer, layers, shared, first)[0]


def _fill_forward(step: Callable, per_layer: int, layers: Tree, shared: Params, first: Buffers) -> tuple[Buffers, tuple]:
    buffers = _append(step, per_layer, layers, shared, first)[0]
    return buffers, (layers, shared, buffers)


def _fill_backward(step: Callable, per_layer: int, kept: tuple, dbuffers: Buffers) -> tuple[Tree, Params, Buffers]:
    layers, shared, buffers = kept

    def layer(state: tuple[Buffers, Params], xs: tuple[jax.Array, Tree]) -> tuple[tuple[Buffers, Params], Tree]:
        (dbuffers, dshared), (index, own) = state, xs
        down = jax.tree.map(jnp.zeros_like, own)
        for i in reversed(range(per_layer)):
            m = index * per_layer + i
            _, pull = jax.vjp(lambda *args, i=i, m=m: step(i, *args, m)[0], own, shared, buffers)
            more = pull({name: take(dbuffer, m + 1) for name, dbuffer in dbuffers.items()})
            down, dshared, dbuffers = jax.tree.map(jnp.add, (down, dshared, dbuffers), more)
        return (dbuffers, dshared), down

    L = jax.tree.leaves(layers)[0].shape[0]
    state = (dbuffers, jax.tree.map(jnp.zeros_like, shared))
    (dbuffers, dshared), dlayers = jax.lax.scan(layer, state, (jnp.arange(L, dtype=jnp.int32), layers), reverse=True)
    return dlayers, dshared, {name: dbuffer[0] for name, dbuffer in dbuffers.items()}


_fill.defvjp(_fill_forward, _fill_backward)


def _prepare(router: DepthAttention, params: Params) -> tuple[Params, Params, Params]:
    """Shared parameters by slot, those of sites with a leading axis over sites, and those of the read-out.

    Rows over what a consumer sees become rows over all slots, or over all groups; what is not there is zero.
    """
    config = router.config
    consumers, seen, M = split(config, params), groups(config), num_sites(config)
    shared = {name: value for name, value in params.items() if is_shared(name)}
    for name in ("key_SR", "key_mean_SD"):
        if name in shared:
            shared[name] = shared[name][_sources(router)]
    slots = _group_count(router)

    def pad(m: int, name: str, value: jax.Array) -> jax.Array:
        axes = name.rsplit("_", 1)[1]
        where = np.array([group[0] if slots == M + 1 else index for index, group in enumerate(seen[m])])
        for axis, letter in enumerate(axes):
            if letter in "SU":
                shape = (*value.shape[:axis], slots, *value.shape[axis + 1 :])
                value = jnp.zeros(shape, value.dtype).at[(slice(None),) * axis + (where,)].set(value)
        return value

    rows = [{name: pad(m, name, value) for name, value in own.items() if name not in shared} for m, own in enumerate(consumers)]
    like = {name: jnp.zeros_like(value) for row in rows[:M] for name, value in row.items()}
    own = {name: jnp.stack([{**like, **row}[name] for row in rows[:M]]) for name in like}
    if config.router.query == "none" and "bias_CSD" in own:
        alone = np.array([m for m in range(M) if len(seen[m]) == 1])  # by channels alone, the one weight they have is theirs
        own["bias_CSD"] = own["bias_CSD"].at[alone, :, alone].set(1)
    return shared, own, rows[M]


def _sources(router: DepthAttention) -> np.ndarray:
    return np.array([source_in(router.config, slot) for slot in range(num_sites(router.config) + 1)])


def _group_count(router: DepthAttention) -> int:
    """Width of a row over what a consumer may see: all slots, or the most groups that any consumer sees."""
    config = router.config
    return max(map(len, groups(config))) if config.router.memory == "ends" else num_sites(config) + 1


def _masks(router: DepthAttention) -> tuple[np.ndarray, np.ndarray | None]:
    """Which slots each consumer sees [M, S], and under `ends` which it sees as one [M, U, S]."""
    config = router.config
    seen = groups(config)
    visible_MS = np.zeros((len(seen), len(seen)), bool)
    for m, slots in enumerate(visible_slots(config)):
        visible_MS[m, list(slots)] = True
    if config.router.memory != "ends":
        return visible_MS, None
    sums_MUS = np.zeros((len(seen), _group_count(router), len(seen)), np.float32)
    for m, consumer in enumerate(seen):
        for u, group in enumerate(consumer):
            sums_MUS[m, u, list(group)] = 1
    return visible_MS, sums_MUS


def _read(router: DepthAttention, params_m: Params, buffers: Buffers, m: Any, is_site: bool) -> tuple[Read, Written, Any]:
    """What consumer m reads, what its query may be made from, and the key before its own."""
    config = router.config
    visible_MS, sums_MUS = _masks(router)
    values_SBTD, keys = buffers["values"], buffers.get("keys")
    alone_M = visible_MS.sum(axis=1) == 1
    nobody_chooses = alone_M[:-1].all() if is_site else alone_M[-1]  # then there are no parameters to choose by
    alone = True if nobody_chooses else take(jnp.asarray(alone_M), m)
    history = BufferHistory(
        values_SBTD=values_SBTD,
        keys=params_m.get("key_SR") if keys is None else keys,
        visible_S=take(jnp.asarray(visible_MS), m),
        sums_US=None if sums_MUS is None else take(jnp.asarray(sums_MUS), m),
        alone=alone,
        newest_BTD=take(values_SBTD, m),
    )
    totals_SBTD, updates_SBTD = buffers["totals"], buffers["updates"]
    written = Written(totals_SBTD[0], take(updates_SBTD, m), take(totals_SBTD, m), jnp.asarray(m, jnp.int32))
    count = mixes(config, 0 if is_site else num_sites(config))
    return router.route(params_m, history.seen(()), written, count, is_site), written, None if keys is None else take(keys, m)


def _slot(entry: Entry) -> Buffers:
    """What one slot holds in every buffer."""
    slot = {"values": entry.value_BTD, "updates": entry.newest_BTD, "totals": entry.total_BTD}
    return {**slot, "keys": entry.key} if entry.key is not None and entry.key.ndim == 3 else slot


def _trace(router: DepthAttention, traces: Sequence[ReadTrace | None], last: ReadTrace | None) -> Trace | None:
    """Rows of all consumers over sources; a group's score and weight stand at each of its slots."""
    if traces[0] is None:
        return None
    _, sums_MUS = _masks(router)
    sources = _sources(router)
    visible_MS = visible(router.config)

    def over_sources(name: str) -> jax.Array:
        sites = jnp.stack([getattr(trace, name) for trace in traces], axis=1)  # [L, sites, B, T, C, S or U]
        parts = list(sites.reshape(-1, *sites.shape[2:])) + ([getattr(last, name)] if last is not None else [])
        if sums_MUS is not None:
            parts = [jnp.einsum("BTCU,US->BTCS", part, sums_MUS[m]) for m, part in enumerate(parts)]
        rows_BTMS = jnp.concatenate(parts, axis=2)
        by_source = jnp.zeros((*rows_BTMS.shape[:3], visible_MS.shape[1]), rows_BTMS.dtype).at[..., sources].add(rows_BTMS)
        return jnp.where(visible_MS[None, None], by_source, 0)

    return Trace(over_sources("scores_BTCS"), over_sources("weights_BTCS"), jnp.asarray(visible_MS))
