"""Whether PyTorch's models compute what depthroute's do: loss and gradient at the same parameters, copied over."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from benchmarks.peers.arms import PEERS, make_config
from benchmarks.peers.protocol import Facts
from benchmarks.peers.torch_arms import BUILDERS, next_token_loss
from benchmarks.peers.torch_models import ResidualDecoder
from depthroute.config import Config
from depthroute.errors import UserError
from depthroute.model.transformer import build
from depthroute.training.step import gradients

CHECKED = ("PyTorch", "PyTorch, naive")
TOLERANCE = 1e-4
Tree = Any


def check(overrides: dict[str, str], make_tokens: Callable[[Config], np.ndarray]) -> Facts:
    """Losses of both sides, in nats, and the largest difference of embedding gradients over the largest of these, by peer.

    Raises UserError where the losses, or the gradients, differ by more than `TOLERANCE`.
    """
    found = {}
    for name in CHECKED:
        config = make_config(PEERS[name].router, overrides)
        ours, gradient_VD, theirs, their_gradient_VD = _both(config, name, make_tokens(config))
        error = float(np.max(np.abs(gradient_VD - their_gradient_VD)) / np.max(np.abs(gradient_VD)))
        found[name] = {"ours": ours, "theirs": theirs, "gradient_error": error}
        if not (abs(ours - theirs) <= TOLERANCE and error <= TOLERANCE):
            raise UserError(f"{name} does not compute what depthroute does: {found[name]}; at most {TOLERANCE:g} is allowed")
    return {"parity": found}


def _both(config: Config, name: str, tokens_BT: np.ndarray) -> tuple[float, np.ndarray, float, np.ndarray]:
    model = build(config)
    params = jax.tree.map_with_path(_moved, model.init(jax.random.key(0)))
    loss, grads = jax.jit(lambda params: gradients(model, params, tokens_BT, 0.0, 1))(params)
    peer = BUILDERS[name](config)
    _copy(jax.tree.map(np.asarray, params), peer)
    peer_loss = next_token_loss(peer, torch.as_tensor(tokens_BT, dtype=torch.long))
    peer_loss.backward()
    return float(loss), np.asarray(grads["embed"]["VD"]), peer_loss.item(), peer.embed_VD.grad.numpy()


def _moved(path: Sequence[Any], leaf: jax.Array) -> jax.Array:
    """Gains and router parameters moved at random, so that no one and no zero hides a mistake."""
    names = [entry.key for entry in path]
    moves = "router" in names or "gain" in names
    return leaf + 0.5 * jax.random.normal(jax.random.key(len(names)), leaf.shape) if moves else leaf


def _copy(params: Tree, peer: ResidualDecoder) -> None:
    """Puts depthroute's parameters into PyTorch's modules, whose linear maps are transposed and have no head axis."""
    attention, mlp = params["layers"]["attention"], params["layers"]["mlp"]
    state = {"embed_VD": params["embed"]["VD"], "norm.weight": params["norm"]["gain"]["D"]}
    for layer in range(len(mlp["norm"]["gain"]["D"])):
        for place, part in ((f"sublayers.{2 * layer}", attention), (f"sublayers.{2 * layer + 1}", mlp)):
            for role, ((axes, leaf),) in ((role, _leaf(tree).items()) for role, tree in part.items()):
                state[f"{place}.{role}.weight"] = _as_linear(axes, leaf[layer])
    if "query" in params["router"]:
        query_MD, gain_MD = params["router"]["query"]["MR"], params["router"]["key_gain"]["MD"]
        for m, (query_D, gain_D) in enumerate(zip(query_MD, gain_MD, strict=True)):
            state[f"reads.{m}.query_D"] = query_D * len(query_D) ** -0.5  # depthroute's scores have this factor
            state[f"reads.{m}.norm.weight"] = gain_D
    peer.load_state_dict({name: torch.tensor(value) for name, value in state.items()})


def _leaf(tree: Tree) -> Tree:
    return tree["gain"] if "gain" in tree else tree


def _as_linear(axes: str, leaf: np.ndarray) -> np.ndarray:
    if axes == "D":
        return leaf
    inputs = axes.index("D") + 1 if axes.startswith("D") else len(axes) - 1
    return leaf.reshape(int(np.prod(leaf.shape[:inputs])), -1).T
