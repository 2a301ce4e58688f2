"""The refusal of a configuration names the field and the rule. An accepted configuration is not changed (H1)."""

import os
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.main import get_command

from checkpointing.config import CheckpointConfig, CheckpointingMode, RestartStrategyKind
from jobs import project
from jobs.cli.main import app
from jobs.launch import launch
from jobs.pipelines.registry import UnknownPipelineError, project_of
from jobs.project import InvalidProjectError, Project, here, known_pipelines, project_above
from jobs.settings import Layer, TickSettings, flag_of, flags_layer, folder, resolve, settings_table

FIXED = {"restart_strategy": "fixed_delay"}
RATE = {"restart_strategy": "failure_rate"}
GROWING = {"restart_strategy": "exponential_delay"}

REFUSED = [
    ({"interval_ms": 9}, "interval_ms", "greater than or equal to 10"),
    ({"interval_ms": True}, "interval_ms", "not true or false"),
    ({"every_rows": 0}, "every_rows", "greater than 0"),
    ({"timeout_ms": 9}, "timeout_ms", "greater than or equal to 10"),
    ({"min_pause_ms": -1}, "min_pause_ms", "greater than or equal to 0"),
    ({"min_pause_ms": 31_536_000_001}, "min_pause_ms", "less than or equal to 31536000000"),
    ({"max_concurrent": 0}, "max_concurrent", "greater than or equal to 1"),
    ({"tolerable_failures": -1}, "tolerable_failures", "greater than or equal to 0"),
    ({"tolerable_poll_failures": -1}, "tolerable_poll_failures", "greater than or equal to 0"),
    ({"retained": 0}, "retained", "greater than or equal to 1"),
    ({"max_parallelism": 0}, "max_parallelism", "greater than or equal to 1"),
    ({"max_parallelism": 32_769}, "max_parallelism", "less than or equal to 32768"),
    ({"micro_batch_rows_max": 0}, "micro_batch_rows_max", "greater than 0"),
    ({"slice_rows_max": 0}, "slice_rows_max", "greater than 0"),
    ({"compact_files_min": 1}, "compact_files_min", "greater than or equal to 2"),
    ({"compacted_bytes_max": 0}, "compacted_bytes_max", "greater than or equal to 1"),
    ({"state_backend": "disk"}, "state_backend", "'incremental', 'full' or 'memory'"),
    ({"state_backend": "memory", "memory_state_bytes_max": 0}, "memory_state_bytes_max", "greater than or equal to 1"),
    (
        {"state_backend": "memory", "memory_state_bytes_max": 268_435_457},
        "memory_state_bytes_max",
        "less than or equal to 268435456",
    ),
    ({"memory_state_bytes_max": 5}, "memory_state_bytes_max", "needs state_backend memory"),
    ({"mode": "twice"}, "mode", "'exactly_once' or 'at_least_once'"),
    ({"colour": "red"}, "colour", "not permitted"),
    ({"unaligned": True, "mode": "at_least_once"}, "unaligned", "needs mode exactly_once"),
    ({"unaligned": True, "max_concurrent": 2}, "max_concurrent", "must be 1 with unaligned"),
    ({"alignment_timeout_ms": 5}, "alignment_timeout_ms", "needs unaligned"),
    ({"unaligned": True, "alignment_timeout_ms": -1}, "alignment_timeout_ms", "greater than or equal to 0"),
    ({"unaligned": True, "alignment_timeout_ms": 600_000}, "alignment_timeout_ms", "less than timeout_ms"),
    ({"max_alignment_bytes": 0}, "max_alignment_bytes", "must be positive, or -1"),
    ({"max_alignment_bytes": -2}, "max_alignment_bytes", "must be positive, or -1"),
    ({"max_alignment_bytes": 5, "mode": "at_least_once"}, "max_alignment_bytes", "needs mode exactly_once"),
    ({"max_alignment_bytes": 5, "unaligned": True}, "max_alignment_bytes", "can't go with unaligned"),
    ({"min_pause_ms": 5, "max_concurrent": 2}, "min_pause_ms", "needs max_concurrent 1"),
    ({"rows_of": ["flights"]}, "rows_of", "needs every_rows"),
    ({"rows_of": ["a", "a"], "every_rows": 5}, "rows_of", "must name each source once"),
    ({"slice_rows_max": 11, "micro_batch_rows_max": 10}, "slice_rows_max", "not be more than micro_batch_rows_max"),
    ({"restart_strategy": "often"}, "restart_strategy", "'fixed_delay', 'failure_rate' or 'exponential_delay'"),
    (FIXED | {"restart_attempts": 0}, "restart_attempts", "greater than or equal to 1"),
    (FIXED | {"restart_delay_ms": -1}, "restart_delay_ms", "greater than or equal to 0"),
    (RATE | {"restart_failures_max": 0}, "restart_failures_max", "greater than or equal to 1"),
    (RATE | {"restart_failures_interval_ms": 0}, "restart_failures_interval_ms", "greater than or equal to 1"),
    (GROWING | {"restart_delay_max_ms": 0}, "restart_delay_max_ms", "greater than or equal to 1"),
    (GROWING | {"restart_multiplier": 1}, "restart_multiplier", "greater than 1"),
    (GROWING | {"restart_multiplier": True}, "restart_multiplier", "not true or false"),
    (GROWING | {"restart_multiplier": float("inf")}, "restart_multiplier", "finite"),
    (GROWING | {"restart_reset_after_ms": 0}, "restart_reset_after_ms", "greater than or equal to 1"),
    (GROWING | {"restart_jitter": -0.1}, "restart_jitter", "greater than or equal to 0"),
    (GROWING | {"restart_jitter": 1.1}, "restart_jitter", "less than or equal to 1"),
    ({"restart_attempts": 3}, "restart_attempts", "needs restart_strategy fixed_delay or exponential_delay"),
    (RATE | {"restart_attempts": 3}, "restart_attempts", "needs restart_strategy fixed_delay or exponential_delay"),
    (
        {"restart_delay_ms": 3},
        "restart_delay_ms",
        "needs restart_strategy fixed_delay or failure_rate or exponential_delay",
    ),
    (FIXED | {"restart_failures_max": 3}, "restart_failures_max", "needs restart_strategy failure_rate"),
    (
        FIXED | {"restart_failures_interval_ms": 3},
        "restart_failures_interval_ms",
        "needs restart_strategy failure_rate",
    ),
    (FIXED | {"restart_delay_max_ms": 3}, "restart_delay_max_ms", "needs restart_strategy exponential_delay"),
    (RATE | {"restart_multiplier": 3}, "restart_multiplier", "needs restart_strategy exponential_delay"),
    (FIXED | {"restart_reset_after_ms": 3}, "restart_reset_after_ms", "needs restart_strategy exponential_delay"),
    (FIXED | {"restart_jitter": 0.5}, "restart_jitter", "needs restart_strategy exponential_delay"),
    (GROWING | {"restart_delay_ms": 0}, "restart_delay_ms", "must be at least 1: nothing grows from 0"),
    (GROWING | {"restart_delay_max_ms": 999}, "restart_delay_max_ms", "must not be less than restart_delay_ms"),
    (
        GROWING | {"restart_delay_ms": 300_001},
        "restart_delay_max_ms",
        "must not be less than restart_delay_ms, which is 300001",
    ),
]
LIMITS = {
    **dict.fromkeys(("interval_ms", "timeout_ms", "alignment_timeout_ms"), 3_153_600_000_000),
    **dict.fromkeys(("every_rows", "micro_batch_rows_max", "slice_rows_max"), 2**53 - 1),
    **dict.fromkeys(("max_alignment_bytes", "compacted_bytes_max"), 2**53 - 1),
    **dict.fromkeys(("tolerable_failures", "tolerable_poll_failures"), 2**31 - 1),
    "max_concurrent": 1_000,
    "retained": 10_000,
    "compact_files_min": 1_000,
}
"""The largest value of each number. Larger numbers make no sense, and some would cause an error much later."""
REFUSED += [({name: most + 1}, name, f"less than or equal to {most}") for name, most in LIMITS.items()]
REFUSED += [({name: 10**30}, name, "less than or equal to") for name in LIMITS]
REFUSED += [
    (FIXED | {"restart_delay_ms": 10**30}, "restart_delay_ms", "less than or equal to 3153600000000"),
    (FIXED | {"restart_attempts": 2**31}, "restart_attempts", "less than or equal to 2147483647"),
    (RATE | {"restart_failures_max": 2**31}, "restart_failures_max", "less than or equal to 2147483647"),
    (RATE | {"restart_failures_interval_ms": 10**13}, "restart_failures_interval_ms", "less than or equal to 31536"),
    (GROWING | {"restart_delay_max_ms": 10**13}, "restart_delay_max_ms", "less than or equal to 3153600000000"),
    (GROWING | {"restart_reset_after_ms": 10**13}, "restart_reset_after_ms", "less than or equal to 3153600000000"),
    (GROWING | {"restart_multiplier": 1e300}, "restart_multiplier", "less than or equal to 1000"),
    (GROWING | {"restart_multiplier": float("nan")}, "restart_multiplier", "finite"),
]


@pytest.mark.parametrize(("values", "field", "rule"), REFUSED)
def test_a_refusal_names_field_and_rule(values, field, rule):
    """Each invalid value or combination is refused. The message names the field and the rule."""
    with pytest.raises(ValidationError) as refused:
        CheckpointConfig(**values)
    assert field in str(refused.value)
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"unaligned": True, "alignment_timeout_ms": 0},
        {"max_alignment_bytes": -1},
        {"max_alignment_bytes": 1},
        {"every_rows": 12_000, "rows_of": ["flights"]},
        {"mode": CheckpointingMode.AT_LEAST_ONCE, "max_concurrent": 3},
        {"interval_ms": 10, "min_pause_ms": 0, "max_concurrent": 2},
        {"restart_strategy": RestartStrategyKind.FIXED_DELAY, "restart_attempts": 1, "restart_delay_ms": 0},
        {"restart_strategy": RestartStrategyKind.FAILURE_RATE, "restart_failures_max": 1, "restart_delay_ms": 0},
        {
            "restart_strategy": RestartStrategyKind.EXPONENTIAL_DELAY,
            "restart_delay_ms": 5,
            "restart_delay_max_ms": 5,
            "restart_jitter": 1.0,
        },
    ],
)
def test_a_valid_configuration_is_accepted_unchanged(values):
    """Nothing is silently corrected."""
    config = CheckpointConfig(**values)
    assert values == {
        field: list(value) if isinstance(value := getattr(config, field), tuple) else value for field in values
    }


def test_every_field_has_a_refusal_here():
    """A new field needs rules. Only a switch needs none."""
    switches = {"retain_on_cancellation"}
    assert CheckpointConfig.model_fields.keys() - switches <= {field for _, field, _ in REFUSED}


def test_every_bound_of_a_field_is_tested():
    """This test fails for a new bound without a refusal above. Of two upper bounds, the lower one counts."""
    bounds = {"ge": "greater than or equal to", "gt": "greater than", "le": "less than or equal to", "lt": "less than"}
    declared = {
        (field, name): f"{said} {getattr(bound, name)}"
        for field, info in CheckpointConfig.model_fields.items()
        for bound in sorted(info.metadata, key=lambda each: -getattr(each, "le", 0))
        for name, said in bounds.items()
        if hasattr(bound, name)
    }
    tested = {(field, rule) for _, field, rule in REFUSED}
    assert set() == {(field, rule) for (field, _), rule in declared.items()} - tested


def test_every_contradiction_is_tested():
    """This test fails for a new rule over several fields that has no refusal above."""
    for _, field, rule in CheckpointConfig().contradictions():
        tested = [words for _, named, words in REFUSED if named == field]
        assert any(words in rule or rule.startswith(words) for words in tested), f"{field}: {rule}"


def test_the_effective_interval_is_not_shorter_than_the_pause():
    """A trigger inside the pause would always be refused (Flink: baseInterval)."""
    assert CheckpointConfig(interval_ms=50, min_pause_ms=80).effective_interval_ms == 80
    assert CheckpointConfig(min_pause_ms=80).effective_interval_ms is None


# ------------------------------------------------------------------
# docs/SETTINGS.md is generated from the model of settings, and agrees with the command line.


ROOT = Path(__file__).resolve().parents[2]
NOT_SETTINGS = {"--from", "--claim", "--no-claim", "--dry-run", "--set"}


def test_the_document_has_the_models_settings():
    """After a change of a setting, type `.venv/bin/python -m jobs.settings > docs/SETTINGS.md`."""
    assert settings_table() == (ROOT / "docs" / "SETTINGS.md").read_text(encoding="utf-8")


def test_every_setting_has_a_meaning():
    """No row of the table lacks an explanation."""
    assert [] == [name for name, info in TickSettings.model_fields.items() if not info.description]


def test_the_flags_are_those_of_the_command():
    """Each flag of `tidemark run` that sets a value is in the table, and no others are."""
    options = {
        word
        for option in get_command(app).commands["run"].params
        if option.param_type_name == "option"
        for word in (*option.opts, *option.secondary_opts)
    }
    shown = {word for name in TickSettings.model_fields for word in (flag_of(name) or "").split("/") if word}
    assert options - NOT_SETTINGS == shown


# ------------------------------------------------------------------
# A project's own settings: the content of `[tool.tidemark]` in its pyproject.toml, and the base of its paths.


NOTHING = Layer("", {})
SHOP = """
[tool.tidemark]
warehouse = "lake"
data = "in"

[tool.tidemark.pipelines]
shop = "shop_of_a_test:build"
"""
MODULE = """
from tidemark import Pipeline, SequenceSource

def build(data):
    pipeline = Pipeline("shop")
    pipeline.source("numbers", SequenceSource({"all": 10})).table("bronze/numbers", id="bronze")
    return pipeline

named_otherwise = Pipeline("web_shop")
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project with one registered pipeline. After the test, Python forgets its modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delitem(sys.modules, "shop_of_a_test", raising=False)
    for name in ("WAREHOUSE", "DATA"):
        monkeypatch.delenv(f"TIDEMARK_{name}", raising=False)
    folder = tmp_path / "shop"
    (folder / "deep" / "inside").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(SHOP)
    (folder / "shop_of_a_test.py").write_text(MODULE)
    return folder


def test_the_nearest_pyproject_above_is_the_project(shop):
    """It is found from any folder inside the project. Outside, no project is found."""
    found = project_above(shop / "deep" / "inside")
    assert (shop, {"shop": "shop_of_a_test:build"}, "shop") == (found.root, found.pipelines, found.default)
    assert {"warehouse": "lake", "data": "in"} == found.folders
    assert project_above(shop.parent) is None


def test_of_several_pipelines_none_is_the_default_without_a_setting(tmp_path):
    """A guess could run the wrong pipeline."""
    two = '[tool.tidemark.pipelines]\na = "m:a"\nb = "m:b"\n'
    (tmp_path / "pyproject.toml").write_text(two)
    assert project_above(tmp_path).default is None
    (tmp_path / "pyproject.toml").write_text(f'[tool.tidemark]\ndefault = "b"\n{two}')
    assert "b" == project_above(tmp_path).default


def test_a_pyproject_without_the_table_is_a_project_without_pipelines(tmp_path):
    """Such a project only sets the folder for paths. Tidemark's own pipelines are still known under their names."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "else"\n')
    assert Project(tmp_path) == project_above(tmp_path)
    assert known_pipelines(None) == known_pipelines(Project(tmp_path)) == tuple(project.OWN)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.tidemark", "cannot be read"),
        ("[tool]\ntidemark = 3", "tool.tidemark must be a table"),
        ('[tool.tidemark]\nwarehous = "x"', "has no key 'warehous': did you mean 'warehouse'?"),
        ('[tool.tidemark]\nwarehouse = ""', "warehouse must be a text that is not empty"),
        ("[tool.tidemark]\ndata = 3", "data must be a text that is not empty, not 3"),
        ('[tool.tidemark]\npipelines = "x"', "as a table, like shop ="),
        ('[tool.tidemark.pipelines]\nShop = "m:a"', "pipelines.Shop: "),
        ('[tool.tidemark.pipelines]\nshop = "m"', 'write it as module:attribute, like "shop.pipeline:build"'),
        ('[tool.tidemark.pipelines]\nshop = ":a"', "write it as module:attribute"),
        ('[tool.tidemark]\ndefault = "shp"\n[tool.tidemark.pipelines]\nshop = "m:a"', "did you mean 'shop'?"),
    ],
)
def test_a_table_that_breaks_a_rule_is_refused_by_file_and_key(tmp_path, text, said):
    """One sentence names the file, the key and what to write."""
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidProjectError) as refused:
        project_above(tmp_path)
    assert str(tmp_path / "pyproject.toml") in str(refused.value)
    assert said in str(refused.value)


def test_paths_are_relative_to_the_project(shop, monkeypatch):
    """So a daemon in another folder and a shell in a subfolder use the same warehouse."""
    monkeypatch.chdir(shop)
    assert Path("lake") == folder("warehouse", NOTHING)
    monkeypatch.chdir(shop / "deep")
    assert shop / "lake" == folder("warehouse", NOTHING) == resolve({}, NOTHING).warehouse
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", "other")
    assert shop / "other" == folder("warehouse", NOTHING) == resolve({}, NOTHING).warehouse
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", "/mnt/lake")
    assert Path("/mnt/lake") == folder("warehouse", NOTHING) == resolve({}, NOTHING).warehouse
    monkeypatch.chdir(shop.parent)
    given = Layer("set in the launchpad", {"warehouse": "mine"})
    assert shop / "mine" == resolve({}, given, project=project_above(shop)).warehouse
    assert shop / "in" == resolve({}, given, project=project_above(shop)).data


def test_a_path_typed_in_a_shell_is_relative_to_the_shells_folder(shop, monkeypatch):
    """The shell completes paths relative to that folder, too."""
    monkeypatch.chdir(shop / "deep")
    assert Path("x") == folder("warehouse", flags_layer({"warehouse": Path("x")}))
    assert Path("x") == resolve({}, flags_layer({"warehouse": Path("x")})).warehouse


def test_a_pipeline_given_as_a_function_belongs_to_the_project_of_its_module(shop, monkeypatch):
    """Dagster's daemon may run anywhere, even inside another project."""
    monkeypatch.chdir(shop)
    found = launch("shop", NOTHING)
    assert (Path("lake"), "shop") == (found.settings.warehouse, found.plan.job)
    build = sys.modules["shop_of_a_test"].build
    monkeypatch.chdir(ROOT)
    assert shop / "lake" == launch(build, NOTHING).settings.warehouse
    assert shop == project_of("shop_of_a_test:build").root
    assert ROOT == project_of("flights").root


def test_a_module_of_an_installed_package_belongs_to_no_project_above_it(tmp_path, monkeypatch):
    """An environment is often inside the folder of some project. Its packages do not belong to that project."""
    (tmp_path / "pyproject.toml").write_text("")
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "installed_by_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.chdir(ROOT)
    assert ROOT == project_of("installed_by_a_test:build").root


def test_the_projects_modules_can_be_imported_here_and_by_sparks_workers(shop, monkeypatch):
    """The project's folder and the working directory come last on both paths, so they hide no package."""
    monkeypatch.chdir(shop / "deep")
    assert "shop" == launch("shop_of_a_test:build", NOTHING).plan.job
    assert [str(shop), str(shop / "deep")] == sys.path[-2:]
    assert [str(shop), str(shop / "deep")] == os.environ["PYTHONPATH"].split(os.pathsep)


def test_a_pipeline_is_registered_under_its_own_name(shop, monkeypatch):
    """A pipeline's name is its folder in the warehouse. With two names, commands would use two folders."""
    (shop / "pyproject.toml").write_text('[tool.tidemark.pipelines]\nshop = "shop_of_a_test:named_otherwise"\n')
    monkeypatch.chdir(shop)
    with pytest.raises(UnknownPipelineError, match="pipeline 'shop' calls itself 'web_shop': register it in"):
        launch("shop", NOTHING)


def test_a_deleted_working_directory_is_no_project(tmp_path, monkeypatch):
    """In a deleted directory, a command still works with absolute paths."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert here() is None
    assert Path("/w") == folder("warehouse", Layer("", {"warehouse": "/w"}))
