"""Runs Spark jobs, and reuses Spark's plans.

Spark takes longer to plan a small job than to run it. If tasks find their work in a property of their job, the plan is
the same in every micro-batch, and Spark makes it once. Spark Connect has no such properties, so with it Spark plans
each micro-batch. Spark also plans each micro-batch if the threads of the Python process share the JVM's threads,
because they then share these properties too.
"""

import base64
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, cast

import pyarrow as pa
from py4j.clientserver import ClientServer
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, Row, SparkSession

from checkpointing.identifiers import VertexId
from jobs.operators.python_workers import reported
from jobs.operators.scan.divided import Division, divided
from jobs.operators.scan.scanned import ScanTasks, numbered
from jobs.operators.scan.stepped import (
    FileRows,
    Part,
    RunsRows,
    SteppedWork,
    rows_of,
)
from jobs.operators.spec import InputPlan, TextSteps, nullable_schema

_WORK: Final = "tidemark.work.secret"
"""The property with the work. Because of its name, Spark hides it in the event log (`spark.redaction.regex`).

The work contains user code.
"""
_CHARACTERS_MAX: Final = 256 * 1024
"""Spark sends the property along with each task. Larger work is sent once, as a part of the plan."""
_CHANGING: Final = ("CURRENT_LIKE", "PYTHON_UDF", "PLAN_EXPRESSION")
"""Spark's names for expressions whose value may differ between micro-batches: the time, Python, subqueries."""
_SERIALIZER: Final[Any] = CloudPickleSerializer()
"""Spark's own serializer for functions that it sends to tasks. No serialized work outlives its job."""


@dataclass(slots=True)
class PlannedJobs:
    """The jobs of one session, and their plans. Any thread may run a job."""

    session: SparkSession
    _plans: dict[object, DataFrame] = field(default_factory=dict)
    _lasting: dict[tuple[VertexId, int, TextSteps], bool] = field(default_factory=dict)
    _divisions: dict[object, Division | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect(self, parts: Sequence[Part]) -> list[Row]:
        """Run these parts as one Spark job, and return the reports of all tasks. Raises Spark's errors."""
        if len(parts) == 1 and not isinstance(parts[0], DataFrame):
            return self._collect(parts[0])
        frames = (part if isinstance(part, DataFrame) else part.frame(self.session) for part in parts)
        return reduce(DataFrame.union, frames).collect()

    def lasts(self, vertex: VertexId, number: int, plan: InputPlan) -> bool:
        """Return whether the plan of this input's steps is the same in every micro-batch.

        For this, SQL texts must declare the steps. The steps must not read the time, a random number, a table or a
        file's name, and must not call Python.
        """
        steps = plan.chain
        if not isinstance(steps, TextSteps) or not self._hands_over:
            return False
        with self._lock:
            key = (vertex, number, steps)
            if key not in self._lasting:
                empty = self.session.createDataFrame([], nullable_schema(plan.schema))
                self._lasting[key] = is_lasting(self.session, steps(empty))
            return self._lasting[key]

    def division(self, vertex: VertexId, number: int, plan: InputPlan) -> Division | None:
        """Return how to divide the steps of this input.

        None: they cannot be divided, or their plan changes (see `lasts`).
        """
        if not self.lasts(vertex, number, plan):
            return None
        with self._lock:
            key = (vertex, number, plan.chain)
            if key not in self._divisions:
                self._divisions[key] = divided(self.session, plan.schema, cast("TextSteps", plan.chain))
            return self._divisions[key]

    def _collect(self, work: ScanTasks | SteppedWork) -> list[Row]:
        handed = _handed(work) if self._hands_over else None
        if handed is None or len(handed) > _CHARACTERS_MAX:
            return work.frame(self.session).collect()
        key = len(work.tasks) if isinstance(work, ScanTasks) else work.key
        plan = self._plan(key, work)
        self.session.sparkContext.setLocalProperty(_WORK, handed)
        try:
            return plan.collect()
        except Exception:
            with self._lock:
                self._plans.pop(key, None)  # Spark may have kept the error in the plan
            raise
        finally:
            self.session.sparkContext.setLocalProperty(_WORK, None)  # type: ignore[arg-type]

    @property
    def _hands_over(self) -> bool:
        """Return whether jobs of other threads cannot see a job's property.

        With PYSPARK_PIN_THREAD=false, several Python threads share a thread of the JVM, and so its properties.
        """
        session: Any = self.session  # SparkSession, or that of Spark Connect
        return isinstance(session, SparkSession) and isinstance(session.sparkContext._gateway, ClientServer)  # noqa: SLF001

    def _plan(self, key: object, work: ScanTasks | SteppedWork) -> DataFrame:
        with self._lock:
            if key not in self._plans:
                self._plans[key] = self._planned(work)
            return self._plans[key]

    def _planned(self, work: ScanTasks | SteppedWork) -> DataFrame:
        if isinstance(work, ScanTasks):
            return reported(numbered(self.session, len(work.tasks)), run_tasks)
        rows = {number: rows_of(self.session, each, _Rows(number).run) for number, each in work.inputs.items()}
        return work.plan(rows, run_after)


@dataclass(frozen=True, slots=True)
class _SteppedHanded:
    """The work that the tasks of a `SteppedWork` find in the property."""

    inputs: Mapping[int, FileRows]
    after: RunsRows


@dataclass(frozen=True, slots=True)
class _Rows:
    """Reads the rows of one input of the work in the property."""

    number: int

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises ScanError."""
        yield from _found().inputs[self.number].run(batches)


def run_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the tasks whose numbers are the rows of `batches`, and yield their reports. Raises the tasks' errors."""
    yield from _found().run(batches)


def run_after(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the task after the steps, and yield its reports. Raises the task's errors."""
    yield from _found().after.run(batches)


def _handed(work: ScanTasks | SteppedWork) -> str:
    needed = work if isinstance(work, ScanTasks) else _SteppedHanded(_rows_before(work), work.after)
    return base64.b64encode(_SERIALIZER.dumps(needed)).decode("ascii")


def _rows_before(work: SteppedWork) -> dict[int, FileRows]:
    return {number: each.rows for number, each in work.inputs.items()}


def _found() -> Any:  # noqa: ANN401 - ScanTasks or _SteppedHanded, as the plan was made for
    context: Any = TaskContext.get()
    return _SERIALIZER.loads(base64.b64decode(context.getLocalProperty(_WORK)))


def is_lasting(session: SparkSession, rows: DataFrame) -> bool:
    """Return whether these rows depend on one input alone, and not on the time, chance, Python or a table.

    The session must not be one of Spark Connect.
    """
    analyzed = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark does not say it
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    changing = any(analyzed.containsPattern(getattr(patterns, name)()) for name in _CHANGING)
    return analyzed.deterministic() and not changing and analyzed.collectLeaves().size() == 1
