"""What `depthroute data prepare` and `depthroute data info` do."""

import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track as rich_track

from depthroute.config import DataConfig
from depthroute.data import corpus as corpus_lib
from depthroute.data import documents as documents_lib
from depthroute.data import tokenizer as tokenizer_lib
from depthroute.data.batches import sequences_in
from depthroute.data.corpus import FORMAT, MANIFEST, TOKENIZER
from depthroute.data.documents import SPLITS, Document
from depthroute.data.shards import Tokens
from depthroute.data.tokenizer import Tokenizer
from depthroute.errors import UserError, bad_value, unknown_name

CHUNK = 2**20


def show(items: Sequence[Any], title: str) -> Iterable[Any]:
    """The `Track` that draws a progress bar on the standard error, if that is a terminal."""
    console = Console(stderr=True)
    return rich_track(items, title, console=console, transient=True) if console.is_terminal else items


# --- prepare ---------------------------------------------------------------------------------------------------------


def prepare(source: str, files: str, tokenizer: str, train_bpe_vocab: int, out: Path, name: str) -> dict[str, Any]:
    """Writes a text corpus as token shards into the folder `out` and returns its manifest.

    source, files: embedded, or text with a glob. tokenizer: byte or the path of a tokenizer.json, unless train_bpe_vocab is
    above 0: then a BPE with that many ids is trained on the train split. name: first part of the shards' file names.
    Writes <name>_<split>_000000.bin and on (uint16 up to 65536 ids, else uint32), tokenizer.json for BPE, and manifest.json.
    A corpus prepared earlier in `out` is replaced once the new one is complete; anything else in `out` is refused.
    """
    if source not in ("embedded", "text"):
        raise unknown_name("source of documents", source, ("embedded", "text"), "--source")
    if not re.fullmatch(r"\w[\w.-]*", name) or any(f"_{split}_" in f"{name}_" for split in SPLITS):
        raise bad_value("name of the corpus", name, "letters, digits, '.', '_', '-' and no split's name in it", "--name")
    earlier = _earlier(out)
    documents, description = documents_lib.find(source, files)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            folder = Path(scratch)
            chosen = _tokenizer(documents, tokenizer, train_bpe_vocab, folder / TOKENIZER)
            about = {"description": description, "fingerprint": corpus_lib.fingerprint_text(documents, chosen)}
            manifest = corpus_lib.write_corpus(documents, chosen, folder, name, about, show)
            _replace(folder, out, earlier)
    except OSError as error:
        raise UserError(f"folder {str(out)!r} cannot be written ({error.strerror}); set another with --out") from error
    return manifest


def _earlier(out: Path) -> list[str]:
    """Names of the files of a corpus prepared in `out` before. Raises UserError if `out` holds anything but that."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return []
    try:
        manifest = json.loads((out / MANIFEST).read_text())
        if manifest["format"] == FORMAT:
            return [MANIFEST, *(Path(name).name for name in manifest["files"])]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    allowed = "a new or empty folder, or one with a corpus prepared earlier"
    raise bad_value("folder of the corpus", str(out), f"{allowed}; this one holds other things", "--out")


def _tokenizer(documents: Sequence[Document], name: str, train_bpe_vocab: int, path: Path) -> Tokenizer:
    """The tokenizer to use; a BPE's JSON, trained or given, is put at `path`."""
    if train_bpe_vocab > 0:
        train = [document for document in documents if document.split == "train"]
        # Lenient, since tokenising then refuses what is not UTF-8 and names the document.
        texts = (document.read().decode(errors="replace") for document in show(train, "training BPE"))
        return tokenizer_lib.train_bpe(texts, train_bpe_vocab, path)
    chosen = tokenizer_lib.load(name)
    if name != "byte":
        shutil.copyfile(name, path)
    return chosen


def _replace(folder: Path, out: Path, earlier: Iterable[str]) -> None:
    """Moves a finished corpus from `folder` to `out`. The manifest goes first and comes last, so it never lies."""
    out.mkdir(exist_ok=True)
    for name in earlier:
        (out / name).unlink(missing_ok=True)
    for path in sorted(folder.iterdir(), key=lambda path: (path.name == MANIFEST, path.name)):
        path.replace(out / path.name)


# --- info ------------------------------------------------------------------------------------------------------------


def info(data: DataConfig, vocab: int) -> dict[str, Any]:
    """What a config's corpus holds; `vocab` is model.vocab. Reads every token once, as a stream.

    For each split: tokens, sequences of data.seq_len, documents (None for shards) and bytes per token (None where unknown).
    For the corpus: description, fingerprint, and `unigram_nats`, the loss on val of the best model without context (None
    without both splits).
    """
    corpus = corpus_lib.load(data, vocab, show)
    counts = {name: _count(tokens) for name, tokens in corpus.splits.items()}
    separator = None if data.source == "bin" else tokenizer_lib.load(data.tokenizer).separator
    splits = {}
    for name, tokens in corpus.splits.items():
        sizes_V = corpus.token_bytes_V
        splits[name] = {
            "documents": None if separator is None else int(counts[name][separator]),
            "tokens": len(tokens),
            "sequences": sequences_in(tokens, data.seq_len),
            "bytes_per_token": None if sizes_V is None else float(counts[name][: len(sizes_V)] @ sizes_V / len(tokens)),
        }
    return {
        "description": corpus.description,
        "fingerprint": corpus.fingerprint,
        "splits": splits,
        "unigram_nats": unigram_nats(counts["train"], counts["val"]) if {"train", "val"} <= counts.keys() else None,
    }


def _count(tokens: Tokens) -> np.ndarray:
    counts_V = np.zeros(tokens.vocab, np.int64)
    for start in show(range(0, len(tokens), CHUNK), f"counting {tokens.name}"):
        counts_V += np.bincount(tokens.window(start, min(CHUNK, len(tokens) - start)), minlength=tokens.vocab)
    return counts_V


def unigram_nats(train_V: np.ndarray, val_V: np.ndarray) -> float:
    """Cross-entropy per token, in nats, of counts `val_V` under the add-one smoothed frequencies of counts `train_V`."""
    log_p_V = np.log(train_V + 1) - math.log(int(train_V.sum()) + len(train_V))
    return float(-(val_V @ log_p_V) / val_V.sum())
