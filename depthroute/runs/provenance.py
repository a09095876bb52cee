"""Where a run's numbers come from: code, versions, machine and data."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "ml-collections", "numpy", "scipy", "depthroute")
ENVIRONMENT = ("XLA_FLAGS", "JAX_", "LIBTPU_INIT_ARGS", "OMP_NUM_THREADS", "GLIBC_TUNABLES", "MALLOC_CONF", "LD_PRELOAD")


def collect(data_fingerprint: str, data_description: str, devices: list[str]) -> dict[str, Any]:
    """The record written to provenance.json. Only environment variables that steer JAX are kept."""
    return {
        **git_state(Path(__file__)),
        "argv": sys.argv,
        "versions": {name: version for name in PACKAGES if (version := installed_version(name))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(visible_cores()),
        "devices": devices,
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(ENVIRONMENT)},
        "data_fingerprint": data_fingerprint,
        "data": data_description,
    }


def visible_cores() -> list[int]:
    """Numbers of the CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def git_state(file: Path) -> dict[str, Any]:
    """Commit of the checkout that tracks `file`, whether anything there differs from it, and the diff; nulls elsewhere."""
    folder = file.parent
    tracked = _git(folder, "ls-files", "--error-unmatch", file.name) is not None
    commit = _git(folder, "rev-parse", "HEAD") if tracked else None
    if commit is None:
        return {"git_commit": None, "git_dirty": None, "git_diff": None}
    return {
        "git_commit": commit,
        "git_dirty": bool(_git(folder, "status", "--porcelain")),
        "git_diff": _git(folder, "diff", "HEAD") or None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def installed_version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
