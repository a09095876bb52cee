"""What this machine has, and what is missing for what."""

import os
import platform
import shutil
from pathlib import Path

from depthroute.runs.provenance import PACKAGES, installed_version, visible_cores

OPTIONAL = {
    "tokenizers": "BPE tokenizers: pip install 'depthroute[tokenizers]'",
    "nbclient": "executing the notebooks: pip install 'depthroute[notebook]'",
}
TOOLS = {"git": "the commit in provenance.json", "sbatch": "Slurm", "gcloud": "TPU queued resources", "kubectl": "Kubernetes"}


def report() -> str:
    """The whole report as text."""
    sections = {"machine": _machine, "packages": _packages, "devices": _devices, "optional": _optional, "tools": _tools}
    return "\n".join(f"{title}\n" + "\n".join(f"  {line}" for line in lines()) for title, lines in sections.items())


def _machine() -> list[str]:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return [
        f"{platform.platform()}, Python {platform.python_version()}",
        f"{len(visible_cores())} cores, {_memory_gib()} memory, {free:.0f} GiB free in this folder",
    ]


def _memory_gib() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError, AttributeError):
        return "unknown"


def _packages() -> list[str]:
    return [_line(name, installed_version(name), "MISSING; pip install -e .") for name in PACKAGES]


def _devices() -> list[str]:
    try:
        import jax

        return [f"{device.id}: {device.platform} {device.device_kind}" for device in jax.devices()]
    except Exception as error:  # a broken accelerator set-up must not hide the rest of the report
        return [f"MISSING: JAX finds no device ({' '.join(str(error).split())})"]


def _optional() -> list[str]:
    return [_line(name, installed_version(name), f"missing; {use}") for name, use in OPTIONAL.items()]


def _tools() -> list[str]:
    return [_line(tool, shutil.which(tool), f"missing; needed for {use}") for tool, use in TOOLS.items()]


def _line(name: str, found: str | None, missing: str) -> str:
    return f"{name} {found or missing}"
