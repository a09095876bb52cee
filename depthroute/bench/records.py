"""From measurements to records: ratios to the baseline, growth over depth, and distances to what the machine could do."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from depthroute.bench import limits
from depthroute.bench.arms import BASELINE, Plan
from depthroute.bench.machine import Probe
from depthroute.bench.measure import Measured
from depthroute.config import Config
from depthroute.model.counts import num_params, training_flops

Record = dict[str, Any]


def make_records(plan: Plan, measured: Mapping[int, Mapping[str, Measured]], probe: Probe) -> list[Record]:
    """One record per router and depth measured, deepest last. `probe` has the best peak and bandwidth of the run.

    step_s, median_s      fastest and median step; step_ratio is that of the fastest to the baseline's at the same depth
    compile_s             lowering (lower_s) and compiling
    temp_bytes            temporary arrays of the compiled step on one device; extra_btd: beyond the baseline's, in [B, T, D]
    slope_btd, exponent   `slope` and `exponent` of temp_bytes, and compile_ratio, from the shallowest to the deepest depth
    slope_net_btd         the same slope with the parameters' gradients, which grow with depth in every arm, taken off
    mfu                   model FLOPs of the step over step_s and the peak
    over_products         step_s over the time that the step's matrix products need at the peak; of the baseline alone
    limit_s, distance     roofline limit of routing, and what routing adds to the step over that limit
    """
    depths = sorted(measured)
    records = []
    for layers in depths:
        baseline = measured[layers][BASELINE]
        for name, m in measured[layers].items():
            config = plan[layers][name]
            ends = [(depth, plan[depth][name], measured[depth][name]) for depth in (depths[0], depths[-1])]
            record = {"router": name, "layers": layers, **_step(config, m, baseline, probe), **_growth(*ends)}
            records.append({**record, "steps_s": list(m.steps_s)})
    return records


def _step(config: Config, m: Measured, baseline: Measured, probe: Probe) -> Record:
    tokens, step_s, baseline_s = limits.tokens_per_device(config), min(m.steps_s), min(baseline.steps_s)
    products_s = limits.product_flops(config) * tokens / probe.peak_flops
    limit_s = limits.routing_limit(config, *probe)
    return {
        "step_s": step_s,
        "median_s": median(m.steps_s),
        "step_ratio": step_s / baseline_s,
        "lower_s": m.lower_s,
        "compile_s": m.lower_s + m.compile_s,
        "temp_bytes": m.temp_bytes,
        "extra_btd": (m.temp_bytes - baseline.temp_bytes) / limits.stream_bytes(config),
        "params": num_params(config),
        "mfu": training_flops(config) * tokens / step_s / probe.peak_flops,
        "over_products": step_s / products_s if m is baseline else None,
        "limit_s": limit_s or None,
        "distance": (step_s - baseline_s) / limit_s if limit_s else None,
    }


def _growth(first: tuple[int, Config, Measured], last: tuple[int, Config, Measured]) -> Record:
    (a, config_a, m_a), (b, config_b, m_b) = first, last
    if a == b:
        return dict.fromkeys(("slope_btd", "slope_net_btd", "exponent", "compile_ratio"))
    net = [m.temp_bytes - limits.gradient_bytes(c) for c, m in ((config_a, m_a), (config_b, m_b))]
    unit = limits.stream_bytes(config_a)
    return {
        "slope_btd": slope((a, b), (m_a.temp_bytes, m_b.temp_bytes), unit),
        "slope_net_btd": slope((a, b), net, unit),
        "exponent": exponent((a, b), (m_a.temp_bytes, m_b.temp_bytes)),
        "compile_ratio": (m_b.lower_s + m_b.compile_s) / (m_a.lower_s + m_a.compile_s),
    }


def slope(layers: Sequence[int], sizes: Sequence[float], unit: float) -> float:
    """Growth per sublayer between two depths, in `unit`; there are two sublayers in a layer."""
    return (sizes[1] - sizes[0]) / (2 * (layers[1] - layers[0])) / unit


def exponent(layers: Sequence[int], sizes: Sequence[float]) -> float:
    """p of sizes that grow as layers^p between two depths."""
    return math.log(sizes[1] / sizes[0]) / math.log(layers[1] / layers[0])
