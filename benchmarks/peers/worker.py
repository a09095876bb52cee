"""One process of `make bench-peers`; its parent starts it and talks to it by `protocol`.

python -m benchmarks.peers.worker machine [--config.FIELD=VALUE ...]                            GEMM peak and bandwidth
python -m benchmarks.peers.worker parity [--config.FIELD=VALUE ...]                             equality of functions, once
python -m benchmarks.peers.worker ROUTER IMPLEMENTATION VARIANT [--config.FIELD=VALUE ...]      a training step
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.peers.arms import OUR_VARIANTS, OURS, PEER_VARIANTS, ROUTERS, make_config
from benchmarks.peers.protocol import Facts, Turn, checked, serve
from depthroute.config import Config, parse_overrides

WARMUP = 2  # steps before a worker is ready; the first compiles


def start(arguments: Sequence[str]) -> tuple[Facts, Turn]:
    """The facts and the turn that the arguments name. Libraries are imported by the arms that are made of them alone."""
    names = [argument for argument in arguments if not argument.startswith("--config.")]
    overrides = parse_overrides(arguments[len(names) :])
    match names:
        case ["machine"]:
            return {}, _machine_turn(make_config(ROUTERS[0], overrides))
        case ["parity"]:
            from benchmarks.peers import parity

            return parity.check(overrides, random_tokens), dict
        case [router, implementation, variant]:
            facts, turn = _start_arm(make_config(router, overrides), implementation, variant)
            for _ in range(WARMUP):
                turn()
            return facts, turn
    raise SystemExit(__doc__)


def random_tokens(config: Config) -> np.ndarray:
    """The batch of all arms, [B, T + 1]; which tokens it has does not matter to time."""
    return np.random.default_rng(0).integers(
        config.model.vocab, size=(config.data.batch, config.data.seq_len + 1), dtype=np.int32
    )


def _start_arm(config: Config, implementation: str, variant: str) -> tuple[Facts, Turn]:
    if implementation == OURS:
        return _start_ours(config, OUR_VARIANTS[variant])
    from benchmarks.peers import torch_arms

    return torch_arms.start(config, implementation, PEER_VARIANTS[variant], random_tokens(config))


def _start_ours(config: Config, remat: bool) -> tuple[Facts, Turn]:
    import jax

    from depthroute.model.counts import num_params
    from depthroute.runs.provenance import visible_cores
    from depthroute.training.parallel import make_programs

    config = replace(config, model=replace(config.model, remat=remat))
    programs = make_programs(config)
    state, tokens_BT = programs.init(jax.random.key(0)), programs.put(random_tokens(config))

    def turn() -> Facts:
        nonlocal state
        state, metrics = jax.block_until_ready(programs.step(state, tokens_BT))
        return checked(float(metrics["loss"]))

    return {"params": num_params(config), "threads": len(visible_cores())}, turn


def _machine_turn(config: Config) -> Turn:
    from depthroute.bench import machine

    prober, probes = machine.Prober(config), []

    def turn() -> Facts:
        probes.append(prober.measure())
        return {**probes[-1]._asdict(), "rejected": machine.drift(probes)}

    return turn


if __name__ == "__main__":
    serve(lambda: start(sys.argv[1:]))
