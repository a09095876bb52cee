"""The systems under test: every preset, and points of the routing space that no preset visits."""

from pathlib import Path

import depthroute
from depthroute import config as config_lib
from depthroute.routing.presets import expand

CONFIGS = Path(__file__).parents[1] / "configs"

# Small enough to run without jit. Three blocks on four sublayers leave a remainder. Eight sequences of eight tokens: a row for
# each device, position and consumer, no token twice among 64, and one shape in all tests, which then share compiled operations.
SMALL = {
    "model.dim": 16,
    "model.mlp_dim": 24,
    "model.vocab": 64,
    "router.rank": 6,
    "router.blocks": 3,
    "router.window": 2,
    "data.seq_len": 8,
    "data.batch": 8,
    "model.remat": False,
    "engine.history": "list",
}

PRESETS = depthroute.presets()


def _softmax(query, key, **axes):
    axes = {"query": query, "key": key, **axes}
    return {"router.preset": "qs_ks", **{f"router.{axis}": value for axis, value in axes.items()}}


VARIANTS = {
    "static_per_consumer": _softmax("static", "static_per_consumer"),
    "dynamic_per_consumer": _softmax("dynamic", "static_per_consumer"),
    "full_keys_dynamic_query": _softmax("dynamic", "dynamic_full", key_gain=True),
    "full_keys_without_gain": _softmax("static", "dynamic_full"),
    "hybrid_static_query": _softmax("static", "hybrid"),
    "query_from_mean": _softmax("dynamic", "static", query_input="mean"),
    "query_from_embedding": _softmax("dynamic", "dynamic_projected", query_input="embedding"),
    "bias_only": _softmax("none", "none", bias="learned"),
    "bias_and_query": _softmax("static", "static", bias="learned"),
    "sigmoid": _softmax("dynamic", "dynamic_projected", mixing="sigmoid"),
    "free_with_query": _softmax("static", "static", mixing="free", bias="learned", bias_start="one"),
    "free_states_with_query": _softmax(
        "dynamic", "hybrid", mixing="free", bias="learned", bias_start="newest", sources="states"
    ),
    "softmax_states": _softmax("dynamic", "dynamic_projected", sources="states"),
    "layer_outputs": _softmax("dynamic", "static", sites="layer"),
    "layer_states_per_consumer": _softmax("static", "static_per_consumer", sites="layer", sources="states"),
    "blocks_static": _softmax("dynamic", "static", memory="blocks"),
    "blocks_of_two": _softmax("dynamic", "hybrid", memory="blocks", query_input="mean") | {"router.blocks": 2},
    "blocks_per_consumer": _softmax("static", "static_per_consumer", memory="blocks"),
    "blocks_projected": _softmax("dynamic", "dynamic_projected", memory="blocks", query_input="mean"),
    "blocks_hybrid": _softmax("dynamic", "hybrid", memory="blocks", bias="learned"),
    "layer_blocks": _softmax("static", "dynamic_full", memory="blocks", sites="layer") | {"router.blocks": 2},
    "free_blocks_of_two": _softmax("none", "none", mixing="free", bias="learned", bias_start="one", memory="blocks")
    | {"router.blocks": 2},
    "sinusoidal_static_query": _softmax("static", "sinusoidal", memory="blocks"),
    "recurrent_static_query": _softmax("static", "recurrent", bias="learned"),
    "centred_states": _softmax("dynamic", "centred", sources="states", sites="layer"),
    "sliced_window": _softmax("dynamic", "dynamic_sliced", memory="window", query_input="mean"),
    "raw_keys_sigmoid": _softmax("dynamic", "dynamic_raw", mixing="sigmoid"),
    "added_blocks": _softmax("dynamic", "static", placement="add", memory="blocks", query_input="embedding"),
    "heads_projected": _softmax("dynamic", "dynamic_projected", heads=4, query_input="mean"),
    "heads_full_states": _softmax("static", "dynamic_full", key_gain=True, heads=2, sources="states", sites="layer"),
    "ways_qkv_softmax": _softmax("dynamic", "hybrid", ways="qkv", sites="layer", memory="window"),
    "ways_qkvr_states": _softmax("static", "dynamic_full", ways="qkvr", sites="layer", sources="states", source_norm=True),
    "mlp_outputs": _softmax("mlp", "static_per_consumer", ways="qkv", sites="layer", bias="learned"),
    "input_query": _softmax("input", "static_per_consumer"),
    "ends_of_biases": {"router.preset": "grn_v2", "router.memory": "ends", "router.sites": "sublayer", "model.layers": 3},
    "k_dca_deep": {"router.preset": "k_dca", "model.layers": 4},
    "kv_dynamic": {"router.preset": "lime_dynamic", "router.query": "dynamic", "router.key": "dynamic_projected"},
    "kv_grouped": {"router.preset": "lime_static", "model.kv_heads": 1, "model.layers": 3},
    "dilated_states": _softmax("dynamic", "dynamic_projected", sources="states", memory="dilated")
    | {"router.dilation": 2, "model.layers": 3},
    "denseformer_2x2": {"router.preset": "denseformer", "router.memory": "dilated", "router.dilation": 2, "router.period": 2}
    | {"model.layers": 4},
    "hyper_static_read": {
        "router.preset": "hyper_dynamic",
        "router.read": "static",
        "router.squash": False,
        "router.streams": 2,
    },
    "hyper_static_carry": {"router.preset": "hyper_dynamic", "router.carry": "static"},
    "mhc_static_write": {"router.preset": "mhc", "router.write": "static", "router.streams": 3},
    "mhc_static_carry": {"router.preset": "mhc", "router.carry": "static", "router.read": "static"},
    "mhc_lite_three": {"router.preset": "mhc_lite", "router.streams": 3, "router.read": "static"},
    "mhc_lite_static_carry": {"router.preset": "mhc_lite", "router.carry": "static", "router.write": "static"},
    "kromhc_eight": {"router.preset": "kromhc", "router.streams": 8, "router.write": "static"},
    "orthogonal_two": {"router.preset": "orthogonal_hyper", "router.streams": 2, "router.carry": "static"},
    "frac_read_static": {"router.preset": "frac_dynamic", "router.read": "static", "router.squash": False, "router.streams": 2},
    "mhc_layer_index": {"router.preset": "mhc", "router.stream_index": "layer", "router.streams": 2},
    "mhc_random_maps": {"router.preset": "mhc", "router.stream_start": "random_maps"},
    "mhc_learned_readout": {"router.preset": "mhc", "router.stream_readout": "learned"},
    "hyper_learned_readout": {"router.preset": "hyper_dynamic", "router.stream_readout": "learned"},
    "hyper_layers": {"router.preset": "hyper_static", "router.sites": "layer"},
    "gelu_untied": {"router.preset": "residual", "model.mlp": "gelu", "model.tied_head": False},
}

# Points that share no axis value with each other or with a preset; the rest wait for the slow lane.
FAST_VARIANTS = (
    "dynamic_per_consumer",
    "full_keys_dynamic_query",
    "query_from_embedding",
    "bias_and_query",
    "free_states_with_query",
    "layer_states_per_consumer",
    "blocks_hybrid",
    "denseformer_2x2",
    "added_blocks",
    "heads_projected",
    "ways_qkv_softmax",
    "mlp_outputs",
    "k_dca_deep",
    "kv_grouped",
    "kromhc_eight",
    "mhc_static_carry",
    "mhc_learned_readout",
    "mhc_layer_index",
    "hyper_layers",
    "gelu_untied",
)

CASES = {preset: {"router.preset": preset} for preset in PRESETS} | VARIANTS


def tiny(**overrides):
    """configs/tiny.py made smaller still, with a preset's axes and then `overrides` on top, resolved."""
    config, _ = config_lib.load_file(CONFIGS / "tiny.py")
    return config_lib.resolve(config_lib.overlay(config, {**SMALL, **expand(overrides)}))
