"""The invariants of compaction: it changes which files an append table shows, none of its rows, and is committed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from checkpointing.graph import TableMode
from checkpointing.metadata.record import FileCompaction, RowKind
from spec.compaction_events import CompactionTold
from spec.history import CheckpointTriggered, History, RowCommitted, TableChanged
from spec.mishap_events import EntriesLost, PowerLost, TableRestored

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId, Generation, TableName


def wrongly_compacted(history: History) -> Iterator[str]:
    """Yield every compaction that an entry may not name, and every publication that carries one out in part.

    Only a checkpoint of a tick names compactions, and only for append tables. A file takes the place of at least two
    others, as many rows as they have. When the checkpoint is published, the file is in the table and the others are
    not, or the table keeps all of the others that it had. Nothing else leaves the table, unless the entry says so.
    """
    shown: dict[TableName, tuple[int, frozenset[str]]] = {}
    rows: dict[str, int] = {}
    named = set[str]()
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                for table in record.tables:
                    rows |= {file.path: file.rows for file in table.adds}
                    for compaction in table.compactions:
                        if table.mode is not TableMode.APPEND or record.kind not in (RowKind.CHECKPOINT, RowKind.HELD):
                            yield f"{record.kind.value} {record.checkpoint} compacts {table.table}"
                        yield from _otherwise(compaction, rows)
                        rows[compaction.into.path] = compaction.into.rows
                        if record.kind is RowKind.CHECKPOINT and compaction.into.path in named:
                            yield f"checkpoint {record.checkpoint} compacts {table.table} as one before it"
                        named |= {compaction.into.path} if record.kind is RowKind.CHECKPOINT else set()
            case TableChanged(_, publication, version, active) if publication.mode is TableMode.APPEND:
                was, before = shown.get(publication.table, (0, frozenset()))
                if was == version - 1:
                    yield from _in_part(publication.compactions, before, active)
                    leave = {file.path for file in publication.removes}
                    leave |= {path for each in publication.compactions for path in each.of}
                    lost = sorted(before - active - leave)
                    if lost:
                        yield f"{lost[0]} leaves {publication.table} with checkpoint {event.checkpoint}, unasked"
                shown[publication.table] = version, active
            case PowerLost() | TableRestored() | EntriesLost():
                shown.clear()
            case _:
                pass


def left_uncompacted(history: History) -> Iterator[str]:
    """Yield every compaction of which a tick was told, and which its next checkpoints do not name.

    A checkpoint that was triggered after the tick was told may leave it out, if the one before it had it and was
    declined meanwhile. The one after that names it.
    """
    waiting: dict[Generation, tuple[frozenset[str], list[CheckpointId]]] = {}
    left_out: dict[Generation, int] = {}
    for event in history.without_flow:
        match event:
            case CompactionTold(generation, into):
                waiting[generation], left_out[generation] = (into, []), 0
            case CheckpointTriggered(generation, checkpoint) if generation in waiting:
                waiting[generation][1].append(checkpoint)
            case RowCommitted(record) if record.kind is RowKind.CHECKPOINT and record.generation in waiting:
                into, triggered = waiting[record.generation]
                if into <= {each.into.path for table in record.tables for each in table.compactions}:
                    del waiting[record.generation]
                elif record.checkpoint in triggered:
                    left_out[record.generation] += 1
                    if left_out[record.generation] > 1:
                        yield f"checkpoint {record.checkpoint} leaves out {min(into)}, as the one before it"
            case _:
                pass


def _otherwise(compaction: FileCompaction, rows: dict[str, int]) -> Iterator[str]:
    if len({*compaction.of} - {compaction.into.path}) < 2:  # noqa: PLR2004 - one file needs no other
        yield f"{compaction.into.path} takes the place of {len(compaction.of)} files"
    known = [rows.get(path) for path in compaction.of]
    if all(each is not None for each in known) and sum(each or 0 for each in known) != compaction.into.rows:
        yield f"{compaction.into.path} has {compaction.into.rows} rows, and the files in its place had {known}"


def _in_part(compactions: tuple[FileCompaction, ...], before: frozenset[str], active: frozenset[str]) -> Iterator[str]:
    for each in compactions:
        had = before.intersection(each.of)
        done, left_out = had.isdisjoint(active), had <= active
        if (each.into.path in active and not (done and len(had) == len(each.of))) or (
            each.into.path not in active and not left_out
        ):
            yield f"{each.into.path} took the place of {sorted(had - active)}, and not of {sorted(had & active)}"
