"""Corpora: splits by document, one path from every source to shards, a cache that is made once and survives races."""

import hashlib
import os
import sysconfig
import threading
from pathlib import Path

import numpy as np
import pytest

from depthroute.config import DataConfig
from depthroute.data import corpus as corpus_lib
from depthroute.data.documents import SPLITS, Document, embedded, matching
from depthroute.data.shards import ShardWriter
from depthroute.errors import UserError

SEPARATOR = 256


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "depthroute"


@pytest.fixture
def texts(tmp_path):
    """A folder of 100 documents, one of them empty, one not UTF-8."""
    folder = tmp_path / "texts"
    for i in range(100):
        path = folder / f"part{i % 3}" / f"{i:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"document {i}\n".encode() * (i % 7))
    (folder / "part1" / "001.txt").write_bytes(b"\xff\x00\xfe")
    return folder


def text_config(folder, **changes):
    fields = {"source": "text", "files": f"{folder}/**/*.txt", "tokenizer": "byte", "seq_len": 8, "batch": 2}
    return DataConfig(**(fields | changes))


def bin_config(files):
    return DataConfig(source="bin", files=str(files), tokenizer="byte", seq_len=8, batch=2)


def documents_of(tokens):
    """The documents of a split as bytes, cut at the separators."""
    content = tokens.window(0, len(tokens))
    ends = np.flatnonzero(content == SEPARATOR)
    assert ends[-1] == len(content) - 1
    return [bytes(piece[piece != SEPARATOR].tolist()) for piece in np.split(content, ends[:-1] + 1)]


def refused(config, *said, vocab=257):
    with pytest.raises(UserError) as caught:
        corpus_lib.load(config, vocab)
    message = str(caught.value)
    assert all(part in message for part in said), message
    assert "\n" not in message


def test_splits_are_disjoint_whole_documents_and_complete(texts):
    corpus = corpus_lib.load(text_config(texts), 257)
    assert tuple(corpus.splits) == SPLITS
    found = {name: documents_of(tokens) for name, tokens in corpus.splits.items()}
    by_hand = {name: [] for name in SPLITS}
    for path in sorted(texts.rglob("*.txt"), key=lambda path: path.relative_to(texts).as_posix()):
        name = path.relative_to(texts).as_posix()
        bucket = int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) % 100
        by_hand["train" if bucket < 90 else "tune" if bucket < 95 else "val"].append(path.read_bytes())
    assert found == by_hand
    assert sum(map(len, found.values())) == 100
    assert corpus.token_bytes_V.tolist() == [1] * 256 + [0]


def test_splits_have_their_shares():
    splits = [Document(f"{i}.txt", Path()).split for i in range(20_000)]
    shares = [splits.count(name) / len(splits) for name in SPLITS]
    assert np.allclose(shares, [0.9, 0.05, 0.05], atol=0.006)


def test_names_are_relative_to_the_fixed_part_of_the_glob(texts, monkeypatch):
    expected = [document.name for document in matching(f"{texts}/**/*.txt")]
    assert expected[:2] == ["part0/000.txt", "part0/003.txt"]
    monkeypatch.chdir(texts.parent)
    assert [document.name for document in matching("texts/*/*.txt")] == expected
    assert [document.name for document in matching("texts/part0/000.txt")] == ["000.txt"]
    monkeypatch.chdir(texts)
    assert [document.name for document in matching("**/*.txt")] == expected


def test_fingerprint_follows_content_and_names_but_not_the_place(texts, tmp_path):
    config = text_config(texts)
    first = corpus_lib.load(config, 257)
    moved = tmp_path / "moved"
    texts.rename(moved)
    assert corpus_lib.load(text_config(moved), 300).fingerprint == first.fingerprint
    (moved / "part0" / "003.txt").write_bytes(b"changed")
    changed = corpus_lib.load(text_config(moved), 257)
    (moved / "part0" / "003.txt").rename(moved / "part0" / "003b.txt")  # the order stays
    renamed = corpus_lib.load(text_config(moved), 257)
    assert len({first.fingerprint, changed.fingerprint, renamed.fingerprint}) == 3
    assert any(b"changed" in documents_of(tokens) for tokens in changed.splits.values())


def test_cache_is_made_once(texts, cache, monkeypatch):
    first = corpus_lib.load(text_config(texts), 257)
    assert [path.name for path in cache.iterdir()] == [first.fingerprint]
    monkeypatch.setattr(corpus_lib, "write_corpus", None)
    second = corpus_lib.load(text_config(texts), 257)
    assert second.fingerprint == first.fingerprint
    assert documents_of(second.split("val")) == documents_of(first.split("val"))


def test_loads_at_once_agree_and_leave_one_folder(texts, cache):
    workers = 4
    together = threading.Barrier(workers)
    results = []

    def track(documents, title):
        together.wait(timeout=10)  # all of them have seen that nothing is cached
        return documents

    def work():
        results.append(corpus_lib.load(text_config(texts), 257, track))

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == workers
    assert len({corpus.fingerprint for corpus in results}) == 1
    assert len({tuple(documents_of(corpus.split("train"))) for corpus in results}) == 1
    assert [path.name for path in cache.iterdir()] == [results[0].fingerprint]


def test_interrupted_tokenising_leaves_nothing(texts, cache):
    def track(documents, title):
        yield from documents[:50]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corpus_lib.load(text_config(texts), 257, track)
    assert list(cache.iterdir()) == []


def test_damaged_cache_says_what_to_delete(texts, cache):
    folder = cache / corpus_lib.load(text_config(texts), 257).fingerprint
    path = folder / "tokens_val_000000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    refused(text_config(texts), str(path), f"delete the folder {str(folder)!r}")


def test_cache_that_cannot_be_written(texts, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refused(text_config(texts), str(tmp_path / "file" / "depthroute"), "cannot be written", "XDG_CACHE_HOME")


def test_bad_text_corpora(texts, tmp_path, monkeypatch):
    refused(text_config(texts, files=f"{texts}/*.md"), f"no file matches '{texts}/*.md'", "data.files")
    refused(text_config(texts, files=""), "no file matches ''", "data.files")
    refused(text_config(texts, files=f"{texts}/part0/00*.txt"), "split 'val' of", "is empty: 4 documents", "data.files")
    refused(text_config(texts), "model.vocab is 256; allowed: at least the 257 ids", vocab=256)


def test_unreadable_document_is_named(texts, monkeypatch):
    documents = matching(f"{texts}/**/*.txt")
    gone = documents[3].path
    gone.unlink()
    for read in (documents[3].read, documents[3].digest):
        with pytest.raises(UserError, match="cannot be read") as caught:
            read()
        assert str(gone) in str(caught.value) and "No such file" in str(caught.value)


def test_document_that_is_not_text_needs_the_byte_tokenizer(texts, tmp_path):
    pytest.importorskip("tokenizers")
    from depthroute.data.tokenizer import train_bpe

    train_bpe(["document"], 260, tmp_path / "tokenizer.json")
    config = text_config(texts, tokenizer=str(tmp_path / "tokenizer.json"))
    refused(config, "part1/001.txt", "0xff at 0", "data.tokenizer=byte", vocab=300)


# --- shards made elsewhere -------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    """Three shards of 50 tokens for train and one for val, as modded-nanogpt names them."""
    for split, count in (("train", 150), ("val", 50)):
        with ShardWriter(tmp_path, f"fineweb_{split}", 1000, shard_tokens=50) as writer:
            writer.write(np.arange(count))
    return tmp_path


def test_shards_are_dealt_by_their_names(shards):
    corpus = corpus_lib.load(bin_config(shards / "*.bin"), 1000)
    assert {name: len(tokens) for name, tokens in corpus.splits.items()} == {"train": 150, "val": 50}
    assert corpus.split("train").window(0, 150).tolist() == list(range(150))
    assert corpus.token_bytes_V is None
    with pytest.raises(UserError, match="no split 'tune' in .*; allowed: train, val; .* data.files"):
        corpus.split("tune")


def test_fingerprint_of_shards_follows_their_content(shards):
    first = corpus_lib.load(bin_config(shards / "*.bin"), 1000).fingerprint
    assert corpus_lib.load(bin_config(shards / "*.bin"), 2000).fingerprint == first
    path = shards / "fineweb_train_000001.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    second = corpus_lib.load(bin_config(shards / "*.bin"), 1000).fingerprint
    path.rename(shards / "fineweb_train_000001b.bin")  # the order stays
    third = corpus_lib.load(bin_config(shards / "*.bin"), 1000).fingerprint
    assert len({first, second, third}) == 3


def test_bad_shard_names(shards):
    refused(bin_config(shards / "none*.bin"), "no file matches", "data.files")
    os.rename(shards / "fineweb_val_000000.bin", shards / "fineweb.bin")
    refused(bin_config(shards / "*.bin"), "'fineweb.bin'", "_train_, _tune_, _val_", "data.files")


# --- the embedded corpus ---------------------------------------------------------------------------------------------


def test_embedded_corpus_is_the_standard_library():
    corpus = corpus_lib.load(DataConfig("embedded", "", "byte", 256, 4), 257)
    sizes = {name: len(tokens) for name, tokens in corpus.splits.items()}
    assert 8e6 < sizes["train"] < 16e6
    assert min(sizes["tune"], sizes["val"]) > 200_000
    documents = embedded()
    assert len({document.name for document in documents}) == len(documents) > 500
    assert sum(document.path.stat().st_size + 1 for document in documents) == sum(sizes.values())
    assert {"ast.py", "asyncio/events.py"} <= {document.name for document in documents}
    for document in documents:
        parts = set(Path(document.name).parts)
        assert not parts & {"test", "tests", "idlelib", "ensurepip", "site-packages", "dist-packages", "__pycache__"}
    abc = Path(sysconfig.get_paths()["stdlib"], "abc.py").read_bytes()
    assert abc in documents_of(corpus.split(next(d.split for d in documents if d.name == "abc.py")))
