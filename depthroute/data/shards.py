"""Token shards: the `.bin` format of llm.c and modded-nanogpt, written as a stream and read through memory maps.

A shard is a header of 256 little-endian int32 followed by its tokens. Header: [0] magic number, [1] version, [2] number of
tokens, the rest zero. Magic and version say how wide a token is:

    20240520, 1   uint16   llm.c for GPT-2, modded-nanogpt; written up to 65536 ids
    20240520, 2   uint32   an extension of depthroute, written for more ids
    20240801, 7   uint32   llm.c for Llama 3; read only

A large corpus is several shards, `<stem>_000000.bin` and on.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from depthroute.config import WHERE
from depthroute.errors import UserError

MAGIC = 20240520
HEADER_BYTES = 256 * 4
DTYPES: dict[tuple[int, int], np.dtype[Any]] = {
    (MAGIC, 1): np.dtype("<u2"),
    (MAGIC, 2): np.dtype("<u4"),
    (20240801, 7): np.dtype("<u4"),
}
SHARD_TOKENS = 10**8
GIVE_OTHERS = "give whole llm.c .bin shards in data.files"


def version_for(vocab: int) -> int:
    """The version whose tokens are just wide enough for ids 0..vocab-1."""
    return 1 if vocab <= 2**16 else 2


def _header(version: int, count: int) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = MAGIC, version, count
    return header.tobytes()


class ShardWriter:
    """Streams the tokens of one split into `folder/<stem>_000000.bin` and on, at most `shard_tokens` in each.

    A context manager. Memory does not grow with what is written. A shard's header counts zero tokens until the shard is closed,
    so a file left behind by a killed process is refused when read. Raises ValueError on ids outside 0..vocab-1.
    """

    def __init__(self, folder: Path, stem: str, vocab: int, shard_tokens: int = SHARD_TOKENS):
        self.paths: list[Path] = []
        self._folder, self._stem, self._vocab, self._limit = folder, stem, vocab, shard_tokens
        self._version = version_for(vocab)
        self._file: BinaryIO | None = None
        self._count = 0

    def write(self, tokens_N: np.ndarray) -> None:
        """Appends tokens [N] of any integer type."""
        if len(tokens_N) and not (tokens_N.min() >= 0 and tokens_N.max() < self._vocab):
            raise ValueError(f"token ids {tokens_N.min()}..{tokens_N.max()} do not fit a vocabulary of {self._vocab}")
        while len(tokens_N):
            if self._file is None or self._count == self._limit:
                self._next()
            assert self._file is not None
            piece_N, tokens_N = np.split(tokens_N, [self._limit - self._count])
            self._file.write(piece_N.astype(DTYPES[MAGIC, self._version]).tobytes())
            self._count += len(piece_N)

    def _next(self) -> None:
        self.close()
        self.paths.append(self._folder / f"{self._stem}_{len(self.paths):06d}.bin")
        self._file = open(self.paths[-1], "xb")
        self._file.write(_header(self._version, 0))
        self._count = 0

    def close(self) -> None:
        """Completes the header of the open shard, if there is one."""
        if self._file is not None:
            self._file.seek(0)
            self._file.write(_header(self._version, self._count))
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def open_shard(path: Path, mend: str = GIVE_OTHERS) -> np.memmap:
    """Maps a shard's tokens, uint16 or uint32 [N], into memory; only the header is read.

    Raises UserError, ending in the advice `mend`, if the file is missing, unreadable, not a shard, truncated or empty.
    """

    def fault(thing: str, found: int, allowed: str) -> UserError:
        return UserError(f"{thing} of shard {str(path)!r} is {found}; allowed: {allowed}; {mend}")

    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(HEADER_BYTES)
    except OSError as error:
        raise UserError(f"shard {str(path)!r} cannot be read ({error.strerror}); {mend}") from error
    if size < HEADER_BYTES:
        raise fault("size in bytes", size, f"at least the {HEADER_BYTES} of a header")
    magic, version, count = (int(n) for n in np.frombuffer(start, "<i4")[:3])
    versions = [known_version for known_magic, known_version in DTYPES if known_magic == magic]
    if not versions:
        raise fault("magic number", magic, " or ".join(str(n) for n in sorted({n for n, _ in DTYPES})))
    if version not in versions:
        raise fault("version", version, " or ".join(map(str, versions)))
    dtype = DTYPES[magic, version]
    if count <= 0:
        raise fault("number of tokens", count, "at least 1")
    expected = HEADER_BYTES + count * dtype.itemsize
    if size != expected:
        raise fault("size in bytes", size, f"{expected}, since its header counts {count} tokens")
    return np.memmap(path, dtype, mode="r", offset=HEADER_BYTES, shape=(count,))


class Tokens:
    """Several shards as one long sequence of token ids, read on demand from memory maps.

    `name` is the split's name, for messages; `vocab` bounds the ids: whatever is read is checked against it.
    """

    def __init__(self, name: str, paths: Sequence[Path], vocab: int, mend: str = GIVE_OTHERS):
        self.name, self.paths, self.vocab = name, tuple(paths), vocab
        self._shards = [open_shard(path, mend) for path in self.paths]
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def window(self, start: int, length: int) -> np.ndarray:
        """Tokens start..start+length-1: int32 [length]."""
        return self.windows(np.array([start]), length)[0]

    def windows(self, starts_N: np.ndarray, length: int) -> np.ndarray:
        """The windows of `length` tokens from each start: int32 [N, length]; they may cross shard borders.

        Raises UserError on an id that is not below `vocab`, IndexError on a window that leaves the sequence.
        """
        if len(starts_N) and (starts_N.min() < 0 or starts_N.max() + length > len(self)):
            raise IndexError(f"windows of {length} tokens from {starts_N.min()}..{starts_N.max()} leave 0..{len(self)}")
        tokens_NT = np.empty((len(starts_N), length), np.int32)
        # A copy per window: contiguous reads of a memory map are faster than one gather over all positions.
        for row_T, start in zip(tokens_NT, starts_N, strict=True):
            self._fill(row_T, int(start))
        return tokens_NT

    def _fill(self, row_T: np.ndarray, start: int) -> None:
        index = int(np.searchsorted(self._ends, start, side="right"))
        while len(row_T):
            shard = self._shards[index]
            offset = start - (int(self._ends[index]) - len(shard))
            piece_T = shard[offset : offset + len(row_T)]
            if piece_T.max() >= self.vocab:
                raise self._foreign(index, offset, piece_T)
            row_T[: len(piece_T)] = piece_T
            row_T, start, index = row_T[len(piece_T) :], start + len(piece_T), index + 1

    def _foreign(self, index: int, offset: int, piece_T: np.ndarray) -> UserError:
        first = int(np.argmax(piece_T >= self.vocab))
        found = int(piece_T[first])
        return UserError(
            f"token id {found} in shard {str(self.paths[index])!r} at position {offset + first} "
            f"is not below model.vocab={self.vocab}; allowed: 0 to {self.vocab - 1}; set it in {WHERE.format('model.vocab')}"
        )
