"""Presets that keep one stream and no history; u = f(x) is what a site computes from the stream x it reads."""

from typing import Any

from depthroute.config import Config
from depthroute.routing.preset import OF_BOTH, OF_HISTORY, OF_STREAMS, Preset, check_unused, refuse

NOTHING = "nothing of its own"
LAUREL = "LAuReL, arXiv 2411.07501"
PARTIAL = "partial residual networks, as gradient path analysis has them (arXiv 2211.04800)"


def _preset(
    equation: str,
    init: str,
    source: str,
    published: str = "-",
    difference: float | None = None,
    prenorm: bool = True,
    **axes: Any,
) -> Preset:
    return Preset(equation, init, source, published, difference, axes, prenorm)


PRESETS: dict[str, Preset] = {
    "residual": _preset(
        "x <- x + f(norm(x))",
        NOTHING,
        "He et al., arXiv 1512.03385; norm first: Xiong et al., arXiv 2002.04745",
        "the baseline",
    ),
    "plain": _preset("x <- f(norm(x))", NOTHING, "a network without skips"),
    "postnorm": _preset("x <- g norm(x + f(x))", "gains g one", "Vaswani et al., arXiv 1706.03762", prenorm=False),
    "scaled": _preset(
        "x <- x + alpha f(norm(x)), alpha = router.skip_scale", NOTHING, "Szegedy et al., arXiv 1602.07261, who took 0.1 to 0.3"
    ),
    "rezero": _preset(
        "x <- x + a f(x), one a for both sublayers of a layer, no norms",
        "a = 0",
        "ReZero, arXiv 2003.04887; scalars as in the authors' package",
        prenorm=False,
    ),
    "skipinit": _preset(
        "x <- x + a f(x), one a per sublayer, no norms", "a = 0", "SkipInit: De and Smith, arXiv 2002.10444", prenorm=False
    ),
    "layerscale": _preset(
        "x <- x + diag(a) f(norm(x))", "a = 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond", "CaiT, arXiv 2103.17239"
    ),
    "deepnorm": _preset(
        "x <- g norm((2 L)^(1/4) x + f(x))",
        "gains one; value, out, up and down matrices over (8 L)^(1/4), and none over the house's (2 L)^(1/2)",
        "DeepNorm, arXiv 2203.00555, decoder; its norm is LayerNorm",
        prenorm=False,
    ),
    "highway": _preset(
        "x <- t f(norm(x)) + (1 - t) x, t = sigmoid(norm(x) W / D + b) for every channel",
        "W = 0, b = -2 (the papers take -1 to -3 and a random W)",
        "highway networks, arXiv 1505.00387; their gate reads x as it is",
    ),
    "partial_residual": _preset("x <- f(norm(x)) plus the first router.skip_fraction of the channels of x", NOTHING, PARTIAL),
    "stage_bypass": _preset(
        "in each of router.stages stages, router.skip_fraction of the channels pass untouched, another part in each",
        NOTHING,
        "cross stage partial networks, arXiv 1911.11929, as a decoder: all channels are read, and the parts swap roles",
    ),
    "value_residual": _preset(
        "residual; attention's values are (V_l + V_1) / 2",
        NOTHING,
        "ResFormer, arXiv 2410.17897: fixed halves",
        value_share=0.5,
    ),
    "laurel_rw": _preset(
        "x <- a f(norm(x)) + b x, (a, b) = softmax of two logits",
        "logits zero",
        f"{LAUREL}: RW",
        "ResNet-50, ImageNet: 74.95 to 75.10 % (no loss)",
    ),
    "laurel_lr": _preset(
        "x <- x + f(norm(x)) + x B A, B of D x R, A of R x D",
        "B N(0, 1/D), A = 0",
        f"{LAUREL}: LR",
        "ResNet-50, ImageNet: RW and LR 74.95 to 75.20 % (no loss)",
    ),
    "laurel_pa": _preset(
        "x_{m+1} = x_m + f(norm(x_m)) + sum_j g_mj x_{m-j} over router.window earlier reads",
        "g = 0",
        f"{LAUREL}: PA, whose linear map around x_{{m-j}} is the identity here",
        "LM1B, 6 layers, perplexity 18.98 to 18.99 (in arXiv 2502.06785)",
        0.0005,
    ),
}


def check(config: Config) -> None:
    """Refuses axes of other families, and sizes that leave nothing to a part."""
    router, model = config.router, config.model
    check_unused(config, (*OF_HISTORY, *OF_BOTH), "a history")
    check_unused(config, OF_STREAMS, "n streams")
    if router.preset == "stage_bypass":
        if model.layers % router.stages:
            raise refuse(config, "stages", f"a divisor of model.layers={model.layers} with router.preset='stage_bypass'")
        if not 0 < round(router.skip_fraction * model.dim) < model.dim:
            raise refuse(config, "skip_fraction", f"a share that leaves a channel of model.dim={model.dim} to either part")
    if router.preset == "laurel_lr" and router.rank > model.dim:
        raise refuse(config, "rank", f"at most model.dim={model.dim}")


OWN = ("scaled", "layerscale", "deepnorm", "highway", "partial_residual", "stage_bypass", "value_residual", "laurel_rw")
IDENTITY = ("rezero", "skipinit")


def start(config: Config) -> str:
    """The function before the first update (see `presets.start`)."""
    preset = config.router.preset
    if preset in OWN or config.router.value_share:
        return "own"
    if preset in IDENTITY:
        return "identity"
    return preset if preset in ("plain", "postnorm") else "residual"
