"""Presets that keep the history of earlier outputs: published systems, and cells that nobody has published.

v_0 is the embedding, v_i what site i - 1 wrote, S_m the sources that consumer m sees; q . k is over the root of their width.
Unless a preset says otherwise: queries and biases start at zero, static keys at N(0, 1), key maps so that keys have size one.
Published routers that multiply a key by a query without the square root differ, under Adam, by a factor in the router's rate.
"""

from math import log

from depthroute.config import Config
from depthroute.routing.preset import OF_SINGLE_STREAM, OF_STREAMS, Preset, check_unused, refuse
from depthroute.routing.topology import num_sites

ATTNRES = "Attention Residuals, arXiv 2603.15031"
FULL_KEYS = {"query": "static", "key": "dynamic_full", "mixing": "softmax", "key_gain": True}
LAYER_STATES = {"sites": "layer", "sources": "states"}
NEWEST = {"bias": "learned", "bias_start": "newest", **LAYER_STATES}
MUDD = "MUDDFormer, arXiv 2502.12170"
LIME = "LIMe, arXiv 2502.09245, version 1"
DCA = "DeepCrossAttention, arXiv 2502.06785"
LR = "LR-AttnRes, arXiv 2607.09694"


def _grid(query: str, key: str, equation: str, **more: object) -> Preset:
    axes = {"query": query, "key": key, "mixing": "softmax", **more}
    return Preset(equation, "query zero, keys of size one", "a cell of the key x query grid; not published", "-", None, axes)


def _attnres(equation: str, published: str, difference: float, **axes: object) -> Preset:
    return Preset(equation, "w = 0, gain one", f"{ATTNRES}, table 4", published, difference, {**FULL_KEYS, **axes})


PRESETS: dict[str, Preset] = {
    "attnres": Preset(
        equation="x_m = sum_i softmax_i(w_m . g_m norm(v_i)) v_i",
        init="w = 0, gain one",
        source=f"{ATTNRES}: full",
        published="436M, validation loss 1.766 to 1.737",
        difference=-0.029,
        axes=FULL_KEYS,
    ),
    "attnres_block": Preset(
        equation="as attnres; sources are the embedding, sums of finished blocks and the running sum of the current one",
        init="w = 0, gain one",
        source=f"{ATTNRES}: block",
        published="436M, blocks of 4 sublayers, validation loss 1.766 to 1.746",
        difference=-0.020,
        axes={**FULL_KEYS, "memory": "blocks"},
    ),
    "denseformer": Preset(
        equation="before each layer x_m = sum_i b_mi s_i over states s_i; dilation and period thin sources and consumers",
        init="b one on the newest state, zero else",
        source="DenseFormer, arXiv 2402.02622",
        published="OWT2, 48 blocks, perplexity 18.61 to 17.84 (1x1), 17.87 (4x5)",
        difference=log(17.84 / 18.61),
        axes=NEWEST,
    ),
    "qs_ks": _grid("static", "static", "x_m = sum_i softmax_i(w_m . e_i) v_i"),
    "qs_kd": _grid("static", "dynamic_projected", "x_m = sum_i softmax_i(w_m . P norm(v_i)) v_i"),
    "qd_ks": _grid("dynamic", "static", "x_m = sum_i softmax_i((w_m + W_m norm(z)) . e_i) v_i, z the newest output"),
    "qd_kd": _grid("dynamic", "dynamic_projected", "x_m = sum_i softmax_i((w_m + W_m norm(z)) . P norm(v_i)) v_i"),
    "qd_kh": _grid("dynamic", "hybrid", "as qd_kd with keys e_i + g P norm(v_i), g = 0 at first"),
    "qd_kc": _grid("dynamic", "static_per_consumer", "as qd_ks with keys e_mi of each consumer's own"),
    "qd_centred": _grid("dynamic", "centred", "as qd_kd with keys P norm(v_i - m_i), m_i the running mean of earlier steps"),
    "qd_stop_gradient": _grid("dynamic", "stop_gradient", "as qd_kd with keys P norm(v_i) that pass no gradient to v_i"),
    "qd_sinusoidal": _grid("dynamic", "sinusoidal", "as qd_ks with keys that are fixed waves of the depth: an external clock"),
    "qd_recurrent": _grid(
        "dynamic", "recurrent", "as qd_kd with keys k_i = norm(tanh(U k_{i-1} + P norm(v_i) + b)): an internal clock"
    ),
    "attnres_dynamic_query": _attnres(
        "as attnres with query w_m + W_m norm(z), W_m of D x D", "436M, 1.766 to 1.731", -0.035, query="dynamic"
    ),
    "attnres_static_mixing": Preset(
        equation="x_m = sum_i softmax_i(b_mi) v_i",
        init="b = 0",
        source=f"{ATTNRES}, table 4: input-independent mixing",
        published="436M, 1.766 to 1.749",
        difference=-0.017,
        axes={"bias": "learned", "mixing": "softmax"},
    ),
    "attnres_sigmoid": _attnres("as attnres with sigmoid for softmax", "436M, 1.766 to 1.741", -0.025, mixing="sigmoid"),
    "attnres_no_key_norm": Preset(
        equation="as attnres with keys v_i as they are",
        init="w = 0",
        source=f"{ATTNRES}, table 4",
        published="436M, 1.766 to 1.743",
        difference=-0.023,
        axes={"query": "static", "key": "dynamic_raw", "mixing": "softmax"},
    ),
    "attnres_window": _attnres(
        "as attnres over the embedding and the last 8 sources", "436M, 1.766 to 1.764", -0.002, memory="window"
    ),
    "attnres_multihead": _attnres(
        "as attnres_block with weights for each of 4 groups of channels",
        "436M, 16 heads, block: 1.766 to 1.752",
        -0.014,
        memory="blocks",
        heads=4,
    ),
    "lr_attnres_projected": Preset(
        equation="as qs_kd with keys norm(k_i) that the output projection of site i - 1, D + R wide, emits; k_0 = v_0 P",
        init="w = 0, key outputs as the output projection",
        source=LR,
        published="24 layers, 10B tokens, loss 3.0009 to 2.9538 (R=32)",
        difference=-0.0471,
        axes={"query": "static", "key": "emitted", "mixing": "softmax"},
    ),
    "lr_attnres_sliced": Preset(
        equation="as qs_kd with keys norm(v_i[-R:]), the last channels of the value",
        init="w = 0",
        source=LR,
        published="24 layers, 10B tokens, loss 3.0009 to 2.9682 (R=32)",
        difference=-0.0327,
        axes={"query": "static", "key": "dynamic_sliced", "mixing": "softmax"},
    ),
    "delta_attnres": Preset(
        equation="x_m = sum_i (1 + softmax_i(w_m . g_m norm(v_i))) v_i: the residual stream is kept",
        init="w = 0, gain one",
        source="Delta Attention Residuals, arXiv 2605.18855",
        published="220M, perplexity 38.71 to 36.83",
        difference=log(36.83 / 38.71),
        axes={**FULL_KEYS, "placement": "add"},
    ),
    "dlcl": Preset(
        equation="before each layer x_m = sum_i b_mi norm(s_i) over states",
        init="b one over the number of sources",
        source="DLCL, arXiv 1906.01787 (its norms have a gain)",
        published="a translation score: En-De BLEU, 30 layers, 28.9 (20 layers, no DLCL) to 29.3",
        difference=None,
        axes={"bias": "learned", "bias_start": "mean", "source_norm": True, **LAYER_STATES},
    ),
    "grn_v1": Preset(
        equation="before each layer x_m = sum_i b_mi v_i over what layers added",
        init="b = 1",
        source=f"{DCA}: GRN-v1",
        published="LM1B, 6 layers, perplexity 18.98 to 18.80",
        difference=log(18.80 / 18.98),
        axes={"bias": "learned", "bias_start": "one", "sites": "layer"},
    ),
    "grn_v2": Preset(
        equation="as grn_v1 with a vector b_mi, one weight per channel",
        init="b = 1 (the text states none)",
        source=f"{DCA}: GRN-v2",
        published="LM1B, 6 layers, perplexity 18.98 to 18.43",
        difference=log(18.43 / 18.98),
        axes={"bias": "per_channel", "bias_start": "one", "sites": "layer"},
    ),
    "grn_v3": Preset(
        equation="as grn_v2 plus relu(w_m . v_i) on all channels; relu has half its slope at zero, or w could never leave it",
        init="b = 1, w = 0",
        source=f"{DCA}: GRN-v3",
        published="LM1B, 6 layers, perplexity 18.98 to 18.41",
        difference=log(18.41 / 18.98),
        axes={
            "query": "static",
            "key": "dynamic_raw",
            "mixing": "relu",
            "bias": "per_channel",
            "bias_start": "one",
            "sites": "layer",
        },
    ),
}
_GRN = PRESETS["grn_v3"].axes
PRESETS |= {
    "dca": Preset(
        equation="a grn_v3 for each of attention's query, key and value; the residual is the query's",
        init="as grn_v3",
        source=DCA,
        published="LM1B, 6 layers, perplexity 18.98 to 18.06",
        difference=log(18.06 / 18.98),
        axes={**_GRN, "ways": "qkv"},
    ),
    "k_dca": Preset(
        equation="dca over the first source, the last 8, and the sum of those between",
        init="as grn_v3",
        source=f"{DCA}: k-DCA",
        published="C4, 13 layers, k=8, perplexity 21.534 to 20.392",
        difference=log(20.392 / 21.534),
        axes={**_GRN, "ways": "qkv", "memory": "ends"},
    ),
    "mudd_static": Preset(
        equation="before each layer x_m = sum_i b_mi s_i, one way: denseformer",
        init="b one on the newest state",
        source=f"{MUDD}: static, one way",
        published="405M, perplexity 11.68 to 11.44",
        difference=log(11.44 / 11.68),
        axes=NEWEST,
    ),
    "mudd_dynamic": Preset(
        equation="weights gelu(norm(s_newest) W1) W2 + b, no softmax; W1 of D x |S_m|, W2 of |S_m| x |S_m|",
        init="W1 N(0, 1/D), W2 = 0, b one on the newest state",
        source=f"{MUDD}: dynamic, one way",
        published="405M, perplexity 11.68 to 11.09",
        difference=log(11.09 / 11.68),
        axes={**NEWEST, "query": "mlp", "key": "static_per_consumer"},
    ),
    "mudd_static_multiway": Preset(
        equation="mudd_static, apart for attention's query, key, value and for the residual",
        init="as mudd_static",
        source=f"{MUDD}: static, four ways",
        published="405M, perplexity 11.68 to 11.27",
        difference=log(11.27 / 11.68),
        axes={**NEWEST, "ways": "qkvr"},
    ),
    "mudd": Preset(
        equation="mudd_dynamic, apart for attention's query, key, value and for the residual, from one hidden layer of 4 |S_m|",
        init="as mudd_dynamic",
        source=MUDD,
        published="405M, perplexity 11.68 to 10.83",
        difference=log(10.83 / 11.68),
        axes={**NEWEST, "query": "mlp", "key": "static_per_consumer", "ways": "qkvr"},
    ),
    "lime_static": Preset(
        equation="keys and values of head g from sum_i softmax_i(b_mgi) norm(s_i), each a mix of its own; the rest is residual",
        init="b = 0 (published: a small random table)",
        source=f"{LIME}: static",
        published="1.2B, average of 1-shot tasks 57.7 to 58.3 (no loss)",
        difference=None,
        axes={"bias": "learned", "mixing": "softmax", "ways": "kv", "source_norm": True, **LAYER_STATES},
    ),
    "lime_dynamic": Preset(
        equation="as lime_static with scores norm(s_newest) . e_mgi: a dynamic query, a static key per consumer",
        init="e = 0",
        source=f"{LIME}: dynamic",
        published="1.2B, average of 1-shot tasks 57.7 to 58.4 (no loss)",
        difference=None,
        axes={
            "query": "input",
            "key": "static_per_consumer",
            "mixing": "softmax",
            "ways": "kv",
            "source_norm": True,
            **LAYER_STATES,
        },
    ),
}


def check(config: Config) -> None:
    """Refuses axes of other families and combinations that make no sense, naming both fields."""
    check_unused(config, OF_STREAMS, "n streams")
    check_unused(config, OF_SINGLE_STREAM, "a single stream")
    for part in (_check_scores, _check_memory, _check_mixes):
        part(config)


def _check_scores(config: Config) -> None:
    router, model = config.router, config.model
    if (router.query == "none") != (router.key == "none"):
        raise refuse(config, "key", f"'none' exactly when router.query is 'none' (it is {router.query!r}); a score needs both")
    if router.query in ("mlp", "input") and router.key != "static_per_consumer":
        raise refuse(config, "key", f"'static_per_consumer' with router.query={router.query!r}, whose maps are keys")
    if router.query == "mlp" and router.bias == "none":
        raise refuse(config, "bias", "'learned' with router.query='mlp'; all weights would start at zero")
    if router.mixing == "free" and router.bias == "none":
        raise refuse(config, "bias", "'learned' with router.mixing='free'; all weights would start at zero")
    if router.mixing == "free" and router.bias_start == "zero":
        raise refuse(config, "bias_start", "'one', 'newest' or 'mean' with router.mixing='free'; weights would start at zero")
    if router.mixing == "relu" and router.bias != "per_channel":
        raise refuse(config, "bias", "'per_channel' with router.mixing='relu'; all weights would start at zero")
    if router.bias == "per_channel" and router.mixing not in ("relu", "free"):
        raise refuse(config, "bias", f"'none' or 'learned' with router.mixing={router.mixing!r}; channels are added to weights")
    if router.bias == "none" and router.bias_start != "zero":
        raise refuse(config, "bias_start", "'zero' with router.bias='none'")
    if router.rank > model.dim:
        raise refuse(config, "rank", f"at most model.dim={model.dim}")
    if router.key_gain and router.key != "dynamic_full":
        raise refuse(config, "key_gain", f"False with router.key={router.key!r}; the gain is that of full-width keys")
    if router.key == "emitted" and router.sites != "sublayer":
        raise refuse(config, "sites", "'sublayer' with router.key='emitted'; an output projection emits a key")


def _check_memory(config: Config) -> None:
    router, sites = config.router, num_sites(config)
    if router.memory == "blocks" and router.sources == "states":
        raise refuse(config, "sources", "'outputs' with router.memory='blocks'; blocks are sums of outputs")
    if router.memory == "blocks" and router.blocks > sites:
        raise refuse(config, "blocks", f"at most the number of {router.sites}s, {sites}")
    if router.memory == "blocks" and router.key in ("emitted", "recurrent", "centred"):
        raise refuse(config, "key", "a key of a block's sum with router.memory='blocks'; this one belongs to a single output")
    if router.memory == "blocks" and router.source_norm:
        raise refuse(config, "source_norm", "False with router.memory='blocks'; blocks are sums of outputs")
    if router.memory == "dilated" and router.sources == "outputs":
        raise refuse(config, "sources", "'states' with router.memory='dilated'; leaving outputs out would cut the stream")
    if router.memory == "dilated" and router.period > sites:
        raise refuse(config, "period", f"at most the number of {router.sites}s, {sites}; no consumer would mix")
    if router.memory == "ends" and router.sources == "states":
        raise refuse(config, "sources", "'outputs' with router.memory='ends', whose middle is a sum")
    if router.memory == "ends" and router.key not in ("none", "dynamic_raw", "static_per_consumer"):
        allowed = "'none', 'dynamic_raw' or 'static_per_consumer' with router.memory='ends', whose middle is a sum"
        raise refuse(config, "key", allowed)


def _check_mixes(config: Config) -> None:
    router, model = config.router, config.model
    if router.ways != "one" and router.sites != "layer":
        raise refuse(config, "ways", "'one' with router.sites='sublayer'; ways are inputs of a layer's attention")
    if router.ways == "kv" and (router.sources != "states" or router.placement != "replace"):
        raise refuse(config, "ways", "'kv' with router.sources='states' and router.placement='replace' alone")
    if router.heads > 1 and router.ways != "one":
        raise refuse(config, "heads", f"1 with router.ways={router.ways!r}")
    if router.heads > 1 and router.bias == "per_channel":
        raise refuse(config, "heads", "1 with router.bias='per_channel'")
    if model.dim % router.heads:
        raise refuse(config, "heads", f"a divisor of model.dim={model.dim}")
    if router.placement == "add" and (router.sources != "outputs" or router.ways != "one"):
        raise refuse(config, "placement", "'replace' with router.sources='states' or several ways")


def start(config: Config) -> str:
    """The function before the first update (see `presets.start`).

    A zero query makes the weights uniform, and the sublayers' norms remove the scale of a uniform mean, so reading outputs at
    sublayer sites starts as the pre-norm residual network. At layer sites the inner residual sees that scale, so there only
    weights of exactly one (on outputs) or one on the newest (on states) do, which is how learned biases of free mixing start.
    A window or a uniform mean over raw outputs that leaves some out does not.
    """
    router = config.router
    if router.source_norm or router.ways == "kv":
        return "own"
    if router.bias_start in ("one", "newest"):
        return "residual" if (router.bias_start == "one") == (router.sources == "outputs") else "own"
    whole = router.memory in ("full", "blocks") and router.mixing != "free"
    return "residual" if whole and router.sources == "outputs" and router.sites == "sublayer" else "own"
