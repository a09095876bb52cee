"""Parameters of routers with n streams: static values or logits of read, carry and write, and maps of the dynamic ones."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from depthroute.config import Config
from depthroute.nn.params import Initializer, Parameter, normal
from depthroute.routing.carries import initial_logits
from depthroute.routing.topology import num_sites

PARTS = ("read", "carry", "write")
SCALE = 0.01  # of the dynamic parts at first, in all papers
MAP_STD = 0.02  # of maps that start at random, in the hyper-connection-factory code


def own_axes(config: Config, part: str) -> str:
    """Axes of a part's coefficients, or of its logits: streams read (N) and left (O), or logits of another kind (E)."""
    if part == "carry" and config.router.carry_form in ("permutations", "kronecker", "orthogonal"):
        return "E"
    return {"read": "ON" if config.router.split_width else "N", "carry": "ON", "write": "O"}[part]


def map_axes(config: Config, part: str) -> str:
    """Axes of a part's map: from each stream [D] to its own coefficients if the carry is free, else from all of them [W]."""
    if config.router.carry_form != "free":
        return own_axes(config, part) + "W"
    return {"read": "O" if config.router.split_width else "", "carry": "O", "write": ""}[part] + "D"


def static_name(config: Config, part: str) -> str:
    """A free carry has values, others have logits."""
    return part if config.router.carry_form == "free" else f"{part}_logit"


def scale_name(config: Config, part: str) -> str:
    """Hyper-connections give read and carry one scale, mHC gives each its own."""
    return "mix_scale" if config.router.carry_form == "free" and part != "write" else f"{part}_scale"


def dynamic_parts(config: Config) -> Sequence[str]:
    """Those whose coefficients depend on the token."""
    return [part for part in PARTS if getattr(config.router, part) == "dynamic"]


class StreamParameters(nn.Module):
    """Static values or logits, and a map and a scale of each dynamic part, with a row for every site.

    Site 0 has all its rows, as published, although its read changes no more than a scale, which the sublayer's norm removes.
    The axis a map takes is its last, since XLA's CPU backend transposes the streams for the gradient of a map of few columns.
    A learned read-out has logits, a map and a scale of its own.
    """

    config: Config

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        router, D, n = self.config.router, self.config.model.dim, self.config.router.streams
        E = initial_logits(router.carry_form, n).size
        sizes = {"M": num_sites(self.config), "N": n, "O": n, "D": D // n if router.split_width else D, "W": n * D, "E": E}
        init_map = normal(MAP_STD) if router.stream_start == "random_maps" else nn.initializers.zeros
        params = {}

        def add(name: str, axes: str, init: Initializer) -> None:
            if f"{name}_{axes}" not in params:
                params[f"{name}_{axes}"] = Parameter(axes, tuple(sizes[axis] for axis in axes), init, name=name)()

        for part in PARTS:
            if getattr(router, part) != "none":
                add(static_name(self.config, part), f"M{own_axes(self.config, part)}", _start(self.config, part))
        for part in dynamic_parts(self.config):
            add(f"{part}_map", f"M{map_axes(self.config, part)}", init_map)
            add(scale_name(self.config, part), "M", nn.initializers.constant(SCALE))
        if router.stream_readout == "learned":
            add("head_logit", "N", nn.initializers.zeros)
            add("head_map", "NW", nn.initializers.zeros)
            params["head_scale"] = Parameter("scalar", (), nn.initializers.constant(SCALE), name="head_scale")()
        return params


def _start(config: Config, part: str) -> Initializer:
    """Static values, or logits unless the carry is free, with a leading axis over sites.

    Published for a free carry: site m reads stream m mod n alone, writes to all, and carries I. mHC states no initial logits.
    Those of read, 1 for that stream and -1 for the others, and of carry are the mhc-lite code's (arXiv 2601.05732); zero for
    write makes b = 1. While streams are copies of one another, any c with rows that sum to one changes nothing and any a a
    scale alone, so all forms start as the pre-norm residual network. Unequal reading is what makes the streams differ: if all
    treated them alike they would stay copies for ever. With ``random_maps`` all logits are zero, and maps tell streams apart.
    Fractions of the width are not copies, and start as they are: read I, carry I, write 1.
    """
    router, n = config.router, config.router.streams
    free, counted = router.carry_form == "free", 2 if router.stream_index == "layer" else 1

    def init(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
        if router.stream_start == "random_maps":
            return jnp.zeros(shape, dtype)
        if part == "write":
            return jnp.ones(shape, dtype) if free else jnp.zeros(shape, dtype)
        if part == "carry" and not free:
            return jnp.broadcast_to(jnp.asarray(initial_logits(router.carry_form, n), dtype), shape)
        if part == "carry" or router.split_width:
            return jnp.broadcast_to(jnp.eye(n, dtype=dtype), shape)
        turn_MN = jnp.eye(n, dtype=dtype)[np.arange(shape[0]) // counted % n]
        return turn_MN if free else 2 * turn_MN - 1

    return init
