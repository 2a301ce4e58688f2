"""Tests on real Spark that the flights go back to a cut with rows in flight, at another parallelism (K2)."""

import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.metadata.paths import ProtocolPaths
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.modes.cuts import JOB, final, records, wrong_with
from tests.scenarios.modes.first_days import CONFIG, planned
from tests.scenarios.modes.modes import changed

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]


@pytest.mark.parametrize("config", [CONFIG, changed(unaligned=True)], ids=["aligned", "unaligned"])
def test_a_job_that_is_rolled_back_after_a_rescale_ends_exactly(spark, days, expected, tmp_path, config):
    """The job takes three checkpoints with two subtasks and two with three. It goes back to the second one.

    Then it goes on with one subtask, and every table ends as in an undisturbed job.
    """

    def fly(parallelism, checkpoints=None):
        settings = RuntimeSettings(warehouse=tmp_path, limits=TickLimits(checkpoints=checkpoints))
        return run_tick(planned(days, config, parallelism=parallelism), settings, spark=spark)

    fly(2, 3)
    fly(3, 2)
    target = sorted(record.checkpoint for record in records(tmp_path))[1]
    done = roll_back(Warehouse(tmp_path, ProtocolPaths(JOB)), target)
    assert target == done.record.parent
    assert "" == fly(1).message
    assert expected == final(tmp_path)
    assert [] == wrong_with(tmp_path)
