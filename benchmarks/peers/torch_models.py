"""depthroute's decoder in PyTorch, with a plain residual stream, with Attention Residuals as the paper's equations read, and
wrapped in hyper-connections. The first two are the same functions as depthroute's; `parity` checks it.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthroute.config import ModelConfig


class Attention(nn.Module):
    """Sublayer: norm, projections, rotary positions, causal attention, output projection."""

    def __init__(self, m: ModelConfig, seq_len: int):
        super().__init__()
        self.heads = m.heads
        self.norm = nn.RMSNorm(m.dim, eps=m.stream_eps)
        self.query, self.key, self.value, self.out = (nn.Linear(m.dim, m.dim, bias=False) for _ in range(4))
        half = m.dim // m.heads // 2
        angle_TK = torch.outer(torch.arange(seq_len), m.rope_base ** (-torch.arange(half) / half))
        self.register_buffer("cos_TK", angle_TK.cos(), persistent=False)
        self.register_buffer("sin_TK", angle_TK.sin(), persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = self.norm(x_BTD)
        query_BHTK, key_BHTK, value_BHTK = (
            project(x_BTD).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        mixed_BHTK = F.scaled_dot_product_attention(
            self._rotate(query_BHTK), self._rotate(key_BHTK), value_BHTK, is_causal=True
        )
        return self.out(mixed_BHTK.transpose(1, 2).flatten(-2))

    def _rotate(self, x_BHTK: Tensor) -> Tensor:
        first, second = x_BHTK.chunk(2, dim=-1)
        turned = (first * self.cos_TK - second * self.sin_TK, second * self.cos_TK + first * self.sin_TK)
        return torch.cat(turned, dim=-1)


class MLP(nn.Module):
    """Sublayer: norm, SwiGLU."""

    def __init__(self, m: ModelConfig):
        super().__init__()
        self.norm = nn.RMSNorm(m.dim, eps=m.stream_eps)
        self.gate, self.up = (nn.Linear(m.dim, m.mlp_dim, bias=False) for _ in range(2))
        self.down = nn.Linear(m.mlp_dim, m.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = self.norm(x_BTD)
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class ResidualDecoder(nn.Module):
    """Tokens [B, T] to logits [B, T, V], with a plain pre-norm residual stream and a tied head."""

    def __init__(self, m: ModelConfig, seq_len: int):
        super().__init__()
        self.embed_VD = nn.Parameter(m.embed_std * torch.randn(m.vocab, m.dim))
        self.sublayers = nn.ModuleList(s for _ in range(m.layers) for s in (Attention(m, seq_len), MLP(m)))
        self.norm = nn.RMSNorm(m.dim, eps=m.stream_eps)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.norm(self.depth(self.embed_VD[tokens_BT])) @ self.embed_VD.T

    def depth(self, x_BTD: Tensor) -> Tensor:
        """What the read-out sees of the embeddings and of all sublayers."""
        for sublayer in self.sublayers:
            x_BTD = x_BTD + sublayer(x_BTD)
        return x_BTD


class DepthRead(nn.Module):
    """One consumer of Attention Residuals (arXiv 2603.15031): softmax over all sources of a learned query times their norm."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.query_D = nn.Parameter(torch.zeros(dim))
        self.norm = nn.RMSNorm(dim, eps=eps)

    def forward(self, values: list[Tensor]) -> Tensor:
        values_SBTD = torch.stack(values)
        scores_SBT = torch.einsum("D,SBTD->SBT", self.query_D, self.norm(values_SBTD))
        return torch.einsum("SBT,SBTD->BTD", scores_SBT.softmax(0), values_SBTD)


class AttnResDecoder(ResidualDecoder):
    """Every sublayer and the read-out see a mix of everything written before. The first has a single source, and no query."""

    def __init__(self, m: ModelConfig, seq_len: int, key_eps: float):
        super().__init__(m, seq_len)
        self.reads = nn.ModuleList(DepthRead(m.dim, key_eps) for _ in self.sublayers)

    def depth(self, x_BTD: Tensor) -> Tensor:
        values = [x_BTD]
        for sublayer, read in zip(self.sublayers, self.reads, strict=True):
            values.append(sublayer(x_BTD))
            x_BTD = read(values)
        return x_BTD


class StreamsDecoder(ResidualDecoder):
    """Every sublayer is the branch of a hyper-connection; `connect`, `expand` and `reduce` are those of the package."""

    def __init__(self, m: ModelConfig, seq_len: int, connect: Callable[..., nn.Module], expand: nn.Module, reduce: nn.Module):
        super().__init__(m, seq_len)
        self.sublayers = nn.ModuleList(connect(branch=s, layer_index=i) for i, s in enumerate(self.sublayers))
        self.expand, self.reduce = expand, reduce

    def depth(self, x_BTD: Tensor) -> Tensor:
        streams = self.expand(x_BTD)
        for sublayer in self.sublayers:
            streams = sublayer(streams)
        return self.reduce(streams)
