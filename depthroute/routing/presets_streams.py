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
    "mhc_lite": Preset(
        equation="as mhc with c = sum_k softmax(l)_k P_k over all n! permutations",
        init="as mhc; carry logits 0 for the identity and -8 for the others",
        source="mHC-lite, arXiv 2601.05732",
        published="528M, validation loss 1.719 to 1.694 (in arXiv 2603.15031)",
        difference=-0.025,
        axes=_axes("permutations", "dynamic"),
    ),
    "kromhc": Preset(
        equation="as mhc with c the Kronecker product of log2 n matrices [[p, 1-p], [1-p, p]], (p, 1-p) a softmax of two",
        init="as mhc; carry logits (0, -8)",
        source="KromHC, arXiv 2601.21579",
        published="no loss table retrieved",
        difference=None,
        axes=_axes("kronecker", "dynamic"),
    ),
    "orthogonal_hyper": Preset(
        equation="as mhc with c = (I - A) (I + A)^-1, A skew, its entries bent to lie below 8",
        init="as mhc; carry logits 0, so c = I",
        source="Cayley carries: JPmHC, arXiv 2602.18308, and a blog post on mHC, curves alone",
        published="ordering at 1.7B and 8B: behind identity, mHC and mhc-lite; no numbers",
        difference=None,
        axes=_axes("orthogonal", "dynamic"),
    ),
    "identity_hyper": Preset(
        equation="as mhc with c = I: reading is linear attention over depth, query a, key b",
        init="as mhc",
        source="a blog post on mHC with H_res = I, curves alone",
        published="ordering at 1.7B and 8B: identity before mHC before mhc-lite before orthogonal; no numbers",
        difference=None,
        axes=_axes("identity", "dynamic"),
    ),
    "frac_static": Preset(
        equation="h_n a fraction of x; x = concat_o sum_n a_on h_n, h_o <- sum_n c_on h_n + b_o f(norm(x))_o",
        init="a = I, c = I, b = 1",
        source="Frac-Connections, arXiv 2503.14125 (static)",
        published="curves alone",
        difference=None,
        axes=_axes("free", "static", split_width=True),
    ),
    "frac_dynamic": Preset(
        equation="as frac_static, each coefficient plus s tanh(norm(h_n) w)",
        init="as frac_static; w = 0, s = 0.01",
        source="Frac-Connections, arXiv 2503.14125 (dynamic); there the norm has a gain",
        published="OLMoE-7B, 3T tokens, average of tasks 68.30 to 68.65 (no loss)",
        difference=None,
        axes=_axes("free", "dynamic", split_width=True),
    ),
}
LARGEST_PERMUTED = 5  # streams: 120 permutations


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
    _check_streams(config)
    _check_start(config)


def _check_streams(config: Config) -> None:
    router, D, n = config.router, config.model.dim, config.router.streams
    if router.carry_form == "permutations" and n > LARGEST_PERMUTED:
        raise refuse(
            config, "streams", f"at most {LARGEST_PERMUTED} with router.carry_form='permutations'; there are n! of them"
        )
    if router.carry_form == "kronecker" and n & (n - 1):
        raise refuse(config, "streams", "a power of two with router.carry_form='kronecker'")
    if router.split_width and D % n:
        raise refuse(config, "streams", f"a divisor of model.dim={D} with router.split_width=True")
    if router.split_width and router.carry_form != "free":
        raise refuse(config, "carry_form", "'free' with router.split_width=True")
    if router.split_width and router.stream_readout != "sum":
        raise refuse(config, "stream_readout", "'sum' with router.split_width=True; fractions are put together")
    if router.stream_index == "layer" and router.sites == "layer":
        raise refuse(config, "stream_index", "'sublayer' with router.sites='layer', where a site is a layer")


def _check_start(config: Config) -> None:
    """Streams that all start alike and are all treated alike stay copies of one another for ever."""
    router = config.router
    if router.stream_start != "random_maps":
        return
    if router.carry_form == "free":
        raise refuse(config, "stream_start", "'one_hot' with router.carry_form='free'; zero coefficients would read nothing")
    if "dynamic" not in (router.read, router.write):
        allowed = "'one_hot' with router.read='static' and router.write='static'; without maps the streams could never differ"
        raise refuse(config, "stream_start", allowed)


def start(config: Config) -> str:
    """The function before the first update (see `presets.start`).

    Streams start as copies, each with the residual stream in it; all forms but a free carry read them at another scale. Random
    maps make them differ at once. Fractions are put together as they are.
    """
    if config.router.stream_start == "random_maps":
        return "own"
    return "residual" if config.router.carry_form == "free" or config.router.sites == "sublayer" else "own"
