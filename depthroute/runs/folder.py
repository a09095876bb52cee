"""The run folder: the truth about a run, and the lock that keeps it to one live process."""

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from depthroute.config import Config, differences, resolve, to_dict
from depthroute.errors import UserError

EXIT_REQUEUE = 75  # the exit code that asks a scheduler to run the same command again


def write_json(path: Path, value: Any) -> None:
    """Replaces a JSON file in one step, so that a reader sees the old content or the new, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises UserError if it cannot be read or is no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"file {str(path)!r} cannot be read as JSON ({error}); restore it or start in an empty folder"
        ) from error


def make_folder(path: Path) -> None:
    """Makes a folder and its parents. Raises UserError where that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"folder {str(path)!r} cannot be made ({error.strerror}); give another --workdir") from error


def has_begun(folder: Path) -> bool:
    """Whether a run has trained in the folder: it has checkpoints or a result."""
    return (folder / "checkpoints").exists() or (folder / "result.json").exists()


def keep_config(folder: Path, config: Config) -> None:
    """Writes config.json, or checks that the one that is there says the same. Raises UserError listing the differences.

    Until the run has begun, its config may still be mended; a config.json that is none of ours is never replaced.
    """
    path = folder / "config.json"
    changed = differences(resolve(read_json(path)), config) if path.exists() else {}
    if not has_begun(folder):
        make_folder(folder)
        write_json(path, to_dict(config))
    elif not path.exists():
        raise UserError(f"run folder {str(folder)!r} has a run but no config.json; restore it, or give another --workdir")
    elif changed:
        listed = ", ".join(f"{name} was {old!r}, now {new!r}" for name, (old, new) in changed.items())
        raise UserError(f"run folder {str(folder)!r} holds a run with another config: {listed}; give another --workdir")


class RunFolder:
    """An open run folder; hold it while running. Use as a context manager."""

    def __init__(self, path: Path, config: Config):
        self.path = path
        make_folder(path)
        self._lock = (path / "lock").open("a+")
        try:
            self._acquire()
            keep_config(path, config)
        except UserError:
            self.close()
            raise

    def _acquire(self) -> None:
        # The kernel drops the lock when its process dies, however it dies, so there are no stale ones to recognise.
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "another process"
            raise UserError(
                f"run folder {str(self.path)!r} is in use by {owner}; wait for it, or give another --workdir"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"pid {os.getpid()} on {socket.gethostname()}")
        self._lock.flush()

    def write(self, name: str, value: Any) -> None:
        """Writes one of the folder's JSON files."""
        write_json(self.path / name, value)

    def finished(self) -> bool:
        """Whether the run has a result."""
        return (self.path / "result.json").exists()

    def close(self) -> None:
        """Releases the lock."""
        self._lock.close()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Status:
    """status.json: what a run is doing, for people and schedulers. Advisory: no table reads it."""

    def __init__(self, folder: RunFolder, steps: int):
        self._folder = folder
        self._written = 0.0
        self._fields: dict[str, Any] = {
            "state": "running",
            "step": 0,
            "steps": steps,
            "loss": None,
            "tokens_per_s": 0.0,
            "eta_s": None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "attempt": _last_attempt(folder.path / "status.json") + 1,
            "reason": "",
        }
        self.update()

    def update(self, **fields: Any) -> None:
        """Writes now."""
        self._fields.update(fields)
        self._written = time.time()
        self._folder.write("status.json", {**self._fields, "heartbeat": self._written})

    def tick(self, **fields: Any) -> None:
        """Remembers the fields, and writes if the last write is half a second old."""
        self._fields.update(fields)
        if time.time() - self._written > 0.5:
            self.update()

    @property
    def attempt(self) -> int:
        """How many times this run has been started."""
        return self._fields["attempt"]


def _last_attempt(path: Path) -> int:
    try:
        attempt = read_json(path)["attempt"]
    except (UserError, KeyError, TypeError):  # the file is advisory: a damaged one must not keep a run from going on
        return 0
    return attempt if type(attempt) is int else 0
