"""The flights on real Spark go back to a cut with rows in flight, at another parallelism, and end exactly (K2)."""

import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.metadata.paths import ProtocolPaths
from jobs.at_rest.rollback import roll_back
from jobs.runtime.settings import RuntimeSettings
from jobs.runtime.tick import run_tick
from jobs.stores.warehouse import Warehouse
from tests.scenarios.modes.cuts import JOB, final, records, wrong_with
from tests.scenarios.modes.first_days import CONFIG, planned
from tests.scenarios.modes.modes import changed

pytestmark = [pytest.mark.spark, pytest.mark.dear, pytest.mark.timeout(600)]


@pytest.mark.parametrize("config", [CONFIG, changed(unaligned=True)], ids=["aligned", "unaligned"])
def test_rolled_back_after_a_rescale_the_job_ends_as_an_undisturbed_one(spark, days, expected, tmp_path, config):
    """Three checkpoints of two subtasks, two of three, back to the second, and on at one: every table is exact."""

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
