"""The optimizer: one schedule, and a group of parameters for each way of updating them."""

import math
from typing import Any

import jax
import optax

from depthroute.config import Config, TrainConfig

# Layer matrices are stacked over layers, and some have two input or two output axes: Muon must be told which is which. The
# first axis is in neither set, so every layer's matrix is orthogonalised on its own. Keys are the axes in the leaf's name.
MATRIX_AXES = {
    "DHK": ((1,), (2, 3)),
    "DGK": ((1,), (2, 3)),
    "HKD": ((1, 2), (3,)),
    "DF": ((1,), (2,)),
    "FD": ((1,), (2,)),
}
MUON_RMS = 0.2  # size of a Muon update relative to the rate; matches AdamW's, so both share one rate (arXiv 2502.16982)


def learning_rate(train: TrainConfig, multiplier: float = 1.0) -> optax.Schedule:
    """Linear warm-up to the peak, then a cosine, or a constant and a linear decay (wsd), to final_lr times the peak."""
    peak = train.lr * multiplier
    warmup = optax.linear_schedule(peak / (train.warmup + 1), peak, train.warmup)
    if train.schedule == "cosine":
        rest = optax.cosine_decay_schedule(peak, max(train.steps - train.warmup, 1), train.final_lr)
        return optax.join_schedules([warmup, rest], [train.warmup])
    decay = optax.linear_schedule(peak, peak * train.final_lr, train.decay)
    return optax.join_schedules([warmup, optax.constant_schedule(peak), decay], [train.warmup, train.steps - train.decay])


def group_of(path: tuple[Any, ...]) -> str:
    """The group of the parameter at `path`; see `make_optimizer`. A ``matrix`` is inside the layers."""
    names = [entry.key for entry in path]
    if names[0] == "router" or "emit" in names:
        return "key_mean" if "key_mean" in names else "router"
    if "gain" in names:
        return "gain"
    return "matrix" if names[-1] in MATRIX_AXES else "embedding"


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Clipping, then AdamW per group; with ``train.optimizer = "muon"`` matrices inside the layers take Muon instead.

    Gains are not decayed. Router parameters have their own rate (train.lr x router.lr_multiplier) and decay. Running means of
    centred keys, whose "gradient" is their distance from the batch's, are averaged, not clipped (see `keys.subtract_mean`).
    """
    train, router = config.train, config.router

    def adamw(multiplier: float, decay: float) -> optax.GradientTransformation:
        rate = learning_rate(train, multiplier)
        return optax.adamw(rate, b1=train.beta1, b2=train.beta2, eps=train.adam_eps, weight_decay=decay)

    groups = {
        "key_mean": optax.sgd(router.key_mean_rate),
        "router": adamw(router.lr_multiplier, router.weight_decay),
        "gain": adamw(1.0, 0.0),
        "embedding": adamw(1.0, train.weight_decay),
        "matrix": muon(train) if train.optimizer == "muon" else adamw(1.0, train.weight_decay),
    }

    def labels(params: Any) -> Any:
        return jax.tree.map_with_path(lambda path, _: group_of(path), params)

    def clipped(params: Any) -> Any:
        return jax.tree.map(lambda label: label != "key_mean", labels(params))

    clip = optax.clip_by_global_norm(train.clip_norm)
    if router.key == "centred":
        clip = optax.masked(clip, clipped)
    return optax.chain(clip, optax.partition(groups, labels))


def muon(train: TrainConfig) -> optax.GradientTransformation:
    """Muon (Jordan, 2024) with decoupled decay, for stacked layer matrices."""
    return optax.chain(
        optax.contrib.scale_by_muon(weight_dimension_numbers=_dimensions),
        optax.stateless(lambda updates, params: jax.tree.map_with_path(_match_rms, updates)),
        optax.add_decayed_weights(train.weight_decay),
        optax.scale_by_learning_rate(learning_rate(train)),
    )


def _dimensions(params: Any) -> Any:
    return jax.tree.map_with_path(lambda path, _: optax.contrib.MuonDimensionNumbers(*MATRIX_AXES[path[-1].key]), params)


def _match_rms(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
    """An orthogonal matrix has entries of size 1 / sqrt(longer side); this makes them MUON_RMS at any shape."""
    sides = [math.prod(update.shape[axis] for axis in axes) for axes in MATRIX_AXES[path[-1].key]]
    return update * (MUON_RMS * max(sides) ** 0.5)
