"""The depth loop: sites read from the router and write to it, one after another; unrolled, or scanned over layers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.routing.contract import Params, ReadTrace, Router, State
from depthroute.routing.topology import groups, num_sites, num_sources, source_in, visible_sources

Tree = Any
Site = Callable[[Any], jax.Array]


class Trace(NamedTuple):
    """Routing of every consumer (the read-out last) over all sources; entries that `visible_MS` excludes are zero."""

    scores_BTMS: jax.Array
    weights_BTMS: jax.Array
    visible_MS: jax.Array


def run_depth(router: Router, params: Params, sites: Sequence[Site], x_BTD: jax.Array) -> tuple[jax.Array, Trace | None]:
    """Runs all sites, unrolled, and returns what the read-out sees and how every consumer was routed.

    Args: the router and its parameters, one function per site from what it sees to what it writes, and the embedding.
    The trace is None for routers without weights.
    """
    consumers = router.split(params)
    state = router.init_state(consumers[0], x_BTD)
    traces = []
    for m, site in enumerate(sites):
        read = router.read(consumers[m], state, m)
        traces.append(read.trace)
        state = router.write(consumers[m], state, m, site(read.x_BTD))
    read = router.readout(consumers[-1], state)
    traces.append(read.trace)
    return read.x_BTD, _stack(router.config, traces)


def scan_depth(
    router: Any, params: Params, sites: Callable[[Tree], Sequence[Site]], layers: Tree, x_BTD: jax.Array
) -> jax.Array:
    """What the read-out sees, by one scan over layers: for routers that have `stack`, whose state keeps its shape.

    Args: the router and its parameters, a layer's sites given its parameters, those of all layers stacked, and the embedding.
    """
    stacked = router.stack(params)
    L = jax.tree.leaves(layers)[0].shape[0]
    per_layer = num_sites(router.config) // L
    own = jax.tree.map(lambda rows: rows.reshape(L, per_layer, *rows.shape[1:]), dict(stacked.sites))

    def layer(state: State, xs: tuple[jax.Array, Tree, Params]) -> tuple[State, None]:
        index, weights, own = xs
        for i, site in enumerate(sites(weights)):
            params_m = {name: rows[i] for name, rows in own.items()}
            m = index * per_layer + i
            state = router.write(params_m, state, m, site(router.read(params_m, state, m).x_BTD))
        return state, None

    state, _ = jax.lax.scan(layer, router.init_state(stacked.readout, x_BTD), (jnp.arange(L), layers, own))
    return router.readout(stacked.readout, state).x_BTD


def _stack(config: Config, traces: Sequence[ReadTrace | None]) -> Trace | None:
    if not any(traces):
        return None
    visible_MS = visible(config)

    def place(x_BTCS: jax.Array, seen: Sequence[Sequence[int]]) -> jax.Array:
        sources = np.array([source_in(config, slot) for group in seen for slot in group])
        own = np.array([index for index, group in enumerate(seen) for _ in group])
        return jnp.zeros((*x_BTCS.shape[:3], visible_MS.shape[1]), x_BTCS.dtype).at[..., sources].set(x_BTCS[..., own])

    pairs = [(trace, seen) for trace, seen in zip(traces, groups(config), strict=True) if trace is not None]
    scores_BTMS = jnp.concatenate([place(trace.scores_BTCS, seen) for trace, seen in pairs], axis=2)
    weights_BTMS = jnp.concatenate([place(trace.weights_BTCS, seen) for trace, seen in pairs], axis=2)
    return Trace(scores_BTMS, weights_BTMS, jnp.asarray(visible_MS))


def visible(config: Config) -> np.ndarray:
    """Which sources each row of a trace is over: [M, S]."""
    rows = visible_sources(config)
    visible_MS = np.zeros((len(rows), num_sources(config)), bool)
    for row, sources in zip(visible_MS, rows, strict=True):
        row[list(sources)] = True
    return visible_MS
