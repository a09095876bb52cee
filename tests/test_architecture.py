"""Data flows one way: a room imports itself and the rooms above it. And what must be quick does not import JAX."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import depthroute

PACKAGE = Path(depthroute.__file__).parent
ROOMS = (
    "errors",
    "dims",
    "config",
    "nn",
    "routing",
    "model",
    "residual",
    "data",
    "training",
    "runs",
    "bench",
    "launch",
    "doctor",
    "cli",
)
SIBLINGS = {"data": {"nn", "routing", "model", "residual"}}  # rooms above that a room has no business with


def room_of(module):
    """The room of a dotted module name; the package itself, which only offers lazy functions, has none."""
    return module.split(".")[1] if "." in module else None


def imports(file, package=PACKAGE):
    """Dotted names of everything of the package that a file imports, anywhere in it, each name resolved to a module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "depthroute")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            if node.module and node.module.split(".")[0] == "depthroute":
                for alias in node.names:
                    is_module = (package.parent / node.module.replace(".", "/") / alias.name).exists() or (
                        package.parent / node.module.replace(".", "/") / f"{alias.name}.py"
                    ).exists()
                    yield f"{node.module}.{alias.name}" if is_module else node.module


def wrong_arrows(package=PACKAGE):
    """(file, imported module) for every import that goes against the list of rooms."""
    wrong = []
    for file in sorted(package.rglob("*.py")):
        place = file.relative_to(package)
        if str(place) in ("__init__.py", "cli.py"):
            continue
        room = place.parts[0].removesuffix(".py")
        above = set(ROOMS[: ROOMS.index(room) + 1]) - SIBLINGS.get(room, set())
        wrong += [
            (str(place), name) for name in imports(file, package) if room_of(name) is not None and room_of(name) not in above
        ]
    return wrong


def test_every_module_is_in_a_known_room():
    rooms = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms <= set(ROOMS)


def test_rooms_import_only_from_rooms_above():
    assert wrong_arrows() == []


@pytest.mark.parametrize(
    "place, line",
    [
        ("nn/bad.py", "from depthroute.routing.keys import KEYS"),
        ("nn/bad.py", "from depthroute import model"),
        ("routing/bad.py", "def f():\n    import depthroute.training.step"),
        ("data/bad.py", "from depthroute.model.transformer import Model"),
        ("config.py", "from depthroute.nn.norm import rms_norm"),
    ],
)
def test_a_wrong_arrow_is_found(tmp_path, place, line):
    package = tmp_path / "depthroute"
    for room in ("nn", "routing", "model", "data"):
        (package / room).mkdir(parents=True)
    (package / place).write_text(line)
    assert [file for file, _ in wrong_arrows(package)] == [place]


def test_no_one_keeps_state_in_a_global_or_evaluates_text():
    """No `global`, no eval or exec, no pickle; config files are the only code that is loaded by path."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            assert not isinstance(node, ast.Global), file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), file
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"pickle", "marshal", "dill"}, file


def modules_after(code):
    """Names of the modules that a fresh interpreter has loaded after running `code`."""
    report = "import sys, atexit; atexit.register(lambda: print('\\nLOADED', *sys.modules))\n"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", report + code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("\nLOADED")[2].split())


@pytest.mark.parametrize(
    "code",
    [
        "import depthroute.cli",
        "from depthroute.cli import main; main(['--help'])",
        "from depthroute.cli import main; main(['status', '--help'])",
        "from depthroute.cli import main; main(['table', '--help'])",
        "from depthroute.cli import main; main(['bench', '--help'])",
        "import depthroute.routing.presets, depthroute.routing.topology, depthroute.model.counts, depthroute.runs.sweep",
    ],
)
def test_what_must_be_quick_does_not_import_jax(code):
    loaded = modules_after(code)
    assert "depthroute" in loaded
    assert not {name for name in loaded if name.split(".")[0] in ("jax", "jaxlib", "flax", "optax", "orbax")}


def test_the_check_for_jax_can_fail():
    assert "jax" in modules_after("import depthroute.nn.norm")
