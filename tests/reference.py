"""The decoder once more, in float64 NumPy, as slow and literal as its equations: the independent truth of the tests.

Nothing here is shared with the library but the config, the names of families and the layout of the parameter tree.
"""

import jax
import numpy as np
from reference_blocks import rms_norm, sites
from reference_history import depth_attention
from reference_single import single_stream
from reference_streams import streams

from depthroute.routing.presets import HISTORY, SINGLE_STREAM, STREAMS, family_of

FAMILIES = {SINGLE_STREAM: single_stream, HISTORY: depth_attention, STREAMS: streams}


def decoder(config, params, tokens_BT):
    """Logits [B, T, V], and scores and weights of every consumer or None for a router without weights."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    run = FAMILIES[family_of(config)]
    x0 = p["embed"]["VD"][np.asarray(tokens_BT)]
    x, scores, weights = run(config, p["router"], x0, sites(config, p["layers"], x0))
    if "norm" in p:
        x = rms_norm(x, config.model.stream_eps) * p["norm"]["gain"]["D"]
    return x @ p["embed" if config.model.tied_head else "head"]["VD"].T, scores, weights
