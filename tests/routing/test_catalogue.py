"""The list of presets, as `depthroute routers` prints it."""

import json
from pathlib import Path

from depthroute.cli import main
from depthroute.routing import catalogue
from depthroute.routing.preset import AXES
from depthroute.routing.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "routers.md"


def test_json_has_every_preset_with_everything_about_it(capsys):
    assert main(["routers", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["router"] for record in records] == list(PRESETS)
    for record in records:
        assert record["equation"] and record["init"] and record["source"] and record["published"]
        assert record["axes"].keys() <= AXES.keys()


def test_the_terminal_table_names_every_preset(capsys):
    assert main(["routers"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in PRESETS)


def test_the_page_is_what_the_command_prints():
    assert PAGE.read_text() == catalogue.markdown()


def test_bars_do_not_break_the_table():
    rows = [line for line in catalogue.markdown().splitlines() if line.startswith("| `")]
    assert len(rows) == len(PRESETS)
    assert all(line.replace("\\|", "").count("|") == len(catalogue.COLUMNS) + 1 for line in rows)
