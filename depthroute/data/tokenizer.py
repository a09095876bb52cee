"""Tokenizers: raw bytes, and byte-level BPE through the package `tokenizers`. Both are lossless: bytes in, bytes out."""

import functools
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from depthroute.config import WHERE
from depthroute.errors import UserError, bad_value

SEPARATORS = ("<|endoftext|>", "<|end_of_text|>")
# What lossy tokenizers change: no leading blank, a decomposed accent, runs of blanks, line ends, capitals, several scripts.
PROBE = "Depth e\u0301\r\n  \tROUTING 層 \U0001f600"


@dataclass(frozen=True)
class Tokenizer:
    """Token ids for bytes.

    name: for people ("byte", "bpe4096"); sha256: of all that determines the ids.
    separator: the id that follows every document; `encode` never yields it.
    pieces: for each id the bytes it stands for; nothing for the separator and other special tokens.
    encode: bytes [n] to int32 ids [N]; BPE raises UnicodeDecodeError on bytes that are not UTF-8.
    """

    name: str
    sha256: str
    separator: int
    pieces: tuple[bytes, ...]
    encode: Callable[[bytes], np.ndarray]

    @property
    def vocab(self) -> int:
        """Number of ids."""
        return len(self.pieces)

    @property
    def token_bytes_V(self) -> np.ndarray:
        """Number of bytes each id stands for: int32 [V]."""
        return np.array([len(piece) for piece in self.pieces], np.int32)

    def decode(self, tokens_N: np.ndarray) -> bytes:
        """The bytes that ids stand for; special tokens vanish."""
        return b"".join(self.pieces[token] for token in tokens_N)


def load(name_or_path: str) -> Tokenizer:
    """The tokenizer named `byte`, or a byte-level BPE from the path of a `tokenizer.json`."""
    if name_or_path == "byte":
        return byte()
    if not Path(name_or_path).is_file():
        allowed = "'byte' or the path of an existing tokenizer.json"
        raise bad_value("data.tokenizer", name_or_path, allowed, WHERE.format("data.tokenizer"))
    return _load_bpe(Path(name_or_path))


def byte() -> Tokenizer:
    """Ids 0..255 are the bytes themselves, 256 is the separator."""
    pieces = (*(bytes([value]) for value in range(256)), b"")
    return Tokenizer("byte", hashlib.sha256(b"byte").hexdigest(), 256, pieces, _encode_bytes)


def _encode_bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8).astype(np.int32)


# --- BPE -------------------------------------------------------------------------------------------------------------


def train_bpe(texts: Iterable[str], vocab: int, path: Path) -> Tokenizer:
    """Trains a byte-level BPE of at most `vocab` ids on `texts` (consumed once), writes its JSON to `path` and loads it."""
    library = _library()
    smallest = 256 + 1
    if vocab < smallest:
        raise bad_value("size of the BPE vocabulary", vocab, f"at least {smallest} (bytes and separator)", "--train-bpe-vocab")
    bpe = library.Tokenizer(library.models.BPE())
    bpe.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[SEPARATORS[0]],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.save(str(path))
    return _load_bpe(path)


def _library() -> ModuleType:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise UserError(
            "BPE needs the package tokenizers, which is not installed; "
            "run pip install 'depthroute[tokenizers]' or set data.tokenizer to byte"
        ) from error
    return tokenizers


def _load_bpe(path: Path) -> Tokenizer:
    library = _library()
    where = WHERE.format("data.tokenizer")
    try:
        content = path.read_bytes()
        bpe = library.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception on malformed files
        reason = " ".join(str(error).split())
        raise UserError(f"tokenizer {str(path)!r} cannot be loaded ({reason}); set another in {where}") from error
    bpe.no_truncation()
    bpe.no_padding()
    bpe.encode_special_tokens = True  # a separator spelled out inside a document is text
    pieces = _pieces(bpe)
    separators = [bpe.token_to_id(name) for name in SEPARATORS if bpe.token_to_id(name) is not None]
    if not separators:
        allowed = f"one that has {' or '.join(SEPARATORS)} to separate documents"
        raise bad_value("data.tokenizer", str(path), allowed, where)
    encode = functools.partial(_encode_text, bpe)
    sha256 = hashlib.sha256(content).hexdigest()
    tokenizer = Tokenizer(f"bpe{len(pieces)}", sha256, separators[0], pieces, encode)
    if tokenizer.decode(encode(PROBE.encode())) != PROBE.encode():
        allowed = "a byte-level BPE that gives back every text unchanged, which this one does not"
        raise bad_value("data.tokenizer", str(path), allowed, where)
    return tokenizer


def _encode_text(bpe: Any, content: bytes) -> np.ndarray:
    return np.array(bpe.encode(content.decode(), add_special_tokens=False).ids, np.int32)


def _pieces(bpe: Any) -> tuple[bytes, ...]:
    """The bytes of every id; unused ids and special tokens stand for none."""
    alphabet = _byte_alphabet()
    added = bpe.get_added_tokens_decoder()
    names = {token: name for name, token in bpe.get_vocab(with_added_tokens=True).items()}
    pieces = []
    for token in range(max(names) + 1):
        if token in added:
            pieces.append(b"" if added[token].special else added[token].content.encode())
        elif token in names:
            pieces.append(bytes(alphabet[letter] for letter in names[token] if letter in alphabet))
        else:
            pieces.append(b"")
    return tuple(pieces)


def _byte_alphabet() -> dict[str, int]:
    """The letters in which byte-level BPE (Radford et al. 2019, GPT-2) spells bytes.

    A byte that is a printable, non-blank Latin-1 character spells itself; the others get the characters from 256 on, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}
