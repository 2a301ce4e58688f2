"""Derives the metadata of an epoch for Dagster from a completed checkpoint's entry: numbers for every table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

import dagster as dg

from checkpointing.completeness import complete_until_ms, late_rows
from checkpointing.event_time import END_OF_TIME
from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, TableRecord, VertexStatistics
from checkpointing.percentiles import Distribution
from jobs.operators.in_time.windows import LATE
from jobs.showing.checkpoints import FailedCheckpoint, failed_checkpoints
from jobs.sources.position_words import PositionWords, positions_of
from jobs.tick.discovery import Discovered, InputLook
from jobs.tick.tick_settings import TickReport
from jobs.warehouse.checkpoints import rests_on
from jobs.warehouse.cuts_table import event_time
from orchestration.pictures import alignment_picture, failures_table

Metadata = dict[str, dg.MetadataValue]

DATA_VERSION_TAG: Final = "dagster/data_version"
"""Dagster's own tag. If its value changes, Dagster shows downstream assets as out of date."""

CODE_VERSION_TAG: Final = "dagster/code_version"
"""Dagster's own tag: the version of the code that wrote the table."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """A completed checkpoint, the notes of its publication, and each table's Delta version."""

    record: CheckpointRecord
    notes: tuple[str, ...]
    versions: Mapping[TableName, int]


def table_metadata(graph: JobGraph, table: TableName, epoch: Epoch) -> Metadata:
    """Return the metadata of a table at a checkpoint. Durations are in ms, sizes in bytes.

    `alignment_ms`, `bytes_held` and `rows_in` belong to the vertex that writes the table. `epoch_rows` are the rows
    that all sources sent. A table that the checkpoint does not know yet gets no numbers.
    """
    told = _epoch_metadata(epoch)
    if table in epoch.versions:
        told["delta_version"] = dg.MetadataValue.int(epoch.versions[table])
    writer = _writer(graph, table)
    for vertex in epoch.record.statistics.vertices:
        if vertex.vertex == writer:
            told |= _vertex_metadata(epoch.record.checkpoint, vertex)
    told |= time_metadata(epoch.record, table)
    late = late_rows(epoch.record, LATE).get(writer)
    told |= {} if late is None else {"late_rows": dg.MetadataValue.int(late)}
    for written in epoch.record.tables:
        told |= _written(written) if written.table == table else {}
    notes = [note for note in epoch.notes if note.startswith(f"{table}: ")]
    return told | ({"notes": dg.MetadataValue.text("\n".join(notes))} if notes else {})


def time_metadata(record: CheckpointRecord, table: TableName) -> Metadata:
    """Return until when a table is complete at a checkpoint, and how far that is behind its commit, in seconds.

    Return nothing for a table without such a time, and for a table that is complete for ever.
    """
    until_ms = complete_until_ms(record, table)
    if until_ms is None or until_ms == END_OF_TIME:
        return {}
    return {
        "complete_until": dg.MetadataValue.timestamp(event_time(until_ms)),
        "event_time_lag_s": dg.MetadataValue.float(round((record.statistics.committed_ms - until_ms) / 1000, 3)),
    }


def cut_metadata(epoch: Epoch) -> Metadata:
    """Return the metadata of a cut as a whole. `alignment_ms` is the longest alignment of any vertex."""
    statistics = epoch.record.statistics
    versions = {str(table): version for table, version in sorted(epoch.versions.items())}
    return _epoch_metadata(epoch) | {
        "alignment_ms": dg.MetadataValue.int(max((each.alignment_ms for each in statistics.vertices), default=0)),
        "bytes_held": dg.MetadataValue.int(sum(each.bytes_held for each in statistics.vertices)),
        "delta_versions": dg.MetadataValue.json(versions),
        **failures(failed_checkpoints([epoch.record])),
    }


def failures(failed: Sequence[FailedCheckpoint]) -> Metadata:
    """Return the metadata about failed checkpoints, or nothing if no checkpoint failed."""
    return {"failed_checkpoints": dg.MetadataValue.md(failures_table(failed))} if failed else {}


def _epoch_metadata(epoch: Epoch) -> Metadata:
    statistics = epoch.record.statistics
    estimated = {"epoch_rows_estimated": dg.MetadataValue.int(statistics.rows_estimated)}
    finished = {"finished": dg.MetadataValue.bool(True)}
    upstream = "\n".join(map(str, rests_on(epoch.record)))
    rests = {"rests_on": dg.MetadataValue.text(upstream)} if upstream else {}
    return (
        (estimated if statistics.rows_estimated else {})
        | (finished if epoch.record.finished else {})
        | rests
        | {
            "checkpoint": dg.MetadataValue.int(epoch.record.checkpoint),
            "generation": dg.MetadataValue.int(epoch.record.generation),
            "duration_ms": dg.MetadataValue.int(statistics.committed_ms - statistics.triggered_ms),
            "epoch_rows": dg.MetadataValue.int(statistics.rows),
            "committed_at": dg.MetadataValue.timestamp(statistics.committed_ms / 1000),
        }
    )


def row_count(rows: int | None) -> Metadata:
    """Return a table's row count under Dagster's own name for it, or nothing if the rows were not counted."""
    return {} if rows is None else {"dagster/row_count": dg.MetadataValue.int(rows)}


def source_metadata(source: VertexId, epoch: Epoch, discovered: Discovered, words: PositionWords) -> Metadata:
    """Return a source's metadata at a checkpoint: the position of every split, its unread rows and their age.

    Dagster plots the numbers. A number that the source does not know is left out.
    """
    known = positions_of(epoch.record).items()
    positions = {str(split): words.named(vertex, split, at) for (vertex, split), at in known if vertex == source}
    told: Metadata = {
        "checkpoint": dg.MetadataValue.int(epoch.record.checkpoint),
        "positions": dg.MetadataValue.json(positions),
    }
    if discovered.rows is not None:
        told["rows_unread"] = dg.MetadataValue.int(discovered.rows)
        told |= {"rows_unread_estimated": dg.MetadataValue.bool(True)} if discovered.estimated else {}
    if discovered.seconds is not None:
        told["seconds_behind"] = dg.MetadataValue.float(round(discovered.seconds, 1))
    return told


def passed_over(look: InputLook | None) -> Metadata:
    """Return how many files a source skips, and which, or nothing if it skips none."""
    if look is None or not look.folder.count:
        return {}
    return {
        "files_passed_over": dg.MetadataValue.int(look.folder.count),
        "passed_over": dg.MetadataValue.text("\n".join(look.sentences())),
    }


def _writer(graph: JobGraph, table: TableName) -> VertexId:
    return next(vertex.id for vertex in graph.vertices if any(each.name == table for each in vertex.tables))


def _vertex_metadata(checkpoint: CheckpointId, vertex: VertexStatistics) -> Metadata:
    """Return a vertex's metadata of an epoch, with a picture of the alignment if it has more than one channel."""
    pictured = len(vertex.barriers) > 1
    picture = {"alignment": dg.MetadataValue.md(alignment_picture(checkpoint, vertex))} if pictured else {}
    return {
        **picture,
        "alignment_ms": dg.MetadataValue.int(vertex.alignment_ms),
        "bytes_held": dg.MetadataValue.int(vertex.bytes_held),
        "rows_in": dg.MetadataValue.int(vertex.rows_in),
        "busy_ms": dg.MetadataValue.int(vertex.busy_ms),
        "micro_batches": dg.MetadataValue.int(vertex.micro_batches),
        **_measured(vertex),
    }


def _measured(vertex: VertexStatistics) -> Metadata:
    """Return the numbers that were measured of a vertex and its subtasks. Dagster plots missing numbers as gaps."""
    times, written = Distribution.of(vertex.subtasks.task_ms), vertex.subtasks.checkpointed_bytes
    numbers = {"start_delay_ms": vertex.start_delay_ms, "async_ms": vertex.async_ms}
    numbers |= {"bytes_let_through": vertex.bytes_processed}
    if times is not None:
        numbers |= {
            "task_ms_least": times.minimum,
            "task_ms_average": times.average,
            "task_ms_most": times.maximum,
            "slowest_subtask": vertex.subtasks.task_ms.index(times.maximum),
        }
    if Distribution.of(written) is not None:
        numbers |= {"state_bytes_written": sum(number or 0 for number in written)}
    return {name: dg.MetadataValue.int(number) for name, number in numbers.items() if number is not None}


def checkpoint_counts(report: TickReport) -> Metadata:
    """Return how many checkpoints a tick triggered, how many of them failed, and how long the other ones took (E6)."""
    counts = report.counts
    lives = [record.statistics for record in report.completed]
    took = Distribution.of(life.committed_ms - life.triggered_ms for life in lives)
    numbers = {
        "checkpoints_triggered": counts.total,
        "checkpoints_failed": counts.failed,
        "checkpoints_restored": counts.restored,
    }
    if took is not None:
        numbers |= {"duration_ms_p50": took.p50, "duration_ms_p95": took.p95, "duration_ms_p99": took.p99}
    return {name: dg.MetadataValue.int(number) for name, number in numbers.items()}


def _written(written: TableRecord) -> Metadata:
    """Return a table's numbers: new rows of an append table, all rows of an upsert or overwrite table."""
    match written.mode:
        case TableMode.APPEND:
            return {
                "rows_added": dg.MetadataValue.int(sum(file.rows for file in written.adds)),
                "bytes_added": dg.MetadataValue.int(sum(file.bytes for file in written.adds)),
            }
        case TableMode.UPSERT | TableMode.OVERWRITE:
            return {
                "dagster/row_count": dg.MetadataValue.int(sum(file.rows for file in written.files)),
                "bytes": dg.MetadataValue.int(sum(file.bytes for file in written.files)),
            }
        case TableMode.STATE:
            return {
                "files": dg.MetadataValue.int(len(written.files)),
                "bytes": dg.MetadataValue.int(sum(file.bytes for file in written.files)),
            }
        case _ as unreachable:
            assert_never(unreachable)
