"""The typed configuration of a tick: every field of the launchpad, and values that it takes."""

from enum import Enum
from functools import partial
from pathlib import Path
from typing import get_args

import dagster as dg
import pytest
from pydantic import ValidationError

from jobs.tick.tick import run_tick
from orchestration.launchpad import launchpad_schema
from tests.orchestration.conftest import NUMBERS
from tests.scenarios.runtime.sequence_job import JOB, LocalEngine
from tidemark import CheckpointingMode
from tidemark.dagster import TickConfig, build_definitions

SAMPLES = {bool: True, int: 1, float: 0.5, str: "30s", Path: Path("lake")}


def samples(name):
    """Return a value of each type that a field takes."""
    kinds = [kind for kind in get_args(TickConfig.model_fields[name].annotation) if kind is not type(None)]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            yield from kind
        else:
            yield SAMPLES.get(kind, ["numbers"])


@pytest.fixture(scope="module")
def tick():
    """Return the job of a tick of the numbers, without Spark."""
    definitions = build_definitions(NUMBERS, runner=partial(run_tick, engine=LocalEngine()))
    return definitions.resolve_job_def(f"{JOB}_tick")


def test_it_has_the_fields_of_the_launchpad():
    """A new setting is a field here too."""
    assert set(launchpad_schema()) == set(TickConfig.model_fields)


@pytest.mark.parametrize("name", TickConfig.model_fields)
def test_dagster_takes_each_field_with_each_of_its_types(tick, name):
    """A mode by its member, a time as a number, a folder as a path: the run gets what a user would type."""
    for value in samples(name):
        given = dg.RunConfig(ops={JOB: TickConfig(**{name: value})})
        taken = dg.validate_run_config(tick, given)["ops"][JOB]["config"]
        shown = value.value if isinstance(value, Enum) else value
        assert str(shown) == str(taken[name])


def test_a_run_is_started_from_it(tick, tmp_path):
    """One checkpoint, as it says; what it leaves out stays with the pipeline."""
    config = TickConfig(
        checkpoints=1, warehouse=tmp_path / "lake", mode=CheckpointingMode.AT_LEAST_ONCE, timeout_ms=60_000
    )
    with dg.DagsterInstance.ephemeral() as instance:
        result = tick.execute_in_process(run_config=dg.RunConfig(ops={JOB: config}), instance=instance)
    told = {event.asset_key: event.metadata for event in result.asset_materializations_for_node(JOB)}
    cuts = told[dg.AssetKey(["_tidemark", JOB, "cuts"])]
    assert ("stopped", 1) == (cuts["outcome"].value, cuts["completed_checkpoints"].value)
    assert (tmp_path / "lake" / "gold").is_dir()


@pytest.mark.parametrize(("name", "value"), [("checkpoints", "many"), ("mode", "sometimes"), ("chekpoints", 1)])
def test_what_is_no_field_or_of_another_type_is_refused_where_it_is_written(name, value):
    """The error names the field, before any run is started."""
    with pytest.raises((ValidationError, dg.DagsterInvalidConfigError), match=name):
        TickConfig(**{name: value})
