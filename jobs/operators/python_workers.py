"""Gives the last function of each Spark task its own Python workers, so that a subtask meets the worker with its state.

Spark hands out idle Python workers in turn. A task that chains several functions takes a worker for each function, so
there are more workers than cores. If all workers took turns, a subtask would seldom get the worker that has its state
(`jobs.state.worker_copy`), and each worker would hold copies of all states. Spark reuses a worker only for functions
with the same environment variables. So this module sets an additional variable for the functions that hold state.
"""

import gc
import sys
from threading import Lock
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from jobs.operators.reports import REPORT_SCHEMA
from jobs.spark.columns import ArrowFunction, map_in_arrow

_VARIABLE: Final = "TIDEMARK_WORKERS"
_LOCK: Final = Lock()


def reported(rows: DataFrame, run: ArrowFunction) -> DataFrame:
    """Return the reports that `run` makes of these rows, as a lazy frame in REPORT_SCHEMA.

    Each Spark task has at most one such function, so Spark needs as many of these workers as tasks run at a time. With
    Spark Connect this function sets no variable, and the server chooses the workers.
    """
    session: Any = rows.sparkSession
    if not isinstance(session, SparkSession):
        return map_in_arrow(rows, run, REPORT_SCHEMA)
    context = session.sparkContext
    with _LOCK:  # PySpark takes the variables from the context while it makes the function
        before = context.environment
        context.environment = {**before, _VARIABLE: "reports"}
        try:
            return map_in_arrow(rows, run, REPORT_SCHEMA)
        finally:
            context.environment = before


# ------------------------------------------------------------------
# Keeps Python's garbage collector away from the modules that a worker has imported.
#
# After each task, Spark's daemon runs a full `gc.collect()` in the worker (`pyspark.daemon.manager`). The collector
# visits all objects of the imported modules. That takes 50 to 100 ms of CPU, longer than a small task itself.
# `gc.freeze` exempts these objects. They live as long as the process in any case.


_seen = 0
"""The number of modules that this process had at the last freeze of its objects."""


def freeze_imports() -> None:
    """Freeze the worker's objects if it has imported modules since the last call. Call this at the end of a task."""
    global _seen  # noqa: PLW0603 - one heap per process
    if len(sys.modules) == _seen:
        return
    gc.collect()  # what is garbage now would be frozen too
    gc.freeze()
    _seen = len(sys.modules)
