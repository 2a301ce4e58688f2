"""The configuration of a tick: which layer of settings wins, and what an error reports."""

from pathlib import Path

import pytest
from pydantic_settings import NoDecode

from checkpointing.config import CheckpointConfig, CheckpointingMode
from checkpointing.job.setup import TickLimits
from jobs.settings import InvalidSettingsError, TickSettings, duration_ms, flags_layer, folder, launchpad_layer, resolve

NOTHING = flags_layer({})


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    for name in TickSettings.model_fields:
        monkeypatch.delenv(f"TIDEMARK_{name.upper()}", raising=False)


def test_each_later_layer_wins(monkeypatch):
    """Field by field, flags win over the environment, then the pipeline's own settings, then the defaults."""
    assert 1 == resolve({}, NOTHING).retained
    assert 2 == resolve({"retained": 2}, NOTHING).retained
    monkeypatch.setenv("TIDEMARK_RETAINED", "3")
    assert 3 == resolve({"retained": 2}, NOTHING).retained
    assert 4 == resolve({"retained": 2}, flags_layer({"retained": 4})).retained
    assert 5 == resolve({"retained": 2}, launchpad_layer({"retained": 5})).retained


def test_a_flag_that_was_not_given_covers_nothing():
    """If the command line gives None, the layers below decide."""
    assert 2 == resolve({"retained": 2}, flags_layer({"retained": None})).retained


def test_rules_over_several_fields_hold_across_layers():
    """The pipeline sets whose rows are counted. The flag alone would contradict a rule."""
    settings = resolve({"every_rows": 12_000, "rows_of": ("flights",)}, flags_layer({"every_rows": "500"}))
    assert (500, ("flights",)) == (settings.every_rows, settings.rows_of)
    with pytest.raises(InvalidSettingsError, match=r"rows_of \(given on the command line\): needs every_rows"):
        resolve({}, flags_layer({"rows_of": "flights, weather"}))


def test_an_error_names_field_rule_and_origin_of_each_refused_value(monkeypatch):
    """The message says which of the four places to correct."""
    monkeypatch.setenv("TIDEMARK_EVERY_ROWS", "-1")
    with pytest.raises(InvalidSettingsError) as refused:
        resolve({"retained": 0}, flags_layer({"duration_ms": "soon", "mode": "never"}), pipeline="pipeline flights")
    assert {
        "every_rows (TIDEMARK_EVERY_ROWS): must be greater than 0",
        "retained (set by pipeline flights): must be greater than or equal to 1",
        "duration_ms (given on the command line): write a duration like 30s, 5m or 2h, not 'soon'",
        "mode (given on the command line): must be 'exactly_once' or 'at_least_once'",
    } == {str(problem) for problem in refused.value.problems}


def test_of_two_places_the_error_names_the_one_that_won():
    """To correct the value in the other place would have no effect."""
    with pytest.raises(InvalidSettingsError, match=r"retained \(given on the command line\)"):
        resolve({"retained": 2}, flags_layer({"retained": 0}))


def test_a_contradiction_names_the_origin_of_its_field():
    """A rule of the core over several fields is reported with its field and the field's origin."""
    with pytest.raises(InvalidSettingsError, match=r"max_concurrent \(set by the pipeline\): must be 1 with unaligned"):
        resolve({"unaligned": True, "max_concurrent": 2}, NOTHING)


def test_a_misspelt_variable_is_not_passed_over(monkeypatch):
    """A setting that silently does nothing is worse than an error."""
    monkeypatch.setenv("TIDEMARK_RETAIND", "3")
    with pytest.raises(InvalidSettingsError, match="TIDEMARK_RETAIND: there is no such setting; did you mean TIDEMARK"):
        resolve({}, NOTHING)


def test_a_misspelt_setting_names_the_near_one():
    """Such a setting is `--set retaind=3`."""
    with pytest.raises(InvalidSettingsError, match=r"retaind .*did you mean retained"):
        resolve({}, flags_layer({"retaind": "3"}))


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("500ms", 500), ("30s", 30_000), ("1.5m", 90_000), ("2 h", 7_200_000)]
)
def test_durations_carry_their_unit(text, milliseconds):
    assert milliseconds == duration_ms(text)


@pytest.mark.parametrize("text", ["", "5", "5 minutes", "-5s", "s"])
def test_a_duration_without_a_known_unit_is_refused(text):
    """A duration needs a unit, since 5 could be seconds or minutes."""
    with pytest.raises(ValueError, match="30s, 5m or 2h"):
        duration_ms(text)


def test_the_core_gets_its_part_and_the_tick_its_limits():
    """The values are the same, in the types that the protocol and the runtime take."""
    given = {"interval_ms": "10s", "mode": "at_least_once", "duration_ms": "5m", "checkpoints": "3"}
    settings = resolve({}, flags_layer(given | {"until_caught_up": "false"}))
    assert CheckpointConfig(interval_ms=10_000, mode=CheckpointingMode.AT_LEAST_ONCE) == settings.checkpoint_config()
    assert TickLimits(until_caught_up=False, checkpoints=3, duration_ms=300_000) == settings.limits()


def test_every_field_of_the_core_is_a_setting_with_its_default():
    """A new field of CheckpointConfig is a field of TickSettings too."""
    settings = TickSettings()
    assert CheckpointConfig() == settings.checkpoint_config()


@pytest.mark.parametrize("memory", ["lots", "2", "2gb", "0g"])
def test_sparks_memory_is_written_as_spark_writes_it(memory):
    """A JVM would refuse a wrong size too, but only after seconds, and with a less clear message."""
    with pytest.raises(InvalidSettingsError, match=r"spark_memory .*512m or 2g"):
        resolve({}, flags_layer({"spark_memory": memory}))


REFUSED = [
    ({"parallelism": 0}, "parallelism", "must be greater than or equal to 1"),
    ({"spark_master": ""}, "spark_master", "should have at least 1 character"),
    ({"spark_cores": 0}, "spark_cores", "must be greater than or equal to 1"),
    ({"spark_memory": "lots"}, "spark_memory", "512m or 2g"),
    ({"warehouse": ""}, "warehouse", "names no folder"),
    ({"data": " "}, "data", "names no folder"),
    ({"spark_connect_url": "http://h"}, "spark_connect_url", "should match pattern"),
    ({"checkpoints": 0}, "checkpoints", "must be greater than or equal to 1"),
    ({"duration_ms": 0}, "duration_ms", "must be greater than or equal to 1"),
    ({"until_caught_up": "perhaps"}, "until_caught_up", "boolean"),
    ({"reader_grace_ms": -1}, "reader_grace_ms", "must be greater than or equal to 0"),
    ({"table_log_keep_ms": -1}, "table_log_keep_ms", "must be greater than or equal to 0"),
    ({"clean_up": "perhaps"}, "clean_up", "boolean"),
    ({"reporters": 7}, "reporters", "valid tuple"),
    ({"take_over": "perhaps"}, "take_over", "boolean"),
    ({"spark_master": "local[2]", "spark_connect_url": "sc://h:1"}, "spark_master", "can't go with spark_connect_url"),
    ({"spark_archive": "a.tar.gz", "spark_master": "local[2]"}, "spark_archive", "is for the workers of a cluster"),
    ({"spark_archive": "a.tar.gz", "spark_master": "spark://h:1"}, "spark_archive", "'tidemark package' builds one"),
]


@pytest.mark.parametrize(("values", "field", "rule"), REFUSED)
def test_a_refusal_names_field_rule_and_origin(values, field, rule):
    """Fields that only a tick has are checked like the core's fields (see tests/unit/test_settings.py)."""
    with pytest.raises(InvalidSettingsError) as refused:
        resolve({}, flags_layer(values))
    (problem,) = refused.value.problems
    assert (field, "given on the command line") == (problem.field, problem.origin)
    assert rule in problem.rule


def test_every_constrained_setting_has_a_refusal():
    """A new setting with a bound, a pattern or a validator fails this test until one of its refusals is tested."""
    own = {name: info for name, info in TickSettings.model_fields.items() if name not in CheckpointConfig.model_fields}
    constrained = {name for name, info in own.items() if any(not isinstance(each, NoDecode) for each in info.metadata)}
    assert set() == constrained - {field for _, field, _ in REFUSED}


def test_every_time_may_carry_its_unit():
    """All times are written in one way, such as `--set min_pause_ms=5s` and `interval_ms=10s`."""
    times = [name for name in TickSettings.model_fields if name.endswith("_ms")]
    assert {"interval_ms", "min_pause_ms", "restart_delay_ms", "duration_ms"} <= set(times)
    given = {
        "restart_strategy": "exponential_delay",
        "restart_delay_ms": "2s",
        "restart_delay_max_ms": "1m",
        "restart_reset_after_ms": "2h",
        "min_pause_ms": "500ms",
    }
    settings = resolve({}, flags_layer(given))
    assert (2_000, 60_000, 7_200_000, 500) == (
        settings.restart_delay_ms,
        settings.restart_delay_max_ms,
        settings.restart_reset_after_ms,
        settings.min_pause_ms,
    )
    for name in times:
        with pytest.raises(InvalidSettingsError, match=rf"{name} .*write a duration like 30s"):
            resolve({}, flags_layer({name: "soon"}))


def test_folders_are_known_before_the_pipeline_is(monkeypatch):
    """A flag wins over the environment, and the environment over the default.

    Rules of other fields are not checked yet.
    """
    assert Path("warehouse") == folder("warehouse", NOTHING)
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", "/elsewhere")
    assert Path("/elsewhere") == folder("warehouse", flags_layer({"rows_of": "flights"}))
    assert Path("/here") == folder("warehouse", flags_layer({"warehouse": Path("/here")}))
