"""Training steps of depthroute against those of what else people would use, at one shape, in one run.

    python -m benchmarks.peers.run [--routers residual,attnres] [--repeats N] [--json] [--out DIR] [--config.FIELD=VALUE ...]

Every arm is a process of its own, so that its peak of resident memory is its own; this one imports neither JAX nor PyTorch. Per
router all processes are alive at once and take turns, a step each; a waiting one uses no CPU. Before anything is timed,
PyTorch's models are checked to compute what depthroute's do. `make bench-peers` makes the environment and runs it.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import table
from benchmarks.peers.arms import OURS, PEERS, ROUTERS, Arm, arms, make_config, packages, shape
from benchmarks.peers.protocol import Worker, WorkerFailed
from depthroute.config import Config, parse_overrides
from depthroute.errors import UserError, bad_value, unknown_name
from depthroute.runs import provenance
from depthroute.runs.folder import write_json

ROUND_KEPT = 1  # rounds before it are not kept
BUSY = 100.0  # preemptions per second of a step
AWAKE = 0.01  # CPU time of waiting processes over time measured
Record = dict[str, Any]
Tick = Callable[[str], None]


def measure(commands: Mapping[Arm, Sequence[str]], repeats: int, tick: Tick) -> list[Record]:
    """One record per arm: what its worker said of itself, and of `repeats` turns, or why it `failed`.

    Workers are started one after another and then take turns, forwards and backwards; `tick` is told of each start and round.
    """
    answers: dict[Arm, list[Record]] = {}
    found: dict[Arm, Record] = {}
    with ExitStack() as stack:
        workers = {}
        for arm, command in commands.items():
            tick(f"{arm.router}: preparing {arm.implementation}, {arm.variant}")
            try:
                worker = stack.enter_context(Worker(command))
            except WorkerFailed as error:
                found[arm] = {"failed": str(error)}
                continue
            workers[arm], answers[arm], found[arm] = worker, [], worker.facts
        for count in range(ROUND_KEPT + repeats):
            tick(f"{next(iter(commands)).router}: round {count + 1} of {ROUND_KEPT + repeats}")
            for arm in reversed(list(workers)) if count % 2 else workers:
                answers[arm].append(workers[arm].ask())
    return [{**arm._asdict(), **found[arm], **summary(answers.get(arm, [])[ROUND_KEPT:])} for arm in commands]


def summary(answers: Sequence[Record]) -> Record:
    """Fastest and median step, peak memory, and how quiet it was, from the answers of one worker; nothing from none."""
    if not answers:
        return {}
    steps_s = [answer["step_s"] for answer in answers]
    return {
        "step_s": min(steps_s),
        "median_s": median(steps_s),
        "peak_bytes": answers[-1]["peak_bytes"],
        "preemptions_per_s": median(answer["preemptions"] / answer["step_s"] for answer in answers),
        "idle_cpu_s": sum(answer["idle_cpu_s"] for answer in answers),
        "steps_s": steps_s,
    }


def with_ratios(records: Sequence[Record]) -> list[Record]:
    """Adds to every peer `time_ratio` and `peak_ratio`: those of our arms of the same router, by variant, over the peer's."""
    done = []
    for record in records:
        ours = [r for r in records if r["implementation"] == OURS and r["router"] == record["router"] and "step_s" in r]
        ratios = {}
        if record["implementation"] != OURS and "step_s" in record:
            ratios["time_ratio"] = {r["variant"]: r["step_s"] / record["step_s"] for r in ours}
            ratios["peak_ratio"] = {r["variant"]: r["peak_bytes"] / record["peak_bytes"] for r in ours}
        done.append({**record, **ratios})
    return done


def disturbance(records: Sequence[Record]) -> str | None:
    """Why a run with these records is rejected: processes that lost their cores, or that did not sleep while they waited."""
    timed = [record for record in records if "step_s" in record]
    for record in timed:
        if record["preemptions_per_s"] > BUSY:
            lost = (
                f"{record['implementation']}, {record['variant']} lost a core {record['preemptions_per_s']:.0f} times a second"
            )
            return f"{lost}; the machine was not quiet"
    awake, total = (sum(f(record) for record in timed) for f in (lambda r: r["idle_cpu_s"], lambda r: sum(r["steps_s"])))
    if awake > AWAKE * total:
        return f"waiting processes used {awake:.2f} s of CPU in {total:.2f} s of steps"
    return None


def run(
    routers: Sequence[str], overrides: Mapping[str, str], repeats: int, tick: Tick, save: Callable[[Record], None]
) -> Record:
    """The whole measurement, as one document; what there is of it goes to `save` after every router.

    Raises UserError if functions that should be the same differ.
    """
    config = make_config(routers[0], overrides)
    flags = [f"--config.{name}={value}" for name, value in overrides.items()]
    load_before = os.getloadavg()[0]

    def command(*names: str) -> list[str]:
        return [sys.executable, "-m", "benchmarks.peers.worker", *names, *flags]

    tick("comparing functions")
    with Worker(command("parity")) as worker:
        parity = worker.facts["parity"]
    with Worker(command("machine")) as machine:
        tick("measuring the machine")
        probes, records = [machine.ask()], []
        for router in routers:
            records += measure({arm: command(*arm) for arm in arms(router)}, repeats, tick)
            tick("measuring the machine")
            probes.append(machine.ask())
            whole = {**_document(config, probes, records), "repeats": repeats, "load_before": load_before, "parity": parity}
            save(whole)
    return whole


def _document(config: Config, probes: Sequence[Record], records: Sequence[Record]) -> Record:
    found = provenance.collect("none", "uniform random tokens", ["cpu"])
    del found["git_diff"]
    versions = {name: provenance.installed_version(name) for name in packages()}
    routers = {record["router"] for record in records}
    return {
        "rejected": probes[-1]["rejected"] or disturbance(records),
        "shape": shape(config),
        "dtype": config.model.dtype,
        "threads": sorted({record["threads"] for record in records if "threads" in record}),
        **{rate: {"before": probes[0][rate], "after": probes[-1][rate]} for rate in ("peak_flops", "bandwidth")},
        "notes": {name: peer.note for name, peer in PEERS.items() if peer.router in routers},
        "provenance": {**found, "versions": {**found["versions"], **versions}},
        "records": with_ratios(records),
    }


def main() -> int:
    """Measures, prints the table, writes peers.json and peers.md. Exit code 1 if the run is rejected, 2 for a user's error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--routers", default=",".join(ROUTERS), metavar="A,B,...", help="by default %(default)s")
    parser.add_argument("--repeats", type=int, default=8, help="timed steps of every arm; by default %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    parser.add_argument("--out", type=Path, help="folder for peers.json and peers.md")
    options, rest = parser.parse_known_args()
    try:
        document = _checked_run(options, rest)
    except UserError as error:
        print(f"bench-peers: {error}", file=sys.stderr)
        return 2
    print(json.dumps(document, indent=1) if options.json else table.page(document))
    return 1 if document["rejected"] else 0


def _checked_run(options: argparse.Namespace, rest: Sequence[str]) -> Record:
    overrides = parse_overrides(rest)
    routers = options.routers.split(",")
    for router in routers:
        if router not in ROUTERS:
            raise unknown_name("router", router, ROUTERS, "--routers")
    if options.repeats < 1:
        raise bad_value("repeats", options.repeats, "at least 1", "--repeats")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)

    def save(document: Record) -> None:
        if options.out:
            write_json(options.out / "peers.json", document)
            (options.out / "peers.md").write_text(table.page(document))

    return run(routers, overrides, options.repeats, lambda what: print(what, file=sys.stderr, flush=True), save)


if __name__ == "__main__":
    sys.exit(main())
