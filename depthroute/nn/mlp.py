"""The position-wise network: SwiGLU (Shazeer, 2020, arXiv 2002.05202) or GELU."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from depthroute.nn.linear import linear, with_emitted
from depthroute.nn.norm import RMSNorm
from depthroute.nn.params import Parameter, fan_in


class MLP(nn.Module):
    """Sublayer: norm (if `prenorm`), up projection(s), nonlinearity, down projection. Adds nothing to its input.

    With `emit` the down projection is that much wider. Initial values: N(0, 1/fan_in); the up projection, without its gate, is
    divided by `shrink` and the down projection by `out_shrink`.
    """

    kind: str
    hidden: int
    norm_eps: float
    prenorm: bool
    emit: int
    shrink: float
    out_shrink: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        D, F = x_BTD.shape[-1], self.hidden
        if self.prenorm:
            x_BTD = RMSNorm(self.norm_eps, name="norm")(x_BTD)

        def up(name: str, shrink: float = 1.0) -> jax.Array:
            return linear(x_BTD, Parameter("DF", (D, F), fan_in(D, shrink), name=name)().astype(self.dtype))

        if self.kind == "swiglu":
            hidden_BTF = jax.nn.silu(up("gate")) * up("up", self.shrink)
        else:
            hidden_BTF = jax.nn.gelu(up("up", self.shrink))
        down_FD = Parameter("FD", (F, D), fan_in(F, self.out_shrink), name="down")()
        return linear(hidden_BTF, with_emitted(down_FD, self.emit, self.out_shrink).astype(self.dtype))
