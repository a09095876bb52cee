"""One benchmark from start to end: depth by depth, with the machine measured before, between and after."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from depthroute.bench import machine
from depthroute.bench.arms import BASELINE, Plan
from depthroute.bench.machine import Probe
from depthroute.bench.measure import WARMUP, Measured, compile_step, measure
from depthroute.bench.records import make_records
from depthroute.config import to_dict
from depthroute.runs import provenance

Document = dict[str, Any]


def run(plan: Plan, repeats: int, save: Callable[[Document], None]) -> Document:
    """Measures every arm of `plan` at every depth, hands what there is to `save` after each depth, and returns it all.

    On a terminal a bar shows progress on the standard error; it is drawn between measurements, never during one.
    """
    jax.config.update("jax_enable_compilation_cache", False)  # compiling is measured
    first = next(iter(plan.values()))[BASELINE]
    total = 1 + sum(1 + len(configs) + WARMUP + repeats for configs in plan.values())
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("measuring the machine", total=total)

        def tick(where: str, what: str) -> None:
            progress.update(task, advance=1, description=where + what, refresh=True)

        prober = machine.Prober(first)
        probes = [prober.measure()]
        tick("", "starting the compiler")
        compile_step(first)
        measured: dict[int, dict[str, Measured]] = {}
        for layers, configs in plan.items():
            measured[layers] = measure(configs, repeats, partial(tick, f"{layers} layers: "))
            tick("", "measuring the machine")
            probes.append(prober.measure())
            save(_document(plan, measured, probes, repeats))
    return _document(plan, measured, probes, repeats)


def _document(plan: Plan, measured: dict[int, dict[str, Measured]], probes: list[Probe], repeats: int) -> Document:
    config = next(iter(plan.values()))[BASELINE]
    best = Probe(max(p.peak_flops for p in probes), max(p.bandwidth for p in probes))
    devices = [f"{device.platform}:{device.device_kind}" for device in jax.devices()]
    found = provenance.collect("none", "uniform random tokens", devices)
    return {
        "rejected": machine.drift(probes),
        "shape": {
            "batch": config.data.batch,
            "seq_len": config.data.seq_len,
            **{name: getattr(config.model, name) for name in ("dim", "heads", "mlp_dim", "vocab")},
        },
        "dtype": config.model.dtype,
        "history": config.engine.history,
        "remat": config.model.remat,
        "devices": devices,
        "repeats": repeats,
        "warmup": WARMUP,
        "peak_flops": {"before": probes[0].peak_flops, "after": probes[-1].peak_flops, "best": best.peak_flops},
        "bandwidth": {"before": probes[0].bandwidth, "after": probes[-1].bandwidth, "best": best.bandwidth},
        "config": to_dict(config),
        "provenance": {name: value for name, value in found.items() if name != "git_diff"},
        "records": make_records(plan, measured, best),
    }
