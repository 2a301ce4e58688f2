"""Tiny pipelines over numbers that Dagster loads: `tests.orchestration.numbers:build`, and one with a suite."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl

from checkpointing.identifiers import Generation, JobName, TableName
from checkpointing.messages import MicroBatchFinished, RunMicroBatch
from jobs.operators.spec import FAILED, StatelessSpec, VertexPlan, arrow_schema
from jobs.pipeline import Pipeline, count, sum_of
from jobs.quality.expectation import Expectation
from jobs.sinks.port import UpsertSink
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.hybrid import SequenceSource, SequenceSplit
from jobs.storage.address import Root
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, GOLD, JOB, KEYS, ROWS, LocalEngine
from tests.scenarios.runtime.sqlite_mirror import SqliteMirror

QUARANTINE = TableName("quarantine/numbers")
LARGEST_ALLOWED = 120
"""The judged pipeline's suite rejects larger values. The first one is in the third epoch of a hundred rows."""


def build(_data: Path) -> Pipeline:
    """Return a pipeline that `LocalEngine` can run: numbers in bronze, counted by key in gold."""
    return _pipeline(())


def mirrored(_data: Path) -> Pipeline:
    """Return the same pipeline with a sink: an SQLite file, named by an environment variable, shows the gold table."""
    return _pipeline((), sink=SqliteMirror(Path(os.environ["MIRROR"])))


def reported(data: Path) -> Pipeline:
    return build(data).report(lambda cut: f"{cut.polars(GOLD).collect()['rows'].sum()} rows at cut {cut.checkpoint}")


def endless(_data: Path) -> Pipeline:
    """Return the same pipeline over numbers that never end. They are slow enough for a checkpoint now and then."""
    return _pipeline((), SequenceSource({"a": SequenceSplit(None, poll_delay_ms=20)}, keys=KEYS))


def judged(_data: Path) -> Pipeline:
    """Return the same pipeline with a suite for bronze that rejects the third epoch."""
    bounds = {"column": "value", "min_value": 0, "max_value": LARGEST_ALLOWED}
    return _pipeline(
        (
            Expectation("expect_column_values_to_be_between", bounds),
            Expectation("expect_column_values_to_not_be_null", {"column": "value"}),
        )
    )


def nearly_judged(_data: Path) -> Pipeline:
    return _pipeline((Expectation("expect_column_values_to_not_be_null", {"column": "value"}),))


def ruled(_data: Path) -> Pipeline:
    """Return the judged pipeline with a row rule. `RulingEngine` sends multiples of ten to quarantine."""
    bounds = {"column": "value", "min_value": 0, "max_value": LARGEST_ALLOWED}
    return _pipeline(
        (Expectation("expect_column_values_to_be_between", bounds),),
        rule=Expectation("expect_column_values_to_not_be_null", {"column": "key"}),
    )


def _pipeline(
    expectations: tuple[Expectation, ...],
    source: SequenceSource | None = None,
    sink: UpsertSink | None = None,
    rule: Expectation | None = None,
) -> Pipeline:
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", source or SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    if expectations:
        numbers = numbers.expect(*expectations, suite="small_numbers")
    if rule is not None:
        numbers = numbers.check_rows(rule, quarantine=QUARANTINE)
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD, sink=sink)
    return pipeline


class RulingEngine(LocalEngine):
    """An engine that also writes the quarantine table of `ruled`, as Spark does. Every tenth number fails the rule."""

    def run(self, planned: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName) -> MicroBatchFinished:
        done = super().run(planned, effect, warehouse, job)
        if not isinstance(planned.spec, StatelessSpec) or planned.spec.quarantine is None:
            return done
        writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
        (output,) = done.outputs
        read = pl.concat([pl.read_parquet(Path(str(warehouse)) / file.path) for _, file in output.staged])
        failed = read.filter(pl.col("n") % 10 == 0).with_columns(pl.lit(planned.spec.rules[0].name).alias(FAILED))
        wanted = arrow_schema(planned.spec.quarantine.schema)
        file = writer.write(QUARANTINE, failed.select(wanted.names).to_arrow().cast(wanted))
        return replace(done, outputs=(replace(output, staged=(*output.staged, (QUARANTINE, file))),))


class InterruptedEngine(LocalEngine):
    """An engine that interrupts the process in the third micro-batch, as Dagster does to terminate a run."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__()
        self._left = 3
        self._before = before

    def run(self, *asked):
        self._left -= 1
        if self._left == 0:
            self._before()
            os.kill(os.getpid(), signal.SIGINT)
        return super().run(*asked)


def enriching(data):
    """Return a pipeline whose rows wait in the state of `joined` for another source."""
    del data
    pipeline = Pipeline("enriching")
    left, right = (
        pipeline.source(name, SequenceSource({"a": 9})).select("key", "n").table(f"bronze/{name}", id=f"bronze_{name}")
        for name in ("left", "right")
    )
    names = right.rename({"n": "other"}).key_by("key")
    left.key_by("key").connect(names).enrich("joined", "other").table("silver/joined")
    return pipeline
