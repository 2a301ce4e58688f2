"""The report of a task to the driver: one row with file handles as JSON.

A task may not import the protocol's messages, because they would load pydantic in every Python worker. So it reports
in this plain form, and the driver turns it into a SubtaskOutput.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, TableName
from checkpointing.snapshots import NO_WORK, RangeFiles, TaskWork
from jobs.state.worker_copy import NO_USES, CopyUses

REPORT_SCHEMA = StructType([StructField("report", StringType())])


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The files that one task wrote for its subtask. The fields mean the same as in SubtaskOutput.

    `copies` tells whether the worker had the subtask's state in memory (D5); `work` is what the task measured (E6).
    """

    subtask: int
    emitted: tuple[FileHandle, ...] = ()
    staged: tuple[tuple[TableName, FileHandle], ...] = ()
    state: tuple[KeyedFile, ...] = ()
    ranges: tuple[RangeFiles, ...] = ()
    copies: CopyUses = NO_USES
    work: TaskWork = NO_WORK


def report_batch(report: TaskReport) -> Iterator[pa.RecordBatch]:
    """Yield the one row, in REPORT_SCHEMA, that a task returns."""
    text = json.dumps(asdict(report), default=_enum_value, separators=(",", ":"))
    yield pa.RecordBatch.from_pydict({"report": [text]})


def report_from(text: str) -> TaskReport:
    """Parse the report of a task."""
    fields: Mapping[str, Any] = json.loads(text)
    return TaskReport(
        subtask=fields["subtask"],
        emitted=tuple(FileHandle(**file) for file in fields["emitted"]),
        staged=tuple((TableName(table), FileHandle(**file)) for table, file in fields["staged"]),
        state=tuple(_keyed_file(file) for file in fields["state"]),
        ranges=tuple(
            RangeFiles(TableName(entry["table"]), tuple(_keyed_file(file) for file in entry["files"]))
            for entry in fields["ranges"]
        ),
        copies=CopyUses(**fields["copies"]),
        work=TaskWork(**fields["work"]),
    )


def _keyed_file(fields: Mapping[str, Any]) -> KeyedFile:
    return KeyedFile(
        file=FileHandle(**fields["file"]),
        kind=KeyedFileKind(fields["kind"]),
        first_key_group=fields["first_key_group"],
        last_key_group=fields["last_key_group"],
        version=Version(Generation(fields["version"]["generation"]), fields["version"]["micro_batch"]),
    )


def _enum_value(value: KeyedFileKind) -> str:
    return value.value
