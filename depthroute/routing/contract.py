"""What a router is.

A router holds no arrays. Its parameters live in a thin Linen module; `split` hands them out, one entry per consumer, and the
four pure functions use them. The depth loop calls, for sites m = 0, 1, ...::

    state = router.init_state(params[0], x0)
    x_m   = router.read(params[m], state, m)          what site m sees, before its own norm
    state = router.write(params[m], state, m, u_m)    u_m is what the site computed
    x     = router.readout(params[M], state)          before the final norm

The loop may be unrolled, or scanned over layers; a router whose state keeps its shape from site to site works in both, with m
a Python int or a traced one, and hands out its parameters stacked for the scan by `stack`.

A trace is returned beside what is read, never by side effect; a router without weights returns None.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax

from depthroute.config import Config

Params = Mapping[str, jax.Array]
State = Any


class ReadTrace(NamedTuple):
    """Routing of one consumer: float32 scores before mixing and the weights after it, of each mix over what it sees."""

    scores_BTCS: jax.Array
    weights_BTCS: jax.Array


class Ways(NamedTuple):
    """What a layer sees where its parts see different mixes.

    Attention takes its keys and values from `key` and `value`: as its query [B, T, D], or one mix for each head [B, T, G, D].
    """

    residual: jax.Array
    query: jax.Array
    key: jax.Array
    value: jax.Array


class Read(NamedTuple):
    """What a consumer sees, and how it was routed."""

    x_BTD: Any  # an array, or `Ways`
    trace: ReadTrace | None


class Stacked(NamedTuple):
    """A router's parameters with a leading axis over sites, and those of the read-out."""

    sites: Params
    readout: Params


def unstack(stacked: Stacked, sites: int) -> list[Params]:
    """One dictionary per consumer. A split, since its transpose is a concatenation; slices would each add up a whole stack."""
    rows = {name: jax.lax.split(value, (1,) * sites, axis=0) for name, value in stacked.sites.items()}
    return [*({name: row[m][0] for name, row in rows.items()} for m in range(sites)), stacked.readout]


class Router(Protocol):
    """The contract; tests/routing/test_contract.py holds every preset to it."""

    @property
    def config(self) -> Config:
        """What it was built from."""

    @property
    def prenorm(self) -> bool:
        """Whether sublayers and the read-out normalise what they read."""

    def parameters(self) -> nn.Module:
        """The Linen module that owns the parameters; calling it returns them as a flat dictionary."""

    def split(self, params: Params) -> Sequence[Params]:
        """One dictionary per consumer: its own slices and whatever is shared."""

    def init_state(self, params_0: Params, x_BTD: jax.Array) -> State:
        """The memory when only the embedding has been written."""

    def read(self, params_m: Params, state: State, m: int) -> Read:
        """What site m sees."""

    def write(self, params_m: Params, state: State, m: int, update_BTD: jax.Array) -> State:
        """The memory after site m wrote `update_BTD`."""

    def readout(self, params_M: Params, state: State) -> Read:
        """What the final norm and the unembedding see."""


def residual_add(x_BTD: jax.Array, update_BTD: jax.Array) -> jax.Array:
    """x + update, which must have exactly equal shapes: broadcasting here is always a mistake. Raises ValueError."""
    check_shape(update_BTD, x_BTD.shape)
    return x_BTD + update_BTD


def check_shape(update_BTD: jax.Array, expected: tuple[int, ...]) -> None:
    """Refuses an update of another shape than that of what it is added to. Raises ValueError."""
    if update_BTD.shape != expected:
        raise ValueError(f"a residual add needs equal shapes, found {expected} and {update_BTD.shape}")
