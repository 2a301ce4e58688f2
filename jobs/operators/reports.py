"""The report of a task to the driver: one row with file handles as JSON, and the versions of the worker.

A task may not import the protocol's messages, because they would load pydantic in every Python worker. So it reports
in this plain form, and the driver turns it into a SubtaskOutput.
"""

import json
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from checkpointing.channel_items import NO_WORK, RangeFiles, TaskWork
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind
from checkpointing.identifiers import TableName
from jobs.distribution import versions
from jobs.operators.in_time.measured_times import MicroBatchId, SplitTimes, take_measured
from jobs.sinks.staged_files import StagedFiles
from jobs.state.worker_copy import NO_USES, CopyUses

if TYPE_CHECKING:
    from pydantic import TypeAdapter

REPORT_SCHEMA = StructType([StructField("report", StringType()), StructField("worker", StringType())])


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The files that one task wrote for its subtask. The fields mean the same as in SubtaskOutput.

    `copies` says whether the worker had the subtask's state in memory (D5). `work` has the task's measurements (E6).
    `times` are the greatest event times that the task has read (N1).
    """

    subtask: int
    emitted: tuple[FileHandle, ...] = ()
    staged: tuple[tuple[TableName, FileHandle], ...] = ()
    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()
    due_ms: int | None = None
    ended: tuple[str, ...] = ()
    copies: CopyUses = NO_USES
    work: TaskWork = NO_WORK
    times: SplitTimes = ()


def report_batch(report: TaskReport) -> Iterator[pa.RecordBatch]:
    """Yield the one row, in REPORT_SCHEMA, that a task returns."""
    text = json.dumps(asdict(report), default=_enum_value, separators=(",", ":"))
    yield pa.RecordBatch.from_pydict({"report": [text], "worker": [_worker()]})


def times_read(subtask: int, writer: StagedFiles) -> Iterator[pa.RecordBatch]:
    """Yield a report with the event times that this worker has read for a micro-batch, if there are any."""
    times = take_measured(MicroBatchId(writer.vertex, writer.generation, writer.micro_batch))
    if times:
        yield from report_batch(TaskReport(subtask=subtask, times=times))


@cache
def _worker() -> str:
    """Return the host of this worker and its versions, as JSON."""
    return json.dumps({"host": socket.gethostname(), "versions": versions()})


def report_from(text: str) -> TaskReport:
    """Parse the report of a task. Only the driver calls this, since it imports pydantic."""
    return _parser().validate_json(text)


@cache
def _parser() -> "TypeAdapter[TaskReport]":
    from pydantic import TypeAdapter  # noqa: PLC0415 - see above

    return TypeAdapter(TaskReport)


def _enum_value(value: KeyedFileKind) -> str:
    return value.value
