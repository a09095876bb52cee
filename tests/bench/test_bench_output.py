import json

import pytest

from depthroute.bench import output
from depthroute.errors import UserError


def test_the_table_has_a_row_per_record_and_says_how_it_was_made(document):
    lines = output.table(document).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 6 and {len(row) for row in rows} == {len(output.COLUMNS)}
    by_name = dict(zip(rows[0], rows[6], strict=True))
    assert (by_name["router"], by_name["layers"], by_name["ratio"], by_name["step (ms)"]) == ("attnres", "4", "1.200", "24.0")
    assert dict(zip(rows[0], rows[2], strict=True))["over limit"] == "-"
    text = "\n".join(lines)
    for said in ("D=32", "T=64", "batch 8", "float32", "cpu:cpu", "n = 3", "2 / 2 GFLOP/s", "2.0 / 1.9 GB/s", "at 2 layers"):
        assert said in text
    assert "REJECTED" not in text


def test_the_summary_is_computed_from_the_records(document):
    lines = output.summary(document, "x/bench.png").splitlines()
    assert lines[0].endswith("(x/bench.png)")
    assert [line for line in lines if line.startswith("* ")][:2] == [
        "* Attention Residuals: `attnres` 1.10 / 1.20",
        "* dynamic query: `qd_ks` 1.20 / 1.30",
    ]
    memory = next(line for line in lines if line.startswith("* memory"))
    plain, most = (next(r for r in document["records"] if r["router"] == name) for name in ("residual", "qd_ks"))
    assert f"{plain['slope_net_btd']:.1f} arrays of [B, T, D] per sublayer for `residual`" in memory
    assert f"at most {most['slope_net_btd']:.1f} (`qd_ks`)" in memory
    assert "p at most 1.00" in memory and "at most 3.6 s, and at most 1.20 times that of 2 layers" in memory


def test_one_depth_is_summarised_without_growth(document, records_of):
    text = output.summary({**document, "records": records_of(2)}, "bench.png")
    assert "at 2 layers" in text and "`attnres` 1.10" in text and "* memory" not in text


def test_a_folder_holds_everything(document, tmp_path):
    output.write(document, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "bench.json",
        "provenance.json",
        "table.md",
        "summary.md",
        "bench.png",
    }
    assert json.loads((tmp_path / "bench.json").read_text()) == document
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "table.md").read_text() == output.table(document)


def test_a_rejected_run_says_so_everywhere(document, tmp_path):
    document["rejected"] = "bandwidth moved"
    assert "**REJECTED: bandwidth moved**" in output.table(document)
    assert "**REJECTED: bandwidth moved**" in output.summary(document, "bench.png")


def test_the_readme_section_is_replaced_and_the_rest_kept(document, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("above\n<!-- bench -->\nold\nolder\n<!-- /bench -->\nbelow\n")
    folder = tmp_path / "records" / "x"
    for _ in range(2):
        output.rewrite(readme, document, folder)
        assert readme.read_text() == (
            f"above\n<!-- bench -->\n{output.summary(document, 'records/x/bench.png')}<!-- /bench -->\nbelow\n"
        )


@pytest.mark.parametrize("text", ["", "<!-- bench -->", "<!-- /bench --><!-- bench -->", "<!-- bench --><!-- /bench -->" * 2])
def test_a_readme_without_one_section_is_refused(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(UserError, match="exactly once"):
        output.check(1, tmp_path, tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text() == text


def test_what_would_fail_at_the_end_fails_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    for arguments, message in [
        ((0, None, None), "repeats is 0"),
        ((1, tmp_path / "file" / "below", None), "give another --out"),
        ((1, None, tmp_path / "file"), "without --out"),
        ((1, tmp_path, tmp_path / "nowhere"), "cannot be read"),
    ]:
        with pytest.raises(UserError, match=message):
            output.check(*arguments)
    output.check(1, tmp_path / "new" / "folder", None)
    assert (tmp_path / "new" / "folder").is_dir()
