"""Fixtures for the tests of the orchestration: a Dagster instance, and runs of the tiny pipeline without Spark."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from jobs.tick.tick import run_tick
from orchestration.pipelines import build_definitions
from tests.scenarios.runtime.sequence_job import JOB, LocalEngine

NUMBERS = "tests.orchestration.numbers:build"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def run_job(tmp_path: Path, instance: dg.DagsterInstance) -> Callable[..., dg.ExecuteInProcessResult]:
    """Return a function that runs the pipeline's job in this process, in the test's warehouse.

    Further arguments are settings of the launchpad.
    """

    def run(
        reference: str = NUMBERS, engine: LocalEngine | None = None, **settings: object
    ) -> dg.ExecuteInProcessResult:
        definitions = build_definitions(reference, runner=partial(run_tick, engine=engine or LocalEngine()))
        config = {"warehouse": str(tmp_path / "warehouse")} | settings
        return definitions.resolve_job_def(f"{JOB}_tick").execute_in_process(
            run_config={"ops": {JOB: {"config": config}}}, instance=instance, raise_on_error=False
        )

    return run
