"""Published systems, and the cells of the key x query grid, by name.

A preset is a family and, for depth attention, a value for each axis of the routing space. Setting ``router.preset`` sets the
axes; an axis that is set explicitly wins over the preset's. This module does not import JAX, so that sweeps can be planned and
tables printed without it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from depthroute.config import WHERE, Config
from depthroute.errors import UserError, bad_value, unknown_name
from depthroute.routing.topology import num_sites

SINGLE_STREAM = "single_stream"
DEPTH_ATTENTION = "depth_attention"
STREAMS = "streams"

AXES = {
    "query": "none",
    "key": "none",
    "bias": "none",
    "mixing": "free",
    "sources": "outputs",
    "memory": "full",
    "sites": "sublayer",
    "key_gain": False,
    "read": "none",
    "carry": "none",
    "write": "none",
    "carry_form": "free",
}
OF_STREAMS = ("read", "carry", "write", "carry_form")  # axes of families with n streams


@dataclass(frozen=True)
class Preset:
    """A named point: its family, where it is from, and the axes in which it differs from `AXES`."""

    family: str
    about: str
    axes: Mapping[str, Any]


def _grid(query: str, key: str, about: str) -> Preset:
    return Preset(DEPTH_ATTENTION, about, {"query": query, "key": key, "mixing": "softmax"})


def _streams(form: str, kind: str, about: str) -> Preset:
    carry = "none" if form == "identity" else kind
    return Preset(STREAMS, about, {"read": kind, "carry": carry, "write": kind, "carry_form": form})


PRESETS: dict[str, Preset] = {
    "residual": Preset(SINGLE_STREAM, "pre-norm residual stream, x <- x + f(norm(x)) (He et al., arXiv 1512.03385)", {}),
    "plain": Preset(SINGLE_STREAM, "no skip, x <- f(norm(x))", {}),
    "postnorm": Preset(SINGLE_STREAM, "x <- norm(x + f(x)) (Vaswani et al., arXiv 1706.03762)", {}),
    "attnres": Preset(
        DEPTH_ATTENTION,
        "full Attention Residuals (arXiv 2603.15031): static query, keys norm(v_i) with a gain per consumer",
        {"query": "static", "key": "dynamic_full", "mixing": "softmax", "key_gain": True},
    ),
    "attnres_block": Preset(
        DEPTH_ATTENTION,
        "block Attention Residuals (arXiv 2603.15031): sources are sums of blocks and the running partial",
        {"query": "static", "key": "dynamic_full", "mixing": "softmax", "key_gain": True, "memory": "blocks"},
    ),
    "denseformer": Preset(
        DEPTH_ATTENTION,
        "DenseFormer (arXiv 2402.02622): learned weights on all earlier states, before each layer",
        {"bias": "learned", "sources": "states", "sites": "layer"},
    ),
    "qs_ks": _grid("static", "static", "static query, static keys: fixed softmax weights per consumer"),
    "qs_kd": _grid("static", "dynamic_projected", "static query, dynamic keys of the static ones' rank"),
    "qd_ks": _grid("dynamic", "static", "dynamic query, one static key per source shared by all consumers"),
    "qd_kd": _grid("dynamic", "dynamic_projected", "dynamic query, dynamic keys"),
    "qd_kh": _grid("dynamic", "hybrid", "dynamic query, static keys plus a gated dynamic part"),
    "hyper_static": _streams("free", "static", "n streams, static hyper-connections (arXiv 2409.19606)"),
    "hyper_dynamic": _streams("free", "dynamic", "n streams, dynamic hyper-connections (arXiv 2409.19606)"),
    "mhc": _streams("sinkhorn", "dynamic", "n streams, mHC (arXiv 2512.24880): doubly stochastic carry"),
    "identity_hyper": _streams("identity", "dynamic", "n streams, each carried as it is: mHC with the identity as its carry"),
}


def find(name: str) -> Preset:
    """The preset called `name`, or a UserError that lists the known names."""
    if name not in PRESETS:
        raise unknown_name("router.preset", name, PRESETS, "the config file or --config.router.preset=...")
    return PRESETS[name]


def expand(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Puts a preset's axes underneath flat overrides that name one: explicit overrides win, the rest is the preset's."""
    if "router.preset" not in overrides:
        return dict(overrides)
    axes = {**AXES, **find(overrides["router.preset"]).axes}
    return {**{f"router.{axis}": value for axis, value in axes.items()}, **overrides}


def check(config: Config) -> None:
    """Refuses combinations of axes that make no sense, with one line that names both fields and says what would be valid."""
    CHECKS[find(config.router.preset).family](config)


def _refuse(config: Config, axis: str, allowed: str) -> UserError:
    return bad_value(f"router.{axis}", getattr(config.router, axis), allowed, WHERE.format(f"router.{axis}"))


def _check_unused(config: Config, axes: Iterable[str], needed: str) -> None:
    """Axes of other families must be at rest: they would be set without effect."""
    for axis in axes:
        if getattr(config.router, axis) != AXES[axis]:
            allowed = f"{AXES[axis]!r} with router.preset={config.router.preset!r}; other values need a preset with {needed}"
            raise _refuse(config, axis, allowed)


def _check_single_stream(config: Config) -> None:
    _check_unused(config, AXES.keys() - OF_STREAMS, "a history")
    _check_unused(config, OF_STREAMS, "n streams")


def _check_streams(config: Config) -> None:
    router = config.router
    _check_unused(config, [axis for axis in AXES if axis not in (*OF_STREAMS, "sites")], "a history")
    for axis in ("read", "write"):
        if getattr(router, axis) == "none":
            raise _refuse(config, axis, f"'static' or 'dynamic' with router.preset={router.preset!r}")
    if (router.carry == "none") != (router.carry_form == "identity"):
        raise _refuse(config, "carry", f"'none' exactly when router.carry_form is 'identity' (it is {router.carry_form!r})")


def _check_depth_attention(config: Config) -> None:
    router, model = config.router, config.model
    _check_unused(config, OF_STREAMS, "n streams")
    if (router.query == "none") != (router.key == "none"):
        raise _refuse(
            config, "key", f"'none' exactly when router.query is 'none' (it is {router.query!r}); a score needs both or neither"
        )
    if router.mixing == "free" and router.bias == "none":
        raise _refuse(config, "bias", "'learned' with router.mixing='free'; all weights would start at zero")
    if router.rank > model.dim:
        raise _refuse(config, "rank", f"at most model.dim={model.dim}")
    if router.key_gain and router.key != "dynamic_full":
        raise _refuse(config, "key_gain", f"False with router.key={router.key!r}; the gain is that of full-width keys")
    if router.memory == "blocks" and router.sources == "states":
        raise _refuse(config, "sources", "'outputs' with router.memory='blocks'; blocks are sums of outputs")
    if router.memory == "dilated" and router.sources == "outputs":
        raise _refuse(config, "sources", "'states' with router.memory='dilated'; leaving outputs out would cut the stream")
    sites = num_sites(config)
    if router.memory == "blocks" and router.blocks > sites:
        raise _refuse(config, "blocks", f"at most the number of {router.sites}s, {sites}")


CHECKS = {SINGLE_STREAM: _check_single_stream, DEPTH_ATTENTION: _check_depth_attention, STREAMS: _check_streams}


def start(config: Config) -> str:
    """The function the network computes before its first update: ``residual``, ``plain``, ``postnorm`` or ``own``.

    A zero query makes the weights uniform, and the sublayers' norms remove the scale of a uniform mean, so reading outputs at
    sublayer sites starts as the pre-norm residual network. At layer sites the inner residual sees that scale, so there only
    weights of exactly one (on outputs) or one on the newest (on states) do, which is how learned biases of free mixing start.
    Streams start as copies, each with the residual stream in it; all forms but a free carry read them at another scale.
    """
    router = config.router
    family = find(router.preset).family
    if family == SINGLE_STREAM:
        return router.preset
    if family == STREAMS:
        return "residual" if router.carry_form == "free" or router.sites == "sublayer" else "own"
    if router.mixing == "free":
        return "residual"
    return "residual" if router.sources == "outputs" and router.sites == "sublayer" else "own"


def names() -> tuple[str, ...]:
    """All preset names."""
    return tuple(PRESETS)
