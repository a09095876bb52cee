"""The peers: how each is built, and the training step that all of them share."""

from collections.abc import Callable
from functools import partial
from typing import Any

import attn_res
import hyper_connections
import numpy as np
import torch
import torch.nn.functional as F
import x_transformers
from torch import Tensor, nn

from benchmarks.peers.protocol import Facts, Turn, checked
from benchmarks.peers.torch_models import AttnResDecoder, ResidualDecoder, StreamsDecoder
from depthroute.config import Config
from depthroute.runs.provenance import visible_cores


def _residual(config: Config) -> nn.Module:
    return ResidualDecoder(config.model, config.data.seq_len)


def _naive(config: Config) -> nn.Module:
    return AttnResDecoder(config.model, config.data.seq_len, config.router.key_eps)


def _attn_res(config: Config) -> nn.Module:
    m = config.model
    return attn_res.AttnResTransformer(
        attn_res.TransformerConfig(
            d_model=m.dim,
            n_layers=2 * m.layers,
            n_heads=m.heads,
            n_kv_heads=m.heads,
            vocab_size=m.vocab,
            max_seq_len=config.data.seq_len,
            ffn_mult=m.mlp_dim / m.dim,
            attn_res_mode=attn_res.AttnResMode.FULL,
        )
    )


def _hyper(config: Config) -> nn.Module:
    make = hyper_connections.get_init_and_expand_reduce_stream_functions
    return StreamsDecoder(config.model, config.data.seq_len, *make(config.router.streams, dim=config.model.dim))


def _mhc(config: Config) -> nn.Module:
    r, dim = config.router, config.model.dim
    parts = hyper_connections.mc_get_init_and_expand_reduce_stream_functions(
        r.streams, dim=dim, sinkhorn_iters=r.sinkhorn_iterations
    )
    return StreamsDecoder(config.model, config.data.seq_len, *parts)


def _x_transformers(config: Config, **routing: Any) -> nn.Module:
    m = config.model
    layers = x_transformers.Decoder(
        dim=m.dim,
        depth=m.layers,
        heads=m.heads,
        attn_dim_head=m.dim // m.heads,
        attn_flash=True,
        rotary_pos_emb=True,
        rotary_emb_dim=m.dim // m.heads,
        use_rmsnorm=True,
        ff_mult=m.mlp_dim / m.dim,
        ff_glu=True,
        ff_swish=True,
        ff_no_bias=True,
        **routing,
    )
    return x_transformers.TransformerWrapper(
        num_tokens=m.vocab, max_seq_len=config.data.seq_len, tie_embedding=True, attn_layers=layers
    )


def _x_transformers_mhc(config: Config) -> nn.Module:
    r = config.router
    return _x_transformers(config, num_residual_streams=r.streams, hyper_conn_sinkhorn_iters=r.sinkhorn_iterations)


BUILDERS: dict[str, Callable[[Config], nn.Module]] = {
    "PyTorch": _residual,
    "x-transformers": _x_transformers,
    "PyTorch, naive": _naive,
    "attn-res": _attn_res,
    "x-transformers, aggregated": partial(_x_transformers, attn_aggregated_residuals=True),
    "hyper-connections": _hyper,
    "hyper-connections, mHC": _mhc,
    "x-transformers, mHC": _x_transformers_mhc,
    "x-transformers, LIMe": partial(_x_transformers, integrate_layers=True),
}


def start(config: Config, implementation: str, compiled: bool, tokens_BT: np.ndarray) -> tuple[Facts, Turn]:
    """A peer on `tokens_BT` [B, T + 1], and its turn: one training step."""
    torch.set_num_threads(len(visible_cores()))
    model = BUILDERS[implementation](config)
    params = list(model.parameters())
    step = make_step(config, torch.compile(model) if compiled else model, params, torch.as_tensor(tokens_BT, dtype=torch.long))
    facts = {"params": sum(p.numel() for p in params), "threads": torch.get_num_threads()}
    return facts, lambda: checked(step())


def make_step(
    config: Config, model: Callable[[Tensor], Tensor], params: list[nn.Parameter], tokens_BT: Tensor
) -> Callable[[], float]:
    """Forward, backward, clipping and AdamW, as depthroute's step has them; returns the loss before the update.

    AdamW is PyTorch's fused one; its default on CPU, a loop over parameters, is slower.
    """
    t = config.train
    optimizer = torch.optim.AdamW(
        params, lr=t.lr, betas=(t.beta1, t.beta2), eps=t.adam_eps, weight_decay=t.weight_decay, fused=True
    )

    def step() -> float:
        optimizer.zero_grad()
        loss = next_token_loss(model, tokens_BT)
        loss.backward()
        nn.utils.clip_grad_norm_(params, t.clip_norm)
        optimizer.step()
        return loss.item()

    return step


def next_token_loss(model: Callable[[Tensor], Tensor], tokens_BT: Tensor) -> Tensor:
    """Mean negative log-likelihood of every next token, in nats."""
    return F.cross_entropy(model(tokens_BT[:, :-1]).flatten(0, 1), tokens_BT[:, 1:].flatten())
