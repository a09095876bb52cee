"""Parameters and FLOPs of the whole model in closed form, without JAX, so that arms can be matched before anything runs."""

from depthroute.config import Config
from depthroute.errors import UserError
from depthroute.routing.counts import router_flops, router_params
from depthroute.routing.presets import prenorm


def _matrices_per_layer(config: Config) -> int:
    m = config.model
    head_dim = m.dim // m.heads
    attention = 2 * m.dim * m.dim + 2 * m.dim * m.kv_heads * head_dim
    emitted = (m.dim + m.mlp_dim) * config.router.rank if config.router.key == "emitted" else 0
    return attention + (3 if m.mlp == "swiglu" else 2) * m.dim * m.mlp_dim + emitted


def num_params(config: Config) -> int:
    """Number of parameters, router included."""
    m = config.model
    gains = (2 * m.layers + 1) * m.dim if prenorm(config) else 0
    embeddings = m.vocab * m.dim * (1 if m.tied_head else 2)
    return embeddings + m.layers * _matrices_per_layer(config) + gains + router_params(config)


def forward_flops(config: Config) -> float:
    """Forward FLOPs per token, two per multiply-add; causal attention counts the (T + 1) / 2 positions it needs on average."""
    m = config.model
    attention = 2 * 2 * m.dim * (config.data.seq_len + 1) / 2
    return 2.0 * (m.layers * _matrices_per_layer(config) + m.vocab * m.dim) + m.layers * attention + router_flops(config)


def training_flops(config: Config) -> float:
    """FLOPs per token of a training step: the backward pass costs twice the forward pass."""
    return 3.0 * forward_flops(config)


def match_mlp_dim(config: Config, params: int) -> int:
    """The MLP width at which the model has as close to `params` parameters as whole hidden units allow."""
    m = config.model
    per_unit = m.layers * m.dim * (3 if m.mlp == "swiglu" else 2)
    width = m.mlp_dim + round((params - num_params(config)) / per_unit)
    if width < 1:
        raise UserError(f"no MLP width brings {config.router.preset} down to {params} parameters; raise model.dim")
    return width
