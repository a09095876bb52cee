"""`depthroute data prepare` and `info`: what they write, count and refuse."""

import hashlib
import json
import math

import numpy as np
import pytest

from depthroute.config import DataConfig
from depthroute.data import corpus as corpus_lib
from depthroute.data import tokenizer as tokenizer_lib
from depthroute.data.prepare import info, prepare, unigram_nats
from depthroute.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path):
    """The glob of 100 documents."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(100):
        (folder / f"{i:03d}.txt").write_text(f"this is document {i}\n" * (1 + i % 7))
    return f"{folder}/*.txt"


def read_folder(out):
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_prepared_shards_hold_what_the_text_corpus_holds(files, tmp_path):
    out = tmp_path / "deep" / "out"
    manifest = prepare("text", files, "byte", 0, out, "tiny")
    assert sorted(read_folder(out)) == ["manifest.json"] + [f"tiny_{s}_000000.bin" for s in ("train", "tune", "val")]
    assert json.loads((out / "manifest.json").read_text()) == manifest
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    text = corpus_lib.load(DataConfig("text", files, "byte", 8, 2), 257)
    shards = corpus_lib.load(DataConfig("bin", f"{out}/*.bin", "byte", 8, 2), 257)
    for split, counts in manifest["splits"].items():
        a, b = text.split(split), shards.split(split)
        assert np.array_equal(a.window(0, len(a)), b.window(0, len(b)))
        assert counts["tokens"] == len(b) == counts["bytes"] + counts["documents"]
    assert sum(counts["documents"] for counts in manifest["splits"].values()) == 100
    assert manifest["fingerprint"] == text.fingerprint
    for name, sha256 in manifest["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == sha256


def test_bpe_is_trained_on_the_train_split_and_kept(files, tmp_path):
    pytest.importorskip("tokenizers")
    out = tmp_path / "out"
    manifest = prepare("text", files, "byte", 290, out, "tiny")
    bpe = tokenizer_lib.load(str(out / "tokenizer.json"))
    assert manifest["tokenizer"] == {"name": bpe.name, "vocab": bpe.vocab, "sha256": bpe.sha256}
    shards = corpus_lib.load(DataConfig("bin", f"{out}/*.bin", "byte", 8, 2), bpe.vocab)
    for split, counts in manifest["splits"].items():
        tokens = shards.split(split).window(0, counts["tokens"])
        assert bpe.token_bytes_V[tokens].sum() == counts["bytes"]
        assert (tokens == bpe.separator).sum() == counts["documents"]
    train = [d.read().decode() for d in corpus_lib.documents_lib.matching(files) if d.split == "train"]
    assert tokenizer_lib.train_bpe(train, 290, tmp_path / "t.json").sha256 == bpe.sha256
    # A second corpus with the same tokenizer, given by its path.
    again = prepare("text", files, str(out / "tokenizer.json"), 0, tmp_path / "again", "tiny")
    assert again == manifest


def test_a_corpus_prepared_earlier_is_replaced(files, tmp_path):
    out = tmp_path / "out"
    prepare("text", files, "byte", 0, out, "old")
    (out / "notes.md").write_text("mine")
    prepare("text", files, "byte", 0, out, "new")
    assert sorted(read_folder(out)) == ["manifest.json"] + [f"new_{s}_000000.bin" for s in ("train", "tune", "val")] + [
        "notes.md"
    ]


@pytest.mark.parametrize("name, content", [("thesis.tex", "x"), ("manifest.json", '{"files": {}}'), ("manifest.json", "[")])
def test_other_peoples_folders_are_refused_untouched(files, tmp_path, name, content):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(content)
    with pytest.raises(UserError, match="new or empty folder.*--out"):
        prepare("text", files, "byte", 0, out, "tiny")
    assert read_folder(out) == {name: content.encode()}


def test_a_failed_run_harms_nothing(files, tmp_path):
    out = tmp_path / "out"
    prepare("text", files, "byte", 0, out, "tiny")
    before = read_folder(out)
    with pytest.raises(UserError):
        prepare("text", files, "no such tokenizer", 0, out, "tiny")
    assert read_folder(out) == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]


@pytest.mark.parametrize("changes, said", [
    ({"source": "bin"}, "unknown source of documents 'bin'"),
    ({"name": "../up"}, "'../up'"),
    ({"name": ""}, "name of the corpus is ''"),
    ({"name": "my_val"}, "'my_val'"),
    ({"files": "none/*.txt"}, "no file matches 'none/*.txt'"),
])  # fmt: skip
def test_bad_arguments(files, tmp_path, changes, said):
    arguments = {
        "source": "text",
        "files": files,
        "tokenizer": "byte",
        "train_bpe_vocab": 0,
        "out": tmp_path / "out",
        "name": "t",
    }
    with pytest.raises(UserError) as caught:
        prepare(**(arguments | changes))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_out_that_cannot_be_made(files, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written .*--out"):
        prepare("text", files, "byte", 0, tmp_path / "file" / "out", "t")


def test_info_counts(files, tmp_path, monkeypatch):
    monkeypatch.setattr("depthroute.data.prepare.CHUNK", 100)
    manifest = prepare("text", files, "byte", 0, tmp_path / "out", "tiny")
    text = info(DataConfig("text", files, "byte", 8, 2), 257)
    shards = info(DataConfig("bin", f"{tmp_path}/out/*.bin", "byte", 8, 2), 257)
    for split, counts in manifest["splits"].items():
        found = text["splits"][split]
        assert (found["documents"], found["tokens"]) == (counts["documents"], counts["tokens"])
        assert found["sequences"] == (counts["tokens"] - 1) // 8
        assert found["bytes_per_token"] == pytest.approx(counts["bytes"] / counts["tokens"], rel=1e-12)
        assert shards["splits"][split] == found | {"documents": None}
    assert text["fingerprint"] == manifest["fingerprint"]
    assert shards["unigram_nats"] == text["unigram_nats"]
    (tmp_path / "out" / "manifest.json").unlink()  # shards made elsewhere
    shards = info(DataConfig("bin", f"{tmp_path}/out/*.bin", "byte", 8, 2), 257)
    assert all(split["bytes_per_token"] is None for split in shards["splits"].values())


def test_unigram_nats_by_hand():
    # Add-one: (3+1)/7, (1+1)/7, (0+1)/7.
    expected = -(2 * math.log(4 / 7) + 1 * math.log(1 / 7)) / 3
    assert unigram_nats(np.array([3, 1, 0]), np.array([2, 0, 1])) == pytest.approx(expected, rel=1e-12)
