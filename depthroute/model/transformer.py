"""A causal decoder around any router.

Layer parameters are stored stacked, one leading axis over layers, so that every engine form shares one parameter tree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from depthroute.config import Config
from depthroute.model.append_scan import scan_append
from depthroute.model.depth import Site, Trace, run_depth, scan_depth
from depthroute.model.history_scan import scan_history, trace_history
from depthroute.model.stream_scan import largest_carry_error, scan_streams
from depthroute.nn.attention import Attention, values
from depthroute.nn.mlp import MLP
from depthroute.nn.norm import RMSNorm
from depthroute.nn.params import Parameter, key_for, normal
from depthroute.routing.build import build_router
from depthroute.routing.contract import Router, Ways
from depthroute.routing.depth_attention import DepthAttention
from depthroute.routing.depth_weights import has_kernels
from depthroute.routing.streams import Streams

Tree = Any


@dataclass(frozen=True)
class Model:
    """`init(key) -> params` and `apply(params, tokens) -> logits`, both pure. Build one with `depthroute.build(config)`."""

    config: Config
    router: Router

    def init(self, key: jax.Array) -> Tree:
        """Initial parameters, float32. A value depends on the key and its path alone, so arms share what they have in common.

        Embedding and untied head: N(0, embed_std^2); the layers' initial values are stated in `nn`, with output projections
        divided by sqrt(2 x layers), one factor per residual branch (Radford et al., 2019).
        """
        m = self.config.model
        x_BTD = jnp.zeros((1, 1, m.dim), jnp.dtype(m.dtype))
        layer_keys = [jax.random.fold_in(key_for(key, "layers"), layer) for layer in range(m.layers)]
        params = {
            "embed": self._embed.init(key_for(key, "embed"))["params"],
            "layers": jax.vmap(partial(self._init_layer, x_BTD))(jnp.stack(layer_keys)),
            "router": self.router.parameters().init(key_for(key, "router")).get("params", {}),
        }
        if self.router.prenorm:
            params["norm"] = self._norm.init(key_for(key, "norm"), x_BTD)["params"]
        if not m.tied_head:
            params["head"] = self._embed.init(key_for(key, "head"))["params"]
        return params

    def apply(self, params: Tree, tokens_BT: jax.typing.ArrayLike, trace: bool = False) -> Any:
        """Next-token logits [B, T, V] in float32; with `trace`, the pair (logits, `Trace` or None)."""
        m = self.config.model
        dtype = jnp.dtype(m.dtype)
        x_BTD = params["embed"]["VD"][jnp.asarray(tokens_BT)].astype(dtype)
        routing: Any = self.router.parameters().apply({"params": params["router"]})
        x_BTD, routed = self._depth(routing, params["layers"], x_BTD, trace)
        if self.router.prenorm:
            x_BTD = self._norm.apply({"params": params["norm"]}, x_BTD)
        head_VD = params["embed" if m.tied_head else "head"]["VD"].astype(dtype)
        logits_BTV = jnp.einsum("BTD,VD->BTV", x_BTD, head_VD, preferred_element_type=jnp.float32)
        return (logits_BTV, routed) if trace else logits_BTV

    def carry_error(self, params: Tree, tokens_BT: jax.typing.ArrayLike) -> jax.Array | None:
        """How far iterations of Sinkhorn are from doubly stochastic at these tokens; None for routers that have none."""
        if self.config.router.carry_form != "sinkhorn" or not isinstance(self.router, Streams):
            return None
        x_BTD = params["embed"]["VD"][jnp.asarray(tokens_BT)].astype(jnp.dtype(self.config.model.dtype))
        routing: Any = self.router.parameters().apply({"params": params["router"]})
        return largest_carry_error(self.router, routing, self.sites, params["layers"], x_BTD)

    def sites(self, layer: Tree, first_BTGK: jax.Array | None = None) -> list[Site]:
        """A layer's functions between reads: attention and MLP in turn, or both as one with their inner residual kept.

        `first_BTGK` are the values of the first layer's attention, where other layers take a share of them.
        """
        attention, mlp = self._sublayers()
        attend, think = partial(_call, attention, layer["attention"]), partial(_call, mlp, layer["mlp"])
        if first_BTGK is not None:
            attend = partial(attend, first_BTGK=first_BTGK)
        return [attend, think] if self.config.router.sites == "sublayer" else [partial(_layer, attend, think)]

    def _depth(self, routing: Any, layers: Tree, x_BTD: jax.Array, trace: bool) -> tuple[jax.Array, Trace | None]:
        remat = self._remat
        if self.config.router.value_share:
            first_layer = jax.tree.map(lambda leaf: leaf[0], layers["attention"])
            remat = partial(self._remat, first_BTGK=values(first_layer, x_BTD, self.config.model.stream_eps))
        if self.config.engine.history == "list":
            unstacked = _unstack(layers, self.config.model.layers)
            return run_depth(self.router, routing, [site for layer in unstacked for site in remat(layer)], x_BTD)
        if isinstance(self.router, Streams):
            return scan_streams(self.router, routing, self.sites, layers, x_BTD, self.config.model.remat), None
        if not isinstance(self.router, DepthAttention):
            return scan_depth(self.router, routing, remat, layers, x_BTD), None
        if not has_kernels(self.config):
            return scan_append(self.router, routing, self.sites, layers, x_BTD, trace)
        if trace:
            return trace_history(self.router, routing, self.sites, layers, x_BTD)
        return scan_history(self.router, routing, self.sites, layers, x_BTD), None

    def _remat(self, layer: Tree, first_BTGK: jax.Array | None = None) -> list[Site]:
        return [jax.checkpoint(site) if self.config.model.remat else site for site in self.sites(layer, first_BTGK)]

    def _sublayers(self) -> tuple[Attention, MLP]:
        m = self.config.model
        shared: dict[str, Any] = {
            "norm_eps": m.stream_eps,
            "prenorm": self.router.prenorm,
            "emit": self.config.router.rank if self.config.router.key == "emitted" else 0,
            **branch_shrinks(self.config),
            "dtype": jnp.dtype(m.dtype),
        }
        attention = Attention(m.heads, m.kv_heads, m.rope_base, value_share=self.config.router.value_share, **shared)
        return attention, MLP(m.mlp, m.mlp_dim, **shared)

    def _init_layer(self, x_BTD: jax.Array, key: jax.Array) -> Tree:
        attention, mlp = self._sublayers()
        return {
            "attention": attention.init(key_for(key, "attention"), x_BTD)["params"],
            "mlp": mlp.init(key_for(key, "mlp"), x_BTD)["params"],
        }

    @property
    def _embed(self) -> Parameter:
        return Parameter("VD", (self.config.model.vocab, self.config.model.dim), normal(self.config.model.embed_std))

    @property
    def _norm(self) -> RMSNorm:
        return RMSNorm(self.config.model.stream_eps)


def build(config: Config) -> Model:
    """The model that `config` describes; refuses combinations that make no sense."""
    return Model(config, build_router(config))


def _call(module: Attention | MLP, params: Tree, *inputs: jax.Array, **named: Any) -> Any:
    return module.apply({"params": params}, *inputs, **named)


def branch_shrinks(config: Config) -> dict[str, float]:
    """What initial values of a branch are divided by, beside the root of their fan-in: inside it, and at its output.

    DeepNorm (arXiv 2203.00555, decoder) has (8 L)^(1/4) at both; else the output has sqrt(2 L) alone (Radford et al., 2019).
    """
    layers = config.model.layers
    if config.router.preset == "deepnorm":
        return {"shrink": (8 * layers) ** 0.25, "out_shrink": (8 * layers) ** 0.25}
    return {"shrink": 1.0, "out_shrink": (2 * layers) ** 0.5}


def _layer(attend: Callable[..., jax.Array], think: Site, x: jax.Array | Ways) -> jax.Array:
    """Attention and MLP with the residual between them, without the one around them."""
    if isinstance(x, Ways):
        attended_BTD, x_BTD = attend(x.query, x.key, x.value), x.residual
    else:
        attended_BTD, x_BTD = attend(x), x
    return attended_BTD + think(x_BTD + attended_BTD)


def _unstack(layers: Tree, count: int) -> list[Tree]:
    """One tree per layer. A split, since its transpose is a concatenation; slices would each add up a whole stack."""
    columns = jax.tree.map(lambda leaf: [part[0] for part in jax.lax.split(leaf, (1,) * count, axis=0)], layers)
    return jax.tree.transpose(jax.tree.structure(layers), jax.tree.structure([0] * count), columns)
