"""Token shards: the file format, long sequences over several files, and every way a file can be wrong."""

import numpy as np
import pytest

from depthroute.data.shards import HEADER_BYTES, MAGIC, ShardWriter, Tokens, open_shard
from depthroute.errors import UserError


def write_by_hand(path, tokens, magic=MAGIC, version=1, count=None, dtype="<u2"):
    """The format spelled out once more, so that reader and writer are not only tested against each other."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    path.write_bytes(header.tobytes() + np.asarray(tokens, dtype).tobytes())
    return path


@pytest.mark.parametrize("vocab, version, dtype", [(2**16, 1, "<u2"), (2**16 + 1, 2, "<u4")])
def test_round_trip(tmp_path, vocab, version, dtype):
    tokens = np.random.default_rng(0).integers(0, vocab, 1000)
    tokens[500] = vocab - 1
    with ShardWriter(tmp_path, "c_train", vocab) as writer:
        for piece in np.array_split(tokens, 7):
            writer.write(piece)
    by_hand = write_by_hand(tmp_path / "by_hand", tokens, version=version, dtype=dtype)
    assert (tmp_path / "c_train_000000.bin").read_bytes() == by_hand.read_bytes()
    assert np.array_equal(Tokens("train", writer.paths, vocab).window(0, 1000), tokens)


def test_llama_header_is_read(tmp_path):
    path = write_by_hand(tmp_path / "llama.bin", [5, 100_000], magic=20240801, version=7, dtype="<u4")
    assert open_shard(path).tolist() == [5, 100_000]


def test_writer_starts_a_new_shard_when_one_is_full(tmp_path):
    with ShardWriter(tmp_path, "c_val", 100, shard_tokens=10) as writer:
        writer.write(np.arange(7))
        writer.write(np.arange(7, 30))
    assert [path.name for path in writer.paths] == [f"c_val_00000{i}.bin" for i in range(3)]
    assert [open_shard(path).tolist() for path in writer.paths] == np.arange(30).reshape(3, 10).tolist()


@pytest.mark.parametrize("token", [-1, 100])
def test_writer_refuses_ids_outside_the_vocabulary(tmp_path, token):
    with ShardWriter(tmp_path, "c", 100) as writer, pytest.raises(ValueError, match="100"):
        writer.write(np.array([3, token]))


def test_windows_equal_slices_of_the_concatenation(tmp_path):
    pieces = np.split(np.arange(60), [1, 2, 20, 23, 50])
    paths = [write_by_hand(tmp_path / f"{i}.bin", piece) for i, piece in enumerate(pieces)]
    tokens = Tokens("train", paths, 60)
    assert len(tokens) == 60
    for length in (1, 2, 5, 30, 60):
        starts = np.arange(60 - length + 1)
        windows = tokens.windows(starts, length)
        assert windows.dtype == np.int32
        assert np.array_equal(windows, starts[:, None] + np.arange(length))
    assert tokens.window(18, 6).tolist() == [18, 19, 20, 21, 22, 23]


@pytest.mark.parametrize("start", [-1, 8])
def test_windows_do_not_leave_the_sequence(tmp_path, start):
    tokens = Tokens("train", [write_by_hand(tmp_path / "a.bin", range(10))], 10)
    with pytest.raises(IndexError):
        tokens.window(start, 3)


def test_foreign_token_is_named_with_its_place(tmp_path):
    first = write_by_hand(tmp_path / "a_train_0.bin", range(10))
    second = write_by_hand(tmp_path / "b_train_0.bin", [1, 2, 3, 50256, 4])
    tokens = Tokens("train", [first, second], 257)
    assert tokens.window(0, 13)[-1] == 3
    with pytest.raises(UserError) as caught:
        tokens.window(8, 7)
    message = str(caught.value)
    assert f"token id 50256 in shard {str(second)!r} at position 3 is not below model.vocab=257" in message
    assert "\n" not in message


def test_foreign_token_past_int32_is_seen(tmp_path):
    path = write_by_hand(tmp_path / "a.bin", [2**32 - 1], version=2, dtype="<u4")
    with pytest.raises(UserError, match=str(2**32 - 1)):
        Tokens("train", [path], 257).window(0, 1)


def test_two_gigabytes_open_as_a_map(tmp_path):
    path, count = tmp_path / "big_train_0.bin", 10**9
    write_by_hand(path, [], count=count)
    with open(path, "r+b") as file:
        file.truncate(HEADER_BYTES + 2 * count)  # sparse: takes no room on the disk
        file.seek(HEADER_BYTES + 2 * (count - 1))
        file.write(np.array([7], "<u2").tobytes())
    assert isinstance(open_shard(path), np.memmap)
    tokens = Tokens("train", [path], 257)
    assert len(tokens) == count
    assert tokens.window(count - 3, 3).tolist() == [0, 0, 7]


def missing(path):
    pass


def folder(path):
    path.mkdir()


def short(path):
    path.write_bytes(b"x" * 12)


def foreign(path):
    write_by_hand(path, [1, 2], magic=1234)


def unknown_version(path):
    write_by_hand(path, [1, 2], version=9)


def truncated(path):
    write_by_hand(path, [1, 2, 3], count=5)


def longer(path):
    write_by_hand(path, [1, 2, 3], count=2)


def empty(path):
    write_by_hand(path, [])


@pytest.mark.parametrize(
    "make, said",
    [
        (missing, "cannot be read (No such file or directory)"),
        (folder, "cannot be read (Is a directory)"),
        (short, "is 12; allowed: at least the 1024"),
        (foreign, "magic number of shard {} is 1234; allowed: 20240520"),
        (unknown_version, "version of shard {} is 9; allowed: 1 or 2"),
        (truncated, "size in bytes of shard {} is 1030; allowed: 1034, since its header counts 5 tokens"),
        (longer, "size in bytes of shard {} is 1030; allowed: 1028"),
        (empty, "number of tokens of shard {} is 0; allowed: at least 1"),
    ],
)
def test_bad_shard_is_told_in_one_line(tmp_path, make, said):
    path = tmp_path / "x_train_0.bin"
    make(path)
    with pytest.raises(UserError) as caught:
        Tokens("train", [path], 257)
    message = str(caught.value)
    assert said.format(repr(str(path))) in message
    assert str(path) in message and "data.files" in message and "\n" not in message
