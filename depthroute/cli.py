"""The command line: ``depthroute <command>``. Nothing here imports JAX until a command needs it."""

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from depthroute.errors import UserError

Arguments = argparse.Namespace


def _planned_config(arguments: Arguments):
    from depthroute.config import load_file, overlay, parse_overrides
    from depthroute.routing.presets import expand

    config, module = load_file(arguments.config)
    return overlay(config, expand(parse_overrides(arguments.overrides))), module


def train(arguments: Arguments) -> int:
    """Runs one config in one folder."""
    from depthroute.config import resolve
    from depthroute.routing.presets import check
    from depthroute.runs.sweep import check_name

    config = resolve(_planned_config(arguments)[0])
    check(config)
    check_name(config.arm)

    from depthroute.runs.run import StopRequest, execute

    code = execute(config, arguments.workdir, StopRequest())
    if code == 0:
        result = json.loads((arguments.workdir / "result.json").read_text())
        loss = f"{result['eval_split']} loss {result['val_loss']:.4f} nats/token"
        print(f"done: {loss}, {result['steps']} steps, parameters sha256 {result['params_sha256']}")
    return code


def sweep(arguments: Arguments) -> int:
    """Runs what is missing of a sweep, then prints its table and writes table.md and report.html."""
    from depthroute.config import load_file, resolve
    from depthroute.launch import local
    from depthroute.runs.sweep import plan

    planned = plan(*_planned_config(arguments))
    jobs = arguments.jobs or local.default_jobs()
    local.check_jobs(jobs)
    if arguments.dry_run:
        base = resolve(load_file(arguments.config)[0])
        print("\n".join(local.commands(planned, arguments.config, base, arguments.workdir)))
        return 0
    code = local.run_sweep(planned, arguments.workdir, jobs)
    if code == local.EXIT_REQUEUE:
        print("interrupted; everything is saved, run the same command to go on", file=sys.stderr)
        return code
    _write_outputs(arguments.workdir)
    if code:
        print(f"some runs failed; `depthroute status {arguments.workdir}` says why", file=sys.stderr)
    return code


def _write_outputs(workdir: Path) -> None:
    from depthroute.runs import registry, report, tables

    record = registry.load_sweep(workdir)
    markdown = tables.markdown(tables.summarise(record))
    (workdir / "table.md").write_text(markdown)
    report.write(record, workdir / "report.html")
    print(f"{markdown}\nwritten: {workdir / 'table.md'}, {workdir / 'report.html'}")


def status(arguments: Arguments) -> int:
    """A line per run: state, step, loss, speed, time left, and why it stopped."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from depthroute.runs.registry import load_sweep

    table = Table("run", "state", "step", "train loss, nats/token", "tokens/s", "s left", "reason", box=None)
    for run in load_sweep(arguments.folder).runs:
        found = run.status
        if found is None:
            table.add_row(Text(run.name), "missing", "-", "-", "-", "-", Text(run.problem or ""))
            continue
        numbers = (
            _number(found.get(name), form) for name, form in (("loss", ".4f"), ("tokens_per_s", ",.0f"), ("eta_s", ".0f"))
        )
        reason = str(found.get("reason", "")).strip().splitlines()[-1:] or [run.problem or ""]
        steps = f"{found.get('step', '?')}/{found.get('steps', '?')}"
        table.add_row(Text(run.name), Text(str(found.get("state", "?"))), steps, *numbers, Text(reason[0]))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, (int, float)) else "-"


def table(arguments: Arguments) -> int:
    """Prints the results table of a sweep folder."""
    from depthroute.runs import registry, tables

    print(tables.render(tables.summarise(registry.load_sweep(arguments.folder), arguments.baseline), arguments.format), end="")
    return 0


def bench(arguments: Arguments) -> int:
    """Step time, memory and compile time of every router against plain residual."""
    from depthroute.bench import arms
    from depthroute.config import load_file, parse_overrides

    a = arguments
    routers, layers = arms.parse_names(a.routers) or arms.DEFAULT_ROUTERS, arms.parse_layers(a.layers)
    plan = arms.make_plan(load_file(a.config)[0], parse_overrides(a.overrides), routers, layers)

    from depthroute.bench import output
    from depthroute.bench.run import run

    output.check(a.repeats, a.out, a.readme)
    document = run(plan, a.repeats, lambda document: output.write(document, a.out))
    if document["rejected"]:
        print(f"depthroute: rejected: {document['rejected']}", file=sys.stderr)
    elif a.readme:
        output.rewrite(a.readme, document, a.out)
    print(json.dumps(document, indent=1) + "\n" if a.json else output.table(document), end="")
    return 1 if document["rejected"] else 0


def data_prepare(arguments: Arguments) -> int:
    """Tokenises a corpus into .bin shards."""
    from depthroute.data.prepare import prepare

    a = arguments
    manifest = prepare(a.source, a.files, a.tokenizer, a.train_bpe_vocab, a.out, a.name)
    print(json.dumps(manifest, indent=2))
    return 0


def data_info(arguments: Arguments) -> int:
    """Prints what a config's corpus holds."""
    from depthroute.config import resolve
    from depthroute.data.prepare import info

    config = resolve(_planned_config(arguments)[0])
    print(json.dumps(info(config.data, config.model.vocab), indent=2))
    return 0


def routers(arguments: Arguments) -> int:
    """Every preset: its equation, axes, start, source and published numbers."""
    from depthroute.routing import catalogue

    if arguments.json:
        print(json.dumps(catalogue.records(), indent=2))
    elif arguments.markdown:
        print(catalogue.markdown(), end="")
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 160).print(catalogue.table())
    return 0


def residual(arguments: Arguments) -> int:
    """Prints what a residual connection does, in numbers to check by hand."""
    from depthroute.residual import report

    print(report())
    return 0


def doctor(arguments: Arguments) -> int:
    """Prints what this machine has and what is missing for what."""
    from depthroute.doctor import report

    print(report())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="depthroute",
        description="Experiments on how a transformer's layers choose among the outputs of earlier ones.",
        epilog="example: depthroute sweep --config configs/ablations/key_query_grid.py --workdir runs/key_query_grid",
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(parent, name: str, run: Callable[[Arguments], int], example: str) -> argparse.ArgumentParser:
        about = (run.__doc__ or "").strip()
        added = parent.add_parser(name, help=about, description=about, epilog=f"example: {example}", allow_abbrev=False)
        added.set_defaults(run=run, takes_overrides=False)
        added.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error")
        return added

    def takes_config(added: argparse.ArgumentParser, default: str | None = None) -> None:
        about = "a config file; change fields by --config.KEY=VALUE"
        added.add_argument("--config", required=default is None, default=default, metavar="FILE[:arg]", help=about)
        added.set_defaults(takes_overrides=True)

    example = "depthroute train --config configs/tiny.py --config.router.preset=attnres --workdir runs/tiny"
    added = command(commands, "train", train, example)
    takes_config(added)
    added.add_argument("--workdir", required=True, type=Path, help="the run folder")

    example = "depthroute sweep --config configs/ablations/key_query_grid.py --workdir runs/key_query_grid --jobs 2"
    added = command(commands, "sweep", sweep, example)
    takes_config(added)
    added.add_argument("--workdir", required=True, type=Path, help="the sweep's folder; every run has a folder inside it")
    added.add_argument("--backend", choices=["local"], default="local", help="where to run")
    added.add_argument(
        "--jobs", type=int, default=0, help="processes at a time; by default one per core, or one per accelerator host"
    )
    added.add_argument("--dry-run", action="store_true", help="print the commands and start nothing")

    added = command(commands, "status", status, "depthroute status runs/key_query_grid")
    added.add_argument("folder", type=Path, help="a sweep's folder")

    added = command(commands, "table", table, "depthroute table runs/key_query_grid --format tex")
    added.add_argument("folder", type=Path, help="a sweep's folder")
    added.add_argument("--format", default="md", help="md, tex, csv or json")
    added.add_argument("--baseline", help="the arm that others are compared with, instead of the sweep's own")

    example = "depthroute bench --config configs/tiny.py --routers attnres,qd_ks --layers 2,4"
    added = command(commands, "bench", bench, example)
    takes_config(added, default=str(Path(__file__).parents[1] / "configs" / "base.py"))
    added.add_argument("--routers", default="", metavar="A,B,...", help="by default those in depthroute/bench/arms.py")
    added.add_argument("--layers", default="12,24,48", metavar="N,N,...", help="depths; by default %(default)s")
    added.add_argument("--repeats", type=int, default=8, help="timed steps of every router; by default %(default)s")
    added.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    added.add_argument("--out", type=Path, help="folder for bench.json, table.md, summary.md, bench.png and provenance.json")
    added.add_argument("--readme", type=Path, help="file in which to replace the part between its bench markers; needs --out")

    data = commands.add_parser("data", help="Prepares and describes corpora.", allow_abbrev=False)
    data_commands = data.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    example = (
        "depthroute data prepare --source text --files 'docs/**/*.md' --train-bpe-vocab 1024 --out runs/docs_bpe --name docs"
    )
    added = command(data_commands, "prepare", data_prepare, example)
    added.add_argument(
        "--source", required=True, choices=["embedded", "text"], help="the standard library's source, or --files"
    )
    added.add_argument("--files", default="", help="glob of text files")
    added.add_argument("--tokenizer", default="byte", help="byte, or the path of a tokenizer.json")
    added.add_argument("--train-bpe-vocab", type=int, default=0, help="train a BPE tokenizer with that many tokens instead")
    added.add_argument("--out", required=True, type=Path, help="an empty folder for shards, tokenizer.json and manifest.json")
    added.add_argument("--name", required=True, help="first part of the shards' names")
    takes_config(command(data_commands, "info", data_info, "depthroute data info --config configs/tiny.py"))

    added = command(commands, "routers", routers, "depthroute routers --json")
    added.add_argument("--json", action="store_true", help="one JSON list, a record per preset")
    added.add_argument("--markdown", action="store_true", help="the text of docs/routers.md")
    command(commands, "residual", residual, "depthroute residual")
    command(commands, "doctor", doctor, "depthroute doctor")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Errors a user can mend are one line on the standard error, and exit code 2."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and not arguments.takes_overrides:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.overrides = rest
    try:
        return arguments.run(arguments)
    except UserError as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"depthroute: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print("depthroute: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"depthroute: error: {type(error).__name__}: {text}; run again with --debug for the traceback", file=sys.stderr)
        return 1
