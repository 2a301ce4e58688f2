"""Functions that hold state run in Python workers of their own."""

import os

import pyarrow as pa
import pytest

from jobs.operators.python_workers import reported

pytestmark = pytest.mark.spark


def name_worker(batches):
    """Yield the process that runs this, as text."""
    for batch in batches:
        yield pa.record_batch({"before": [str(os.getpid())] * batch.num_rows})


def report_both(batches):
    """Yield the process that ran the function before, and this one."""
    for batch in batches:
        yield pa.record_batch({"report": batch.column(0), "worker": [str(os.getpid())] * batch.num_rows})


def test_the_last_function_of_a_task_has_workers_of_its_own(spark):
    """A task with two functions uses two workers. No worker of a last function ever runs another function."""
    before = dict(spark.sparkContext.environment)
    last, first = set(), set()
    for _ in range(4):
        named = spark.range(0, 8, 1, 4).mapInArrow(name_worker, "before string")
        for row in reported(named, report_both).collect():
            first.add(row.report)
            last.add(row.worker)
    assert not first & last
    assert last
    assert before == spark.sparkContext.environment
