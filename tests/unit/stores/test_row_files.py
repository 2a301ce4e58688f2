"""Which files an entry names: those that must stay with it, and those that a tick needs to begin from it."""

from checkpointing.channel_items import ChannelState, RangeFiles, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import ChannelId, EdgeId
from checkpointing.metadata.files import files_of, handles_to_restore
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics, TableRecord, VertexRecord


def file(name):
    return FileHandle(name, 1, 1, 0)


def keyed(name):
    return KeyedFile(file(name), KeyedFileKind.BASE, 0, 3, Version(1, 1))


def row():
    """Return an entry with one file of each kind."""
    slice_ = SourceSlice("orders", "a", "0", "5", "", 5, 50)
    held = ChannelState(ChannelId(EdgeId("orders", "totals"), 0), (slice_, StagedSegment((file("in flight"),))))
    snapshot = SubtaskSnapshot(
        state=(keyed("state"),),
        ranges=(RangeFiles("gold/totals", (keyed("range"),)),),
        staged=(StagedFile("silver/rows", file("staged"), 0),),
        in_flight=(held,),
    )
    table = TableRecord(table="silver/rows", mode=TableMode.APPEND, parent_version=0, adds=(file("net"),), files=())
    return CheckpointRecord(
        job="job",
        kind=RowKind.CHECKPOINT,
        pinned=False,
        checkpoint=2,
        parent=1,
        generation=1,
        nonce="n",
        max_parallelism=4,
        vertices=(VertexRecord(vertex="totals", micro_batch=1, subtasks=(snapshot,)),),
        tables=(table,),
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
    )


def test_an_entry_names_every_file_that_it_refers_to():
    """These are files of state, ranges, staging and in flight, and the net files of its tables."""
    assert {"state", "range", "staged", "in flight", "net"} == files_of(row())


def test_a_tick_needs_the_files_of_state_ranges_and_rows_in_flight():
    """It does not need files that a table shows already. A slice of a source is read again, and is no file."""
    assert ["in flight", "range", "state"] == sorted(handle.path for handle in handles_to_restore(row()))
