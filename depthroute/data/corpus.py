"""Corpora: every source ends as memory-mapped token shards, one `Tokens` for each split.

Text is tokenised once, document by document, into shards in a cache folder named by the corpus' fingerprint; shards made
elsewhere are mapped as they are. Peak memory depends on the longest document, not on the size of the corpus.
"""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depthroute.config import WHERE, DataConfig
from depthroute.data import documents as documents_lib
from depthroute.data import tokenizer as tokenizer_lib
from depthroute.data.documents import SPLITS, Document
from depthroute.data.shards import GIVE_OTHERS, HEADER_BYTES, ShardWriter, Tokens
from depthroute.data.tokenizer import Tokenizer
from depthroute.errors import UserError, bad_value

FORMAT = "depthroute corpus 1"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SAMPLES, SAMPLE_BYTES = 16, 4096

# Passes a sequence through unchanged and may show how far it has been consumed, under a title.
Track = Callable[[Sequence[Any], str], Iterable[Any]]


def silent(items: Sequence[Any], title: str) -> Iterable[Any]:
    """The `Track` that shows nothing."""
    return items


@dataclass(frozen=True)
class Corpus:
    """Token sequences by split.

    fingerprint: sha256 of what determines the tokens.
    token_bytes_V: bytes each token id stands for, for losses in bits per byte; None for shards that `depthroute data
    prepare` did not write.
    """

    splits: dict[str, Tokens]
    fingerprint: str
    token_bytes_V: np.ndarray | None
    description: str

    def split(self, name: str) -> Tokens:
        """A split by name. Raises UserError if the corpus has none of that name."""
        if name not in self.splits:
            raise UserError(
                f"there is no split {name!r} in {self.description}; allowed: {', '.join(self.splits)}; "
                f"name shards like fineweb_{name}_000001.bin in data.files"
            )
        return self.splits[name]


def load(data: DataConfig, vocab: int, track: Track = silent) -> Corpus:
    """The corpus a config asks for; `vocab` is model.vocab, which every token read is checked against.

    The first load of a text corpus tokenises it, later ones read and hash its documents: past some gigabytes, prepare shards.
    """
    if data.source == "bin":
        return _from_shards(data.files, vocab)
    tokenizer = tokenizer_lib.load(data.tokenizer)
    if tokenizer.vocab > vocab:
        allowed = f"at least the {tokenizer.vocab} ids of tokenizer {tokenizer.name}"
        raise bad_value("model.vocab", vocab, allowed, WHERE.format("model.vocab"))
    documents, description = documents_lib.find(data.source, data.files)
    fingerprint = fingerprint_text(documents, tokenizer)
    folder = _cached(documents, tokenizer, fingerprint, track)
    mend = f"delete the folder {str(folder)!r}; the next run makes it again"
    splits = _open_splits(sorted(folder.glob("*.bin")), vocab, mend)
    return Corpus(splits, fingerprint, tokenizer.token_bytes_V, f"{description}, tokenizer {tokenizer.name}")


def fingerprint_text(documents: Iterable[Document], tokenizer: Tokenizer) -> str:
    """sha256 over the tokenizer's hash and each document's name (which also decides its split) and content hash."""
    whole = hashlib.sha256(f"{FORMAT}\n{tokenizer.sha256}\n".encode())
    for document in documents:
        whole.update(os.fsencode(document.name) + f"\0{document.digest()}\n".encode())
    return whole.hexdigest()


# --- shards made elsewhere -------------------------------------------------------------------------------------------


def _from_shards(files: str, vocab: int) -> Corpus:
    paths = [document.path for document in documents_lib.matching(files)]
    splits = _open_splits(paths, vocab, GIVE_OTHERS)
    return Corpus(splits, _fingerprint_shards(paths), _token_bytes(paths), f"token shards {files}, {len(paths)} files")


def _token_bytes(paths: Sequence[Path]) -> np.ndarray | None:
    """Bytes per token id of shards that `depthroute data prepare` wrote, whose manifest stands beside them; else None."""
    folder = paths[0].parent
    if any(path.parent != folder for path in paths):
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        name = manifest["tokenizer"]["name"] if manifest["format"] == FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if name is None:
        return None
    return tokenizer_lib.load(name if name == "byte" else str(folder / TOKENIZER)).token_bytes_V


def shard_split(path: Path) -> str:
    """The split a shard's file name declares, as in fineweb_train_000001.bin."""
    found = [split for split in SPLITS if f"_{split}_" in path.name]
    if len(found) != 1:
        allowed = "a name with exactly one of " + ", ".join(f"_{split}_" for split in SPLITS)
        raise bad_value("name of shard", path.name, allowed, "data.files, or rename the file")
    return found[0]


def _open_splits(paths: Iterable[Path], vocab: int, mend: str) -> dict[str, Tokens]:
    by_split: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in paths:
        by_split[shard_split(path)].append(path)
    return {split: Tokens(split, shards, vocab, mend) for split, shards in by_split.items() if shards}


def _fingerprint_shards(paths: Iterable[Path]) -> str:
    """sha256 over each shard's name, size, header and 16 evenly spaced samples of 4 kB.

    Reading whole shards at every start would take minutes; a change that misses every sample goes unseen.
    """
    whole = hashlib.sha256(f"{FORMAT}\n".encode())
    for path in paths:
        size = path.stat().st_size
        whole.update(os.fsencode(path.name) + f"\0{size}\n".encode())
        with open(path, "rb") as file:
            whole.update(file.read(HEADER_BYTES))
            for start in np.linspace(HEADER_BYTES, max(HEADER_BYTES, size - SAMPLE_BYTES), SAMPLES).astype(int):
                file.seek(start)
                whole.update(file.read(SAMPLE_BYTES))
    return whole.hexdigest()


# --- text to shards --------------------------------------------------------------------------------------------------


def write_corpus(
    documents: Sequence[Document], tokenizer: Tokenizer, folder: Path, stem: str, about: dict[str, Any], track: Track = silent
) -> dict[str, Any]:
    """Tokenises documents into `folder/<stem>_<split>_000000.bin` and on, a separator after each; one document in memory.

    Returns, and writes to `folder/manifest.json`: `about`, the tokenizer, documents, bytes and tokens of each split, and the
    sha256 of each file in the folder.
    """
    splits = {split: {"documents": 0, "bytes": 0, "tokens": 0} for split in SPLITS}
    with contextlib.ExitStack() as stack:
        writers = {split: stack.enter_context(ShardWriter(folder, f"{stem}_{split}", tokenizer.vocab)) for split in SPLITS}
        for document in track(documents, "tokenising"):
            content = document.read()
            tokens_N = np.append(_encode(tokenizer, document, content), tokenizer.separator)
            writers[document.split].write(tokens_N)
            counts = splits[document.split]
            counts["documents"] += 1
            counts["bytes"] += len(content)
            counts["tokens"] += len(tokens_N)
    manifest = {
        "format": FORMAT,
        **about,
        "tokenizer": {"name": tokenizer.name, "vocab": tokenizer.vocab, "sha256": tokenizer.sha256},
        "splits": splits,
        "files": {path.name: _sha256(path) for path in sorted(folder.iterdir())},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest


def _encode(tokenizer: Tokenizer, document: Document, content: bytes) -> np.ndarray:
    try:
        return tokenizer.encode(content)
    except UnicodeDecodeError as error:
        raise UserError(
            f"document {str(document.path)!r} has byte {content[error.start]:#04x} at {error.start}, which is not UTF-8; "
            "allowed: any bytes with data.tokenizer=byte, else UTF-8; set data.tokenizer or data.files"
        ) from error


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_root() -> Path:
    """Where tokenised corpora are kept: $XDG_CACHE_HOME/depthroute, else ~/.cache/depthroute."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "depthroute"


def _cached(documents: Sequence[Document], tokenizer: Tokenizer, fingerprint: str, track: Track) -> Path:
    """The folder with the shards of a corpus, made if it is not there yet.

    A folder appears under its final name whole or not at all. Of several processes that make it at once, one's is kept.
    """
    folder = cache_root() / fingerprint
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"partial-{uuid.uuid4().hex}")
    try:
        partial.mkdir(parents=True)
        write_corpus(documents, tokenizer, partial, "tokens", {"fingerprint": fingerprint}, track)
        _publish(partial, folder)
    except OSError as error:
        raise UserError(
            f"cache folder {str(cache_root())!r} cannot be written ({error.strerror}); "
            "allowed: a folder with room for the corpus; set the environment variable XDG_CACHE_HOME"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _publish(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was first, with the same content
            raise
