"""The worked example on real Spark and Delta (I1): a failure after barrier 1, in both modes."""

import pytest
from deltalake import DeltaTable

from checkpointing.config import CheckpointingMode
from checkpointing.identifiers import JobName
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline.planning import plan
from jobs.pipelines import offsets_100_105
from jobs.sources.committed_positions import committed_in
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.warehouse import Warehouse

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class FailureError(Exception):
    """What strikes between the completion of checkpoint 1 and everything after it."""


def fail_when_complete(name: str) -> None:
    """Let the tick break as soon as a checkpoint is complete: what it did for epoch 2 is lost."""
    if name == "before:NotifyComplete":
        raise FailureError(name)


class Restored(TickListener):
    """Remembers the checkpoints that completed, and the one that the tick began at."""

    def __init__(self) -> None:
        self.completed_records: list[CheckpointRecord] = []
        self.began_at: int | None = None

    def recovered(self, recovery) -> None:
        self.began_at = recovery.restored

    def completed(self, record, notes, versions) -> None:
        self.completed_records.append(record)


def run(spark, warehouse, mode: CheckpointingMode, boundary=None):
    config = offsets_100_105.CONFIG.model_copy(update={"mode": mode})
    noted = Restored()
    planned = plan(offsets_100_105.build(warehouse), config=config)
    report = run_tick(planned, RuntimeSettings(warehouse=warehouse), noted, spark=spark, boundary=boundary)
    return report, noted


def counts(warehouse) -> dict[str, tuple[int, int]]:
    rows = DeltaTable(str(warehouse / "example" / "counts")).to_pyarrow_table().to_pylist()
    return {row["split"]: (row["records"], row["last"]) for row in rows}


def positions(record: CheckpointRecord) -> list[str | None]:
    return [subtask.position for subtask in record.vertices[0].subtasks]


def barriers_in_order(warehouse) -> list[str]:
    paths = ProtocolPaths(JobName("offsets_100_105"))
    _, rows = CheckpointStore(Warehouse(warehouse, paths)).observe()
    record = next(row for row in rows if isinstance(row, CheckpointRecord))
    counted = next(each for each in record.statistics.vertices if each.vertex == "counts")
    splits = record.vertices[0].splits
    arrived = sorted((barrier.at_ms, barrier.channel) for barrier in counted.barriers)
    return [splits[int(channel[-2])] for _, channel in arrived]


def test_exactly_once_counts_no_record_twice(spark, tmp_path) -> None:
    """The snapshot holds the 205 records before barrier 1, so what is read again was never counted."""
    broken, _ = run(spark, tmp_path, CheckpointingMode.EXACTLY_ONCE, fail_when_complete)
    assert TickOutcome.FAILED is broken.outcome
    assert {"fast": (105, 104), "slow": (100, 99)} == counts(tmp_path)
    assert committed_in(offsets_100_105.committed_file(tmp_path)) is None
    report, noted = run(spark, tmp_path, CheckpointingMode.EXACTLY_ONCE)
    assert (TickOutcome.CAUGHT_UP, 1) == (report.outcome, noted.began_at)
    assert [["205", "200"]] == [positions(record) for record in noted.completed_records]
    assert {"fast": (205, 204), "slow": (200, 199)} == counts(tmp_path)
    assert {"fast": "205", "slow": "200"} == committed_in(offsets_100_105.committed_file(tmp_path)).positions


def test_at_least_once_counts_records_after_the_barrier_twice(spark, tmp_path) -> None:
    """The fast split's position says 105, but the snapshot holds later records of it: they count again."""
    broken, _ = run(spark, tmp_path, CheckpointingMode.AT_LEAST_ONCE, fail_when_complete)
    assert TickOutcome.FAILED is broken.outcome
    at_barrier = counts(tmp_path)
    early, last = at_barrier["fast"]
    assert 105 < early
    assert early == last + 1
    assert ["fast", "slow"] == barriers_in_order(tmp_path)
    report, noted = run(spark, tmp_path, CheckpointingMode.AT_LEAST_ONCE)
    assert (TickOutcome.CAUGHT_UP, 1) == (report.outcome, noted.began_at)
    assert {"fast": (205 + early - 105, 204), "slow": (200, 199)} == counts(tmp_path)
