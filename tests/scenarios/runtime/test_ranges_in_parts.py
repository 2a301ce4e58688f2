"""An upsert table's range has several files, and a micro-batch writes only some of them again (D4).

The others belong to the last checkpoint still. A later micro-batch of the same epoch may replace them, but until the
next checkpoint is complete, nobody may delete them.
"""

from checkpointing.config import CheckpointConfig
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline import Pipeline, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.warehouse.checkpoints import CheckpointStore
from tests.scenarios.runtime.kept_job import JOB, at, run

CONFIG = CheckpointConfig(every_rows=4, slice_rows_max=1, micro_batch_rows_max=1, retained=9)


def totals(rows):
    """Return a job whose micro-batches have one row each. Each key has a partition, and so a file, of its own."""
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=1)
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=4)).drop(SPLIT_COLUMN, POSITION_COLUMN)
    sums = numbers.key_by("key").aggregate("sums", total=sum_of("value"))
    sums.upsert("gold/sums", partition_by=["key"])
    return plan(pipeline)


def test_files_of_the_last_checkpoint_stay_until_the_next_one(tmp_path):
    """The first row of an epoch leaves three of four files as they are. The next rows replace them one by one."""
    run(tmp_path, totals(12))
    rows = [row for row in CheckpointStore(at(tmp_path)).observe()[1] if isinstance(row, CheckpointRecord)]
    assert len(rows) >= 3
    missing = {row.checkpoint: sorted(path for path in files_of(row) if not (tmp_path / path).exists()) for row in rows}
    assert not any(missing.values()), missing
