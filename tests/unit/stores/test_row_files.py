"""Which files a row names: all that must stay while it is kept, and those without which no tick begins from it."""

from checkpointing.channel_items import SourceSlice, StagedSegment
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import ChannelId, EdgeId
from checkpointing.metadata.files import files_of, handles_to_restore
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics, TableRecord, VertexRecord
from checkpointing.snapshots import ChannelState, RangeFiles, SubtaskSnapshot


def file(name):
    return FileHandle(name, 1, 1, 0)


def keyed(name):
    return KeyedFile(file(name), KeyedFileKind.BASE, 0, 3, Version(1, 1))


def row():
    """Return a row with one file of each kind."""
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


def test_a_row_names_every_file_that_it_refers_to():
    """State, ranges, what is staged and not yet committed, what is in flight, and the net files of its tables."""
    assert {"state", "range", "staged", "in flight", "net"} == files_of(row())


def test_a_tick_begins_from_state_ranges_and_what_is_in_flight():
    """Files that a table shows already are not needed to go on. A slice of a source is read again, and is no file."""
    assert ["in flight", "range", "state"] == sorted(handle.path for handle in handles_to_restore(row()))
