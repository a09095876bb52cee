"""Config: every file loads, every field is checked, and every refusal is one line that says what to do."""

import copy

import pytest
from cases import CONFIGS
from expect import refused

from depthroute import config as config_lib
from depthroute.model.counts import num_params
from depthroute.routing.presets import check
from depthroute.runs.sweep import plan

FILES = sorted(CONFIGS.rglob("*.py"))


@pytest.fixture
def base():
    return config_lib.load_file(CONFIGS / "base.py")[0]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CONFIGS)))
def test_every_config_file_resolves_and_its_sweep_plans(file):
    config, module = config_lib.load_file(file)
    assert config.is_locked
    check(config_lib.resolve(config))
    assert module.__doc__ and module.get_config.__doc__
    if hasattr(module, "sweep"):
        planned = plan(config, module)
        assert planned.runs and planned.baseline in planned.arms


@pytest.mark.parametrize("changes", [{}, {"router.rank": 64}, {"model.dim": 128, "model.mlp_dim": 352}])
def test_the_matched_arm_of_the_grid_has_the_parameters_of_the_largest_cell_whatever_was_overridden(changes):
    config, module = config_lib.load_file(CONFIGS / "ablations" / "key_query_grid.py")
    params = {run.config.arm: num_params(run.config) for run in plan(config_lib.overlay(config, changes), module).runs}
    largest = max(params[arm] for arm in module.ROUTED)
    dim, layers = ({"model.dim": 64} | changes)["model.dim"], 4
    assert abs(params["residual_matched"] - largest) <= 3 * dim * layers / 2  # half a hidden unit in every layer


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CONFIGS)))
def test_config_files_take_no_unknown_argument(file):
    refused(lambda: config_lib.load_file(f"{file}:what"), "'what'", "no argument", "--config FILE")


def test_bad_files_are_refused(tmp_path):
    refused(lambda: config_lib.load_file(tmp_path / "none.py"), "none.py", "does not exist", "--config")
    (tmp_path / "config.json").write_text("{}")
    refused(lambda: config_lib.load_file(tmp_path / "config.json"), "config.json", "not a .py file")
    (tmp_path / "empty.py").write_text("")
    refused(lambda: config_lib.load_file(tmp_path / "empty.py"), "empty.py", "get_config", "configs/base.py")


# --- overrides -------------------------------------------------------------------------------------------------------


def test_overrides_are_parsed():
    found = config_lib.parse_overrides(["--config.model.dim=64", "--config.arm=a=b", "--config.data.files="])
    assert found == {"model.dim": "64", "arm": "a=b", "data.files": ""}


@pytest.mark.parametrize("argument", ["--config.model.dim", "--model.dim=3", "model.dim=3", "--config.=3", "-x"])
def test_other_arguments_are_refused(argument):
    refused(lambda: config_lib.parse_overrides([argument]), repr(argument), "--config.section.field=value")


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("model.dim", "64", 64),
        ("train.lr", "1e-4", 1e-4),
        ("train.lr", "1", 1.0),
        ("model.remat", "true", True),
        ("model.remat", "True", True),
        ("model.tied_head", "false", False),
        ("model.tied_head", "False", False),
        ("data.files", "5", "5"),
        ("data.files", "true", "true"),
        ("router.preset", "attnres", "attnres"),
        ("seed", "7", 7),
    ],
)
def test_text_becomes_a_value_of_the_fields_type(base, name, text, value):
    found = dict(config_lib.flatten(config_lib.overlay(base, {name: text}).to_dict()))[name]
    assert found == value and type(found) is type(value)


def test_an_int_becomes_a_float_where_one_is_due(base):
    found = config_lib.overlay(base, {"train.lr": 1, "router.lr_multiplier": 3})
    assert type(found.train.lr) is float and found.train.lr == 1.0
    assert found.router.lr_multiplier == 3.0


def test_an_overlay_is_a_locked_copy(base):
    before = copy.deepcopy(base.to_dict())
    found = config_lib.overlay(base, {"model.dim": 512})
    assert found.model.dim == 512 and found.is_locked
    assert base.to_dict() == before
    with pytest.raises((KeyError, AttributeError)):
        found.model.dims = 3


@pytest.mark.parametrize(
    "name, value, kind",
    [
        ("model.dim", "wide", "int"),
        ("model.dim", "1.5", "int"),
        ("model.dim", 1.5, "int"),
        ("model.dim", "true", "int"),
        ("train.lr", "fast", "float"),
        ("train.lr", "true", "float"),
        ("model.remat", "yes", "bool"),
        ("model.remat", "1", "bool"),
        ("router.preset", 3, "str"),
        ("model.layers", "__import__('os')", "int"),
        ("model.layers", "[1]", "int"),
    ],
)
def test_a_wrong_type_is_refused_by_overlay(base, name, value, kind):
    refused(lambda: config_lib.overlay(base, {name: value}), f"{name} is ", f"type {kind}", f"--config.{name}=")


@pytest.mark.parametrize(
    "name, near",
    [("model.dims", "model.dim"), ("router.presett", "router.preset"), ("train.learning_rate", "--config."), ("sede", "seed")],
)
def test_an_unknown_override_gets_the_nearest_name(base, name, near):
    refused(lambda: config_lib.overlay(base, {name: 3}), "config field", repr(name), near)


def test_a_section_is_no_field(base):
    refused(lambda: config_lib.overlay(base, {"model": {}}), "unknown config field 'model'")


# --- resolving -------------------------------------------------------------------------------------------------------


def edited(base, name, value):
    nested = base.to_dict()
    *sections, field = name.split(".")
    section = nested
    for part in sections:
        section = section[part]
    section[field] = value
    return nested


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(CONFIGS)))
def test_resolve_is_the_inverse_of_to_dict(file):
    resolved = config_lib.resolve(config_lib.load_file(file)[0])
    assert config_lib.resolve(config_lib.to_dict(resolved)) == resolved
    assert hash(resolved) == hash(config_lib.resolve(config_lib.to_dict(resolved)))


def test_resolved_values_are_the_files_values(base):
    assert config_lib.to_dict(config_lib.resolve(base)) == base.to_dict()


@pytest.mark.parametrize(
    "name, value, parts",
    [
        ("model.dims", 3, ["unknown config field 'model.dims'", "did you mean 'model.dim'", "known: "]),
        ("model.headss", 3, ["unknown config field 'model.headss'", "did you mean 'model.heads'"]),
        ("models", {}, ["unknown config field 'models'", "did you mean 'model'"]),
        ("model", 3, ["model is 3", "a section with fields"]),
        ("model.dim", "64", ["model.dim is '64'", "type int"]),
        ("model.dim", 64.0, ["model.dim is 64.0", "type int"]),
        ("model.dim", True, ["model.dim is True", "type int"]),
        ("model.remat", 0, ["model.remat is 0", "type bool"]),
        ("train.lr", None, ["train.lr is None", "type float"]),
        ("model.dim", 0, ["model.dim is 0", "at least 1"]),
        ("train.lr", -1e-3, ["train.lr is -0.001", "at least 0.0"]),
        ("train.lr", float("nan"), ["train.lr is nan", "at least 0.0"]),
        ("train.beta2", 1.5, ["train.beta2 is 1.5", "0.0 to 0.999999"]),
        ("seed", -1, ["seed is -1", "0 to 4294967295"]),
        ("model.vocab", 1, ["model.vocab is 1", "at least 2"]),
        ("router.key", "dynamics_full", ["router.key 'dynamics_full'", "did you mean 'dynamic_full'", "static_per_consumer"]),
        ("router.mixing", "soft", ["router.mixing 'soft'", "softmax", "sigmoid", "free"]),
        ("model.dtype", "float64", ["model.dtype 'float64'", "float32", "bfloat16"]),
        ("parallel.strategy", "pjit", ["parallel.strategy 'pjit'", "did you mean 'jit'"]),
        ("engine.history", "buffers", ["engine.history 'buffers'", "list"]),
        ("model.heads", 3, ["model.heads is 3", "a divisor of model.dim=256"]),
        ("model.heads", 256, ["model.heads is 256", "even head width", "model.dim=256"]),
        ("model.kv_heads", 3, ["model.kv_heads is 3", "a divisor of model.heads=4"]),
        ("train.warmup", 2001, ["train.warmup is 2001", "train.steps=2000"]),
        ("data.batch", 3, ["data.batch is 3", "parallel.data x parallel.fsdp = 2"]),
        ("parallel.fsdp", 2, ["parallel.fsdp is 2", "parallel.strategy='pmap'"]),
    ],
)
def test_bad_values_are_refused_in_one_line(base, name, value, parts):
    if name == "data.batch":
        base = config_lib.overlay(base, {"train.accumulate": 2})
    if name == "parallel.fsdp":
        base = config_lib.overlay(base, {"parallel.strategy": "pmap"})
    refused(lambda: config_lib.resolve(edited(base, name, value)), *parts, "config file")


@pytest.mark.parametrize("factors", [{"train.accumulate": 8}, {"parallel.data": 8}, {"parallel.data": 2, "parallel.fsdp": 4}])
def test_a_batch_must_divide_among_devices_and_microbatches(base, factors):
    config = config_lib.overlay(base, factors)
    refused(lambda: config_lib.resolve(config), "data.batch is 4", "= 8", "--config.data.batch=")
    config_lib.resolve(config_lib.overlay(config, {"data.batch": 16}))


def test_a_missing_field_is_named(base):
    nested = base.to_dict()
    del nested["model"]["dim"]
    refused(lambda: config_lib.resolve(nested), "'model.dim' is missing", "add it")
    del nested["train"]
    refused(lambda: config_lib.resolve({k: v for k, v in nested.items() if k != "model"}), "'model' is missing")


def test_an_int_in_a_file_stands_for_a_float(base):
    resolved = config_lib.resolve(edited(base, "train.lr", 1))
    assert type(resolved.train.lr) is float


# --- comparing -------------------------------------------------------------------------------------------------------


def test_differences_name_fields_and_both_values(base):
    a = config_lib.resolve(base)
    b = config_lib.resolve(config_lib.overlay(base, {"seed": 1, "model.dim": 512}))
    assert config_lib.differences(a, b) == {"seed": (0, 1), "model.dim": (256, 512)}
    assert config_lib.differences(a, a) == {}


def test_runs_that_differ_in_name_or_seed_share_a_program(base):
    key = config_lib.program_key(config_lib.resolve(base))

    def key_with(**overrides):
        return config_lib.program_key(config_lib.resolve(config_lib.overlay(base, overrides)))

    assert key_with(**{"arm": "other", "seed": 5, "router.lr_trials": 7, "router.lr_tuned": True}) == key
    assert key_with(**{"model.dim": 512}) != key
    assert key_with(**{"train.steps": 100}) != key
