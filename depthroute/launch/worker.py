"""Runs prepared run folders one after another in one process, so that runs which share a program compile it once.

python -m depthroute.launch.worker --parent PID --cores 0,1 RUN_DIR [RUN_DIR ...]
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all runs are done, 75 when asked to stop, 1 when a run failed; the others still run."""
    parser = argparse.ArgumentParser(prog="depthroute.launch.worker")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--cores", required=True)
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    # XLA sizes its thread pool by the cores it sees when it starts, so this comes before the import of JAX.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})

    from depthroute.config import resolve
    from depthroute.errors import UserError
    from depthroute.runs.folder import EXIT_REQUEUE, read_json
    from depthroute.runs.run import StopRequest, execute

    stop, failed = StopRequest(options.parent), False
    for folder in options.folders:
        if stop():
            return EXIT_REQUEUE
        try:
            if execute(resolve(read_json(folder / "config.json")), folder, stop, quiet=True) == EXIT_REQUEUE:
                return EXIT_REQUEUE
        except Exception as error:
            told = str(error) if isinstance(error, UserError) else traceback.format_exc()
            print(f"{folder.name}: {told}", file=sys.stderr, flush=True)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
