"""What is compared with what: names and notes, as plain data, without JAX or PyTorch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from depthroute.config import Config, load_file, overlay, resolve
from depthroute.routing.presets import check, expand

BASE = Path(__file__).parents[2] / "configs" / "base.py"
OURS = "depthroute"
OUR_VARIANTS = {"no remat": False, "remat": True}  # model.remat
PEER_VARIANTS = {"eager": False, "compiled": True}  # whether torch.compile is applied


class Peer(NamedTuple):
    """An implementation by others: the preset it is compared with, the package its version is of, and how the two differ."""

    router: str
    package: str
    note: str


PEERS = {
    "PyTorch": Peer("residual", "torch", "the same function (checked); scaled_dot_product_attention, nn.RMSNorm"),
    "x-transformers": Peer(
        "residual", "x-transformers", "Decoder with rotary positions, RMSNorm, SwiGLU, flash attention, tied head"
    ),
    "PyTorch, naive": Peer(
        "attnres", "torch", "the same function (checked), as the paper's equations read: a stack of all sources per read"
    ),
    "attn-res": Peer("attnres", "attn-res", "full mode; no gain on keys, and the read-out is a plain sum"),
    "x-transformers, aggregated": Peer(
        "attnres",
        "x-transformers",
        "attn_aggregated_residuals: over states; queries from the newest state; no read-out of its own",
    ),
    "hyper-connections": Peer(
        "hyper_dynamic", "hyper-connections", "HyperConnections, 4 streams, around the PyTorch sublayers"
    ),
    "hyper-connections, mHC": Peer(
        "mhc",
        "hyper-connections",
        "ManifoldConstrainedHyperConnections, 4 streams, 20 iterations, around the PyTorch sublayers; a stream's coefficients "
        "come from it alone, ours as in the paper from all streams",
    ),
    "x-transformers, mHC": Peer(
        "mhc",
        "x-transformers",
        "num_residual_streams=4, hyper_conn_sinkhorn_iters=20; a stream's coefficients come from it alone",
    ),
    "x-transformers, LIMe": Peer(
        "qd_ks",
        "x-transformers",
        "integrate_layers: over states, a linear map for keys; three mixes for attention, where qd_ks has one",
    ),
}
ROUTERS = tuple(dict.fromkeys(peer.router for peer in PEERS.values()))


class Arm(NamedTuple):
    """One process that is timed."""

    router: str
    implementation: str
    variant: str


def arms(router: str) -> list[Arm]:
    """Ours, then every peer compared with it, each in all its variants."""
    peers = [name for name, peer in PEERS.items() if peer.router == router]
    ours = [Arm(router, OURS, variant) for variant in OUR_VARIANTS]
    return ours + [Arm(router, name, variant) for name in peers for variant in PEER_VARIANTS]


def make_config(router: str, overrides: Mapping[str, str]) -> Config:
    """The base config with a router in the buffered form of the history, and `overrides` on top; checked."""
    config = resolve(
        overlay(load_file(BASE)[0], {"engine.history": "buffer", **expand({"router.preset": router}), **overrides})
    )
    check(config)
    return config


def shape(config: Config) -> dict[str, int]:
    """The sizes that all arms share."""
    model = {name: getattr(config.model, name) for name in ("layers", "dim", "heads", "mlp_dim", "vocab")}
    return {"batch": config.data.batch, "seq_len": config.data.seq_len, **model}


def packages() -> Sequence[str]:
    """Every package that has a row, each once."""
    return tuple(dict.fromkeys([OURS, *(peer.package for peer in PEERS.values())]))
