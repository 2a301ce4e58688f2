"""A process that has a Spark session of its own keeps it, whatever ticks it runs."""

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute

pytestmark = pytest.mark.spark


def test_a_tick_does_not_stop_a_session_that_it_found(spark, tmp_path):
    """A notebook, or an op of Dagster, has a session and runs a tick. Afterwards it goes on with its session."""
    ran = execute(["run", "tests.scenarios.runtime.sequence_job:as_pipeline", "--warehouse", str(tmp_path)])
    assert (ExitCode.DONE, 3) == (ran, spark.range(3).count())
