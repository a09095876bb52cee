"""Presets that keep n streams: hyper-connections and what followed."""

from depthroute.config import Config
from depthroute.routing.preset import OF_HISTORY, OF_SINGLE_STREAM, Preset, check_unused, refuse


def _axes(form: str, kind: str, **more: object) -> dict[str, object]:
    return {"read": kind, "carry": "none" if form == "identity" else kind, "write": kind, "carry_form": form, **more}


PRESETS: dict[str, Preset] = {
    "hyper_static": Preset(
        equation="x = sum_n a_n h_n, h_o <- sum_n c_on h_n + b_o f(norm(x)); read-out sum_n h_n",
        init="a one-hot at stream m mod n (m counts sublayers), c = I, b = 1, streams copies of the embedding",
        source="Zhu et al., arXiv 2409.19606 (SHC)",
        published="OLMo-1B, 500B tokens, V2 loss: 2.811 to 2.799 (n=2), 2.791 (n=4)",
        difference=-0.020,
        axes=_axes("free", "static"),
    ),
    "hyper_dynamic": Preset(
        equation="as hyper_static, each coefficient plus s tanh(norm(h_n) w)",
        init="as hyper_static; w = 0, s = 0.01",
        source="Zhu et al., arXiv 2409.19606 (DHC)",
        published="OLMo-1B, 500B tokens, V2 loss: 2.811 to 2.819 (n=1), 2.802 (2), 2.781 (4), 2.778 (8)",
        difference=-0.030,
        axes=_axes("free", "dynamic"),
    ),
    "mhc": Preset(
        equation="logits l = l_0 + s norm(h_0 .. h_n) w; a = sigmoid, b = 2 sigmoid, c = Sinkhorn(exp l), 20 iterations",
        init="w = 0, s = 0.01; read 1 for stream m mod n and -1 else, write 0, carry 0 on the diagonal and -8 off it",
        source="mHC, arXiv 2512.24880; initial logits, which the paper leaves out, of the mhc-lite code (arXiv 2601.05732)",
        published="27B, loss -0.021 to the baseline",
        difference=-0.021,
        axes=_axes("sinkhorn", "dynamic"),
    ),
    "identity_hyper": Preset(
        equation="as mhc with c = I: reading is linear attention over depth, query a, key b",
        init="as mhc",
        source="a blog post on mHC with H_res = I, curves alone",
        published="ordering at 1.7B and 8B: identity before mHC before mhc-lite before orthogonal; no numbers",
        difference=None,
        axes=_axes("identity", "dynamic"),
    ),
}


def check(config: Config) -> None:
    """Refuses axes of other families and combinations that make no sense."""
    router = config.router
    check_unused(config, OF_HISTORY, "a history")
    check_unused(config, OF_SINGLE_STREAM, "a single stream")
    for axis in ("read", "write"):
        if getattr(router, axis) == "none":
            raise refuse(config, axis, f"'static' or 'dynamic' with router.preset={router.preset!r}")
    if (router.carry == "none") != (router.carry_form == "identity"):
        raise refuse(config, "carry", f"'none' exactly when router.carry_form is 'identity' (it is {router.carry_form!r})")


def start(config: Config) -> str:
    """The function before the first update (see `presets.start`).

    Streams start as copies, each with the residual stream in it; all forms but a free carry read them at another scale.
    """
    return "residual" if config.router.carry_form == "free" or config.router.sites == "sublayer" else "own"
