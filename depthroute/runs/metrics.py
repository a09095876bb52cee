"""metrics.jsonl: one JSON object per line, each ending with the crc32 of what stands before it."""

import json
import math
import zlib
from pathlib import Path
from typing import Any


def encode(record: dict[str, Any]) -> bytes:
    """The line of a record, with its checksum as the last field."""
    finite = {k: v if not isinstance(v, float) or math.isfinite(v) else str(v) for k, v in record.items()}
    body = json.dumps(finite, separators=(", ", ": "))[:-1]
    return f'{body}, "crc32": {zlib.crc32(body.encode())}}}\n'.encode()


def decode(line: bytes) -> dict[str, Any] | None:
    """The record of a line, or None if the line is torn or damaged."""
    body, separator, tail = line.rstrip(b"\n").rpartition(b', "crc32": ')
    if not separator or tail != b"%d}" % zlib.crc32(body):
        return None
    return json.loads(body + b"}")


class MetricsFile:
    """Appends records. Opening it cuts off a torn last line, so that an interrupted write damages nothing after it."""

    def __init__(self, path: Path):
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        self._file = path.open("ab")

    def write(self, record: dict[str, Any]) -> None:
        """Appends one line and hands it to the operating system."""
        self._file.write(encode(record))
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The records in order of step. A resumed run repeats steps; the last record of a (step, split) is the one that counts.

    Damaged lines are left out; a missing file has no records.
    """
    if not path.exists():
        return []
    records = [decode(line) for line in path.read_bytes().splitlines()]
    latest = {(record["step"], record["split"]): record for record in records if record}
    return sorted(latest.values(), key=lambda record: record["step"])
