"""Gives the last function of each Spark task Python workers of its own, so that copies of state are found again.

Spark hands out idle Python workers in turn. A task that chains several functions takes a worker for each, so there are
more workers than cores. If all of them took turns, a subtask would seldom come to the worker that has its state
(`jobs.state.worker_copy`), and each worker would hold copies of everything. Spark keeps workers apart by the
environment variables of their functions. So the functions that hold state get one more variable.
"""

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from jobs.operators.reports import REPORT_SCHEMA

_VARIABLE: Final = "TIDEMARK_WORKERS"
_LOCK: Final = Lock()


def reported(rows: DataFrame, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> DataFrame:
    """Return the reports that `run` makes of these rows, as a lazy frame in REPORT_SCHEMA.

    At most one such function runs in each Spark task, so there are as many of its workers as tasks run at a time. A
    Connect server decides itself which workers it takes.
    """
    session: Any = rows.sparkSession
    if not isinstance(session, SparkSession):
        return rows.mapInArrow(run, REPORT_SCHEMA)
    context = session.sparkContext
    with _LOCK:  # PySpark takes the variables from the context while it makes the function
        before = context.environment
        context.environment = {**before, _VARIABLE: "reports"}
        try:
            return rows.mapInArrow(run, REPORT_SCHEMA)
        finally:
            context.environment = before
