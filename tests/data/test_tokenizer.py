"""Tokenizers give back the bytes they were given and know how many bytes each id stands for."""

import json
import sys

import numpy as np
import pytest

from depthroute.data import tokenizer as tokenizer_lib
from depthroute.errors import UserError

TEXTS = ["the cat sat on the mat\n", "the dog  sat\ton the log\r\n", "naïve café — 層 😀 the end", " lead"] * 5


@pytest.fixture(scope="module")
def bpe_path(tmp_path_factory):
    pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    tokenizer_lib.train_bpe(iter(TEXTS), 300, path)
    return path


def edited(path, tmp_path, **changes):
    """A copy of a tokenizer.json with top-level fields changed."""
    copy = tmp_path / "edited.json"
    copy.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return copy


def test_byte_tokenizer():
    byte = tokenizer_lib.load("byte")
    content = bytes(range(256)) + b"\xff\x00plain"
    assert (byte.name, byte.vocab, byte.separator) == ("byte", 257, 256)
    assert byte.encode(content).tolist() == list(content)
    assert byte.decode(byte.encode(content)) == content
    assert byte.token_bytes_V.tolist() == [1] * 256 + [0]
    assert byte.encode(b"").shape == (0,)


def test_bpe_is_lossless_and_counts_bytes(bpe_path):
    bpe = tokenizer_lib.load(str(bpe_path))
    assert 257 < bpe.vocab <= 300
    for text in [*TEXTS, "never seen: ÿ\x00\x7f 𝛼\n\n"]:
        tokens = bpe.encode(text.encode())
        assert bpe.decode(tokens) == text.encode()
        assert bpe.token_bytes_V[tokens].sum() == len(text.encode())
    assert len(bpe.encode(b"the cat sat on the mat\n")) < 15


def test_bpe_knows_every_byte(bpe_path):
    bpe = tokenizer_lib.load(str(bpe_path))
    assert sorted(piece for piece in bpe.pieces if len(piece) == 1) == [bytes([value]) for value in range(256)]


def test_separator_spelled_in_a_document_is_text(bpe_path):
    bpe = tokenizer_lib.load(str(bpe_path))
    tokens = bpe.encode(b"a<|endoftext|>b")
    assert bpe.separator not in tokens
    assert bpe.decode(tokens) == b"a<|endoftext|>b"
    assert bpe.token_bytes_V[bpe.separator] == 0


def test_training_is_deterministic(bpe_path, tmp_path):
    again = tokenizer_lib.train_bpe(iter(TEXTS), 300, tmp_path / "again.json")
    assert again.sha256 == tokenizer_lib.load(str(bpe_path)).sha256


def test_bytes_that_are_not_text(bpe_path):
    with pytest.raises(UnicodeDecodeError):
        tokenizer_lib.load(str(bpe_path)).encode(b"\xff\xfe")


def refused(name_or_path, *said):
    with pytest.raises(UserError) as caught:
        tokenizer_lib.load(str(name_or_path))
    message = str(caught.value)
    assert all(part in message for part in (*said, "data.tokenizer")) and "\n" not in message


def test_unknown_tokenizer():
    refused("bite", "'bite'", "'byte' or the path")


def test_malformed_file(bpe_path, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": \n 7}')
    refused(path, str(path), "cannot be loaded")


def test_lossy_tokenizer_is_refused(bpe_path, tmp_path):
    refused(edited(bpe_path, tmp_path, normalizer={"type": "Lowercase"}), "edited.json", "unchanged")
    refused(edited(bpe_path, tmp_path, normalizer={"type": "NFC"}), "edited.json", "unchanged")


def test_tokenizer_without_separator_is_refused(bpe_path, tmp_path):
    model = json.loads(bpe_path.read_text())["model"]
    model["vocab"]["<|other|>"] = model["vocab"].pop("<|endoftext|>")
    refused(edited(bpe_path, tmp_path, model=model, added_tokens=[]), "edited.json", "<|endoftext|>")


def test_too_small_a_vocabulary(tmp_path):
    pytest.importorskip("tokenizers")
    with pytest.raises(UserError, match="is 256; allowed: at least 257"):
        tokenizer_lib.train_bpe(TEXTS, 256, tmp_path / "t.json")


def test_missing_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    refused(path, "pip install 'depthroute[tokenizers]'")
    assert np.array_equal(tokenizer_lib.load("byte").encode(b"ab"), [97, 98])
