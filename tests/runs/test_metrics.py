"""metrics.jsonl survives torn and damaged lines, and a resumed run's repeats."""

import json
import math
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthroute.runs import metrics

RECORDS = [{"step": step, "split": split, "loss": 1 / step} for step in (1, 2, 3) for split in ("train", "val")]
VALUES = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.booleans() | st.none()
ROWS = st.lists(st.dictionaries(st.text(), VALUES), max_size=6).map(
    lambda rows: [{**row, "step": step, "split": "train"} for step, row in enumerate(rows)]
)


def lines(records):
    return b"".join(map(metrics.encode, records))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("metrics") / "metrics.jsonl"


def read(path, content):
    path.write_bytes(content)
    return metrics.read(path)


def test_a_line_is_json_that_ends_with_the_checksum_of_what_stands_before():
    line = metrics.encode({"step": 3, "split": "val", "loss": 2.5})
    body = b'{"step": 3, "split": "val", "loss": 2.5'
    assert line == body + b', "crc32": %d}\n' % zlib.crc32(body)
    assert json.loads(line)["crc32"] == zlib.crc32(body)


def test_numbers_that_are_not_finite_stay_json():
    record = metrics.decode(metrics.encode({"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e-300}))
    assert record == {"a": "nan", "b": "inf", "c": "-inf", "d": 1e-300}


@given(ROWS)
def test_round_trip(path, rows):
    assert read(path, lines(rows)) == rows


@given(ROWS, st.data())
def test_a_file_cut_anywhere_yields_a_beginning_of_what_was_written(path, rows, data):
    content = lines(rows)
    cut = data.draw(st.integers(0, len(content)))
    found = read(path, content[:cut])
    assert found == rows[: len(found)]
    assert len(found) >= content[:cut].count(b"\n")


@given(ROWS.filter(bool), st.data())
def test_a_damaged_byte_costs_the_lines_it_touches_and_invents_nothing(path, rows, data):
    content = bytearray(lines(rows))
    place, flip = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
    content[place] ^= flip
    found = read(path, bytes(content))
    assert [row for row in rows if row in found] == found
    assert len(found) >= len(rows) - 2


def test_a_damaged_line_is_left_out(path):
    content = lines(RECORDS).replace(b'"step": 2, "split": "val"', b'"step": 2, "split": "vax"')
    assert read(path, content) == [record for record in RECORDS if record["step"] != 2 or record["split"] != "val"]


def test_the_last_record_of_a_step_counts_and_steps_are_in_order(path):
    again = {"step": 2, "split": "train", "loss": 7.0}
    found = read(path, lines([*RECORDS, again]))
    assert [record["step"] for record in found] == [1, 1, 2, 2, 3, 3]
    assert again in found and RECORDS[2] not in found


def test_a_missing_file_has_no_records(tmp_path):
    assert metrics.read(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("torn", [b"", b'{"step": 9', lines(RECORDS[:1])[:-1]])
def test_appending_after_a_torn_line_damages_nothing(path, torn):
    path.write_bytes(lines(RECORDS[:3]) + torn)
    for record in RECORDS[3:]:  # each opened and closed on its own
        file = metrics.MetricsFile(path)
        file.write(record)
        file.close()
    assert path.read_bytes() == lines(RECORDS)


def test_a_record_is_with_the_operating_system_once_written(tmp_path):
    file = metrics.MetricsFile(tmp_path / "metrics.jsonl")
    file.write(RECORDS[0])
    assert metrics.read(tmp_path / "metrics.jsonl") == RECORDS[:1]
    file.close()
