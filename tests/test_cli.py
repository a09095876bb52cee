"""The command line: help, errors of one line, and the commands that train nothing."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from depthroute import cli

ROOT = Path(__file__).parents[1]
TINY = str(ROOT / "configs" / "tiny.py")
COMMANDS = ["train", "sweep", "status", "table", "bench", "data prepare", "data info", "doctor"]


@pytest.fixture
def fails(capsys):
    """fails(*arguments) -> the one line on the standard error of a command that exits with code 2."""

    def run(*arguments):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as refused:  # argparse's own refusals
            code = refused.code
        captured = capsys.readouterr()
        assert code == 2 and captured.out == "" and "Traceback" not in captured.err
        lines = [line for line in captured.err.splitlines() if not line.startswith(("usage:", " "))]
        assert len(lines) == 1, captured.err
        return lines[0]

    return run


@pytest.fixture
def texts(tmp_path):
    """Overrides that read 100 small files in place of the embedded corpus."""
    (tmp_path / "texts").mkdir()
    for i in range(100):
        (tmp_path / "texts" / f"{i:03d}.txt").write_text(f"this is document {i}\n" * 20)
    return ["--config.data.source=text", f"--config.data.files={tmp_path}/texts/*.txt", "--config.data.seq_len=16"]


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_parses(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")  # narrower, and the example is cut at hyphens
    with pytest.raises(SystemExit) as done:
        cli.main([*command.split(), "--help"])
    assert done.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    example = text.partition("example: depthroute ")[2]
    assert example.startswith(command)
    arguments, rest = cli._parser().parse_known_args(shlex.split(example))
    assert arguments.run.__doc__.split(".")[0].split()[0] in text
    assert all(word.startswith("--config.") for word in rest)
    assert (ROOT / getattr(arguments, "config", TINY)).is_file()


def test_help_lists_every_command_and_imports_no_jax():
    code = "import sys, atexit; atexit.register(lambda: print('jax' in sys.modules)); from depthroute.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("\nFalse\n") and "example: depthroute sweep" in done.stdout
    assert all(command.split()[0] in done.stdout for command in COMMANDS)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("--config.model.layrs=3", "unknown config field 'model.layrs' (did you mean 'model.layers'?)"),
        ("--config.router.preset=residul", "unknown router.preset 'residul' (did you mean 'residual'?)"),
        ("--config.model.layers=many", "model.layers is 'many'; allowed: a value of type int"),
        ("--config.model.heads=3", "model.heads is 3; allowed: a divisor of model.dim=32"),
        ("--config.router.query=static", "router.query is 'static'"),
        ("--config.data.source=txt", "unknown data.source 'txt'"),
        ("--config.arm=../up", "run name is '../up'"),
        ("--configuration=x", "unknown argument '--configuration=x'"),
        ("--seed=3", "unknown argument '--seed=3'"),
        ("word", "unknown argument 'word'"),
        ("--config.parallel.data=1000", "data.batch is 8; allowed: a multiple of"),
        ("--config.data.tokenizer=nowhere.json", "data.tokenizer is 'nowhere.json'"),
        ("--config.model.vocab=100", "model.vocab is 100; allowed: at least the 257 ids"),
    ],
)
def test_bad_settings_are_one_line(fails, tmp_path, setting, expected):
    assert f"depthroute: error: {expected}" in fails("train", "--config", TINY, setting, "--workdir", tmp_path / "run")


def test_bad_files_are_one_line(fails, tmp_path):
    (tmp_path / "empty.py").write_text("")
    workdir = ("--workdir", tmp_path / "run")
    assert "'nowhere.py' does not exist" in fails("train", "--config", "nowhere.py", *workdir)
    assert "defines no get_config(arg)" in fails("train", "--config", tmp_path / "empty.py", *workdir)
    assert "defines no sweep(config)" in fails("sweep", "--config", TINY, *workdir)
    assert "does not exist" in fails("status", tmp_path / "nowhere")
    assert "does not exist" in fails("table", tmp_path / "nowhere")
    assert "holds no run folders" in fails("table", tmp_path)
    assert not (tmp_path / "run").exists()


def test_an_argument_that_a_config_does_not_take_is_one_line(fails, tmp_path):
    assert "takes no argument" in fails("train", "--config", f"{TINY}:large", "--workdir", tmp_path / "run")


@pytest.mark.parametrize("command", ["train", "sweep"])
@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_workdir_that_is_a_file_is_one_line(fails, tmp_path, command, below):
    (tmp_path / "file").write_text("")
    config = TINY if command == "train" else ROOT / "configs" / "ablations" / "router_rate.py"
    assert str(tmp_path / "file") in fails(command, "--config", config, "--workdir", tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == ""


def test_unknown_words_are_refused(fails, tmp_path):
    assert "unrecognized arguments: --fast" in fails("doctor", "--fast")
    assert "unrecognized arguments: --config.seed=1" in fails("status", tmp_path, "--config.seed=1")
    assert "invalid choice: 'trian'" in fails("trian")
    assert "--workdir" in fails("train", "--config", TINY)
    assert "unrecognized arguments" in fails("table", tmp_path, "--form", "md")  # no abbreviations


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_shows_the_traceback(capsys, tmp_path, where):
    words = ["train", "--config", "nowhere.py", "--workdir", str(tmp_path / "run")]
    assert cli.main(["--debug", *words] if where == "before" else [*words, "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" in error and error.splitlines()[-1].startswith("depthroute: error: config file 'nowhere.py'")


def test_a_failure_of_our_own_is_one_line_that_points_to_debug(capsys, monkeypatch):
    def broken():
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr("depthroute.doctor.report", broken)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "depthroute: error: ZeroDivisionError: a b; run again with --debug for the traceback\n"
    assert cli.main(["doctor", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


# --- commands --------------------------------------------------------------------------------------------------------


def test_data_info_counts_the_corpus_of_a_config(texts, capsys):
    assert cli.main(["data", "info", "--config", TINY, *texts]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(split["documents"] for split in found["splits"].values()) == 100
    assert set(found["splits"]) == {"train", "tune", "val"} and len(found["fingerprint"]) == 64
    assert all(split["sequences"] == (split["tokens"] - 1) // 16 for split in found["splits"].values())


def test_data_prepare_writes_shards_that_a_config_reads(texts, tmp_path, capsys):
    files = texts[1].partition("=")[2]
    out = tmp_path / "out"
    assert cli.main(["data", "prepare", "--source", "text", "--files", files, "--out", str(out), "--name", "words"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert json.loads((out / "manifest.json").read_text()) == manifest
    shards = ["--config.data.source=bin", f"--config.data.files={out}/*.bin", "--config.data.seq_len=16"]
    assert cli.main(["data", "info", "--config", TINY, *shards]) == 0
    found = json.loads(capsys.readouterr().out)
    for name, split in manifest["splits"].items():
        assert found["splits"][name]["tokens"] == split["tokens"]


def test_doctor_prints_its_report(capsys):
    assert cli.main(["doctor"]) == 0
    assert "  jax " in capsys.readouterr().out
