"""When a tick compacts, and which checkpoint commits what was compacted: facts in, effects out."""

import pytest

from checkpointing.channel_items import SourceSlice, TaskWork
from checkpointing.commit.two_phase import Draft
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import EdgeId, TableName, VertexId
from checkpointing.job.drafts import Compacting
from checkpointing.messages import Compacted, CompactFiles, FilesCompacted, PollSource, SliceOffered, SourceIdle
from checkpointing.metadata.record import (
    CheckpointCounts,
    CheckpointRecord,
    FileCompaction,
    RowKind,
    Statistics,
    SubtaskStatistics,
    TableRecord,
)

ROWS, TOTALS = TableName("bronze/rows"), TableName("gold/totals")
TABLES = (Table(ROWS, TableMode.APPEND), Table(TOTALS, TableMode.UPSERT))
GRAPH = JobGraph((Vertex(VertexId("rows"), VertexKind.STATELESS, 1, TABLES),), ())
STATISTICS = Statistics(triggered_ms=1, committed_ms=2, rows=3)
READY = (Compacted(ROWS, (FileCompaction(into=FileHandle("new", 2, 2, 0), of=("a", "b")),)),)


def begun(files_min=3, unpublished=()):
    return Compacting(GRAPH, CheckpointConfig(compact_files_min=files_min, compacted_bytes_max=99), unpublished)


def draft(checkpoint, kind=RowKind.CHECKPOINT):
    return Draft(checkpoint, (), STATISTICS, kind=kind)


def committed(checkpoint, files=0):
    """Return the entry of a checkpoint that adds files to the append table."""
    adds = tuple(FileHandle(f"{checkpoint}-{number}", 1, 1, 0) for number in range(files))
    return CheckpointRecord(
        job="job",
        checkpoint=checkpoint,
        parent=checkpoint - 1,
        generation=1,
        nonce="n",
        max_parallelism=1,
        vertices=(),
        tables=(TableRecord(table=ROWS, mode=TableMode.APPEND, adds=adds, parent_version=0),),
        statistics=STATISTICS,
    )


ASKED = (CompactFiles((ROWS,), 3, 99),)


def test_a_table_with_more_to_do_is_asked_for_again():
    """One request takes no longer than it takes to write one large file."""
    job = begun()
    job.rows_read()
    job.told(FilesCompacted(more=(ROWS,)))
    assert job.rows_read() == ASKED


@pytest.mark.parametrize("second", [RowKind.CHECKPOINT, RowKind.HELD])
def test_one_checkpoint_commits_it(second):
    """A plain savepoint publishes nothing, so it takes nothing. After a decline, the next checkpoint takes it."""
    job = begun()
    job.rows_read()
    job.told(FilesCompacted(READY))
    assert () == job.onto(draft(1, RowKind.SAVEPOINT)).compacted
    assert READY == job.onto(draft(2)).compacted
    assert () == job.onto(draft(3)).compacted
    job.declined(3)
    assert () == job.onto(draft(4)).compacted
    job.declined(2)
    assert READY == job.onto(draft(5, second)).compacted


def test_a_job_that_compacts_nothing_asks_for_nothing():
    """Neither does a tick whose table nobody has published under its name yet, until it has."""
    assert () == begun(files_min=None).rows_read()
    job = begun(unpublished=(ROWS,))
    assert () == job.rows_read()
    job.committed(committed(1, files=3))
    assert job.rows_read() == ASKED


# ------------------------------------------------------------------
# The statistics of an entry: of each vertex, of each subtask, and of the generation's checkpoints (E6).


THREE = {"every_rows": 3, "rows_of": ("left",), "slice_rows_max": 3, "micro_batch_rows_max": 100}


def vertex_of(row, name):
    return next(vertex for vertex in row.statistics.vertices if vertex.vertex == name)


def work(*tasks):
    return tuple(TaskWork(task_ms=task_ms, sync_ms=sync_ms, rows=rows) for task_ms, sync_ms, rows in tasks)


def test_an_entry_names_the_slow_subtask(job):
    """The entry has the measurements of the tasks, added up over an epoch for each subtask."""
    story = job.story(job.two_sources(parallelism=2), THREE, linger_ms=0)
    story.offers("left", 3)
    story.finishes(work=work((5, 1, 2), (900, 2, 1)))
    first = vertex_of(story.commits(), "joined")
    assert ((5, 900), (1, 2), (2, 1)) == (first.subtasks.task_ms, first.subtasks.sync_ms, first.subtasks.rows_in)
    assert ((1, 0), (10, 0), (0, 0)) == (
        first.subtasks.rows_out,
        first.subtasks.bytes_out,
        first.subtasks.checkpointed_bytes,
    )
    story.offers("left", 1)
    story.finishes(work=work((1, 0, 1), (1, 0, 0)))
    story.offers("left", 2)
    story.finishes(work=work((10, 3, 0), (20, 4, 2)))
    second = vertex_of(story.commits(), "joined")
    assert ((11, 21), (3, 4), (1, 2)) == (second.subtasks.task_ms, second.subtasks.sync_ms, second.subtasks.rows_in)


def test_each_split_has_the_numbers_of_its_rows(job):
    """A source runs no task, so its splits have rows and bytes, and no time."""
    story = job.story(job.two_sources(), THREE, linger_ms=0)
    story.offers("left", 3)
    story.finishes()
    row = story.commits()
    left, right = vertex_of(row, "left"), vertex_of(row, "right")
    assert ((3,), (30,), ()) == (left.subtasks.rows_out, left.subtasks.bytes_out, left.subtasks.task_ms)
    assert (3, 30, None) == (left.rows_out, left.bytes_out, left.start_delay_ms)
    assert ((0,), 0) == (right.subtasks.rows_out, right.rows_out)
    story.offers("left", 3)
    story.finishes()
    assert (3,) == vertex_of(story.commits(), "left").subtasks.rows_out


def test_the_split_with_the_longer_queue_decides_the_alignment(job):
    """One of two splits is slow.

    The gate measures from the first barrier to the last, and the bytes that pass in between.
    """
    graph = JobGraph(
        (
            Vertex("in", VertexKind.SOURCE, 2, splits=("fast", "slow")),
            Vertex("op", VertexKind.KEYED, 1, (Table("out/op", TableMode.APPEND),)),
        ),
        (EdgeId("in", "op"),),
    )
    config = {"every_rows": 16, "rows_of": ("in",), "slice_rows_max": 4, "micro_batch_rows_max": 4}
    story = job.story(graph, config, linger_ms=0)
    offers(story, "fast", 4)
    story.take(PollSource, lambda poll: poll.split == "fast")
    story.tell(SourceIdle("in", "fast"))
    for _ in range(3):
        offers(story, "slow", 4)
    for _ in range(4):
        story.passes(3_000)
        story.finishes("op")
    vertex = vertex_of(story.commits(), "op")
    came = {barrier.channel: barrier.at_ms for barrier in vertex.barriers}
    assert ["in->op:0[0]", "in->op:0[1]"] == sorted(came, key=lambda channel: came[channel])
    assert (6_000, 6_000) == (vertex.start_delay_ms, vertex.alignment_ms)
    assert (80, 0) == (vertex.bytes_processed, vertex.async_ms)


def offers(story, split, rows):
    poll = story.take(PollSource, lambda poll: poll.split == split)
    start = int(poll.position or 0)
    story.tell(SliceOffered(SourceSlice("in", split, str(start), str(start + rows), "", rows, rows * 10)))


def test_counts_add_up_and_a_failed_checkpoint_is_one_of_them(job):
    """An entry counts its generation's checkpoints, itself as in progress. The door says how they ended."""
    config = {**THREE, "tolerable_failures": 3, "timeout_ms": 1_000}
    story = job.story(job.two_sources(judged=True), config, linger_ms=0)
    story.offers("left", 3)
    story.finishes()
    story.passes(2_000)
    story.offers("left", 3)
    story.finishes()
    story.judges()
    story.judges()
    row = story.commits()
    assert CheckpointCounts(total=2, in_progress=1, completed=0, failed=1) == row.statistics.counts
    assert CheckpointCounts(total=2, in_progress=0, completed=1, failed=1) == story.door.counts


def test_a_subtasks_numbers_take_little_room():
    """A thousand subtasks take less than 60 kB in an entry, even with the largest numbers."""
    large = dict.fromkeys(SubtaskStatistics.model_fields, (99_999_999,) * 1_000)
    assert len(SubtaskStatistics(**large).model_dump_json()) < 60_000


def test_counts_of_two_generations_are_added_one_by_one():
    """All numbers differ, so none can stand for another one."""
    first = CheckpointCounts(total=1, in_progress=2, completed=4, failed=8, restored=16)
    second = CheckpointCounts(total=32, in_progress=64, completed=128, failed=256, restored=512)
    assert CheckpointCounts(total=33, in_progress=66, completed=132, failed=264, restored=528) == first + second
