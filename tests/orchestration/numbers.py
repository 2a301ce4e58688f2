"""Tiny pipelines over numbers, as Dagster loads them: `tests.orchestration.numbers:build`, and one that is judged."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from jobs.pipeline import Pipeline, count, sum_of
from jobs.quality.expectation import Expectation
from jobs.sinks.port import UpsertSink
from jobs.sources.sequence import SequenceSource, SequenceSplit
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, GOLD, JOB, KEYS, ROWS, LocalEngine
from tests.scenarios.runtime.sqlite_mirror import SqliteMirror

LARGEST_ALLOWED = 120
"""The judged pipeline's suite rejects what is larger: first met in the third epoch of a hundred rows."""


def build(_data: Path) -> Pipeline:
    """Return numbers to bronze, counted by key in gold: what `LocalEngine` can run."""
    return _pipeline(())


def mirrored(_data: Path) -> Pipeline:
    """Return the same, its gold shown in the SQLite file that an environment variable names."""
    return _pipeline((), sink=SqliteMirror(Path(os.environ["MIRROR"])))


def reported(data: Path) -> Pipeline:
    """Return the same with a report of its own."""
    return build(data).report(lambda cut: f"{cut.polars(GOLD).collect()['rows'].sum()} rows at cut {cut.checkpoint}")


def endless(_data: Path) -> Pipeline:
    """Return the same over numbers that never end, slowly enough for a checkpoint now and then."""
    return _pipeline((), SequenceSource({"a": SequenceSplit(None, poll_delay_ms=20)}, keys=KEYS))


def judged(_data: Path) -> Pipeline:
    """Return the same, its bronze judged by a suite that the third epoch does not meet."""
    bounds = {"column": "value", "min_value": 0, "max_value": LARGEST_ALLOWED}
    return _pipeline(
        (
            Expectation("expect_column_values_to_be_between", bounds),
            Expectation("expect_column_values_to_not_be_null", {"column": "value"}),
        )
    )


def nearly_judged(_data: Path) -> Pipeline:
    """Return the same with a suite that every epoch meets."""
    return _pipeline((Expectation("expect_column_values_to_not_be_null", {"column": "value"}),))


def _pipeline(
    expectations: tuple[Expectation, ...], source: SequenceSource | None = None, sink: UpsertSink | None = None
) -> Pipeline:
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", source or SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    if expectations:
        numbers = numbers.expect(*expectations, suite="small_numbers")
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD, sink=sink)
    return pipeline


class InterruptedEngine(LocalEngine):
    """An engine during whose third micro-batch the process is interrupted, as Dagster's termination does it."""

    def __init__(self, before: Callable[[], None]) -> None:
        """Count micro-batches; `before` is called right before the interrupt."""
        super().__init__()
        self._left = 3
        self._before = before

    def run(self, *asked):
        """Run one, interrupting the process in the third."""
        self._left -= 1
        if self._left == 0:
            self._before()
            os.kill(os.getpid(), signal.SIGINT)
        return super().run(*asked)
