"""A tiny pipeline over numbers with event times: number n has the time n hours after the start of 2026."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
from pyspark.sql.types import TimestampType

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import Generation, SplitId
from checkpointing.messages import GreatestTime, MicroBatchFinished, SubtaskOutput
from jobs.operators.spec import StatelessSpec
from jobs.pipeline import Pipeline, count, sum_of
from jobs.quality.expectation import Expectation
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.hybrid import SequenceSource
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine, _rows

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
EVERY = CheckpointConfig(every_rows=20, slice_rows_max=10, micro_batch_rows_max=20, retained=9)


def timed(
    rows: int = 100,
    *,
    bounded: bool = False,
    config: CheckpointConfig = EVERY,
    days: Mapping[str, str] | None = None,
    more: Mapping[str, int] | None = None,
    in_time: bool = True,
    expects: Sequence[Expectation] = (),
    delay: str = "2h",
    close_after: str | None = None,
) -> Pipeline:
    """Return a pipeline over split a and the splits of `more`. By default, rows may come two hours late.

    By default a checkpoint takes twenty rows. `days` are the partitions of the first table, and `expects` its suite.
    """
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    source = SequenceSource({"a": rows, **(more or {})}, keys=3, bounded=bounded)
    numbers = pipeline.source("numbers", source).with_column("at", "current_timestamp()", TimestampType())
    bronze = (numbers.event_time("at", delay=delay, close_after=close_after) if in_time else numbers).table(
        BRONZE, id="bronze"
    )
    bronze = bronze if days is None else bronze.partitions(**days)
    bronze = bronze.expect(*expects, suite="judges") if expects else bronze
    bronze.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD)
    return pipeline


def build(_data: Path) -> Pipeline:
    return timed()


class TimedEngine(LocalEngine):
    """An engine that also writes the event times, and reports the greatest one of each split."""

    def run(self, planned, effect, warehouse, job):
        segments = [segment for entry in effect.inputs for segment in entry.segments]
        if not segments or not isinstance(planned.spec, StatelessSpec):
            return super().run(planned, effect, warehouse, job)
        read = pl.concat([_rows(segment, warehouse) for segment in segments])
        rows = read.select("split", "n", "key", "value", "_split", "_position", at=START + HOUR * pl.col("n"))
        writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
        columns = ["split", "n", "key", "value", "at", "_split", "_position"]
        file = writer.write(BRONZE, rows.select(pl.col(columns)).to_arrow())
        output = SubtaskOutput(emitted=(file,), staged=((BRONZE, file),))
        times = tuple(
            GreatestTime(0, SplitId(each.split), _ms(rows.filter(pl.col("split") == each.split)["at"].max()))
            for each in segments
            if isinstance(each, SourceSlice)
        )
        return replace(MicroBatchFinished(effect.vertex, effect.micro_batch, (output,), duration_ms=1), times=times)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
