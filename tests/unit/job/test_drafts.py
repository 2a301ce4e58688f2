"""The statistics of an entry: for each vertex, for each subtask, and for the generation's checkpoints (E6)."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import TaskWork
from checkpointing.commit.two_phase import Draft
from checkpointing.config import CheckpointConfig
from checkpointing.event_time import BEFORE_TIME, EventTime
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import KeyedFileKind, Version
from checkpointing.identifiers import EdgeId
from checkpointing.job.drafts import Compacting
from checkpointing.messages import (
    Compacted,
    CompactFiles,
    DiscardFiles,
    FilesCompacted,
    MicroBatchFinished,
    RunMicroBatch,
    SavepointKind,
    SavepointRequested,
    SubtaskOutput,
)
from checkpointing.metadata.record import (
    CheckpointCounts,
    PassedBarrier,
    RowKind,
    SplitPosition,
    Statistics,
    SubtaskStatistics,
    VertexWatermark,
)

THREE = {"every_rows": 3, "rows_of": ("left",), "slice_rows_max": 3, "micro_batch_rows_max": 100}


def vertex_of(row, name):
    return next(vertex for vertex in row.statistics.vertices if vertex.vertex == name)


def work(*tasks):
    return tuple(TaskWork(task_ms=task_ms, sync_ms=sync_ms, rows=rows) for task_ms, sync_ms, rows in tasks)


def test_an_entry_names_the_slow_subtask(job):
    """The entry has the tasks' measurements, added up over an epoch for each subtask."""
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


def test_counts_add_up_and_a_failed_checkpoint_is_one_of_them(job):
    """An entry counts its generation's checkpoints. Its own checkpoint is in progress.

    The door counts it as completed.
    """
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
    """All numbers differ, so a number in a wrong place would be found."""
    first = CheckpointCounts(total=1, in_progress=2, completed=4, failed=8, restored=16)
    second = CheckpointCounts(total=32, in_progress=64, completed=128, failed=256, restored=512)
    assert CheckpointCounts(total=33, in_progress=66, completed=132, failed=264, restored=528) == first + second


def test_an_entry_names_the_barriers_since_its_parent_that_brought_no_cut(job):
    """The vertices judged rows behind such a barrier by the watermark at that barrier.

    A replay needs this watermark (N1).
    """
    left, right, joined = job.two_sources().vertices
    after = Vertex("after", VertexKind.KEYED, 1, (Table("out/after", TableMode.APPEND),))
    vertices = left, right, replace(joined, event_times=(EventTime(0),) * 2), after
    graph = JobGraph(vertices, (*job.two_sources().edges, EdgeId("joined", "after")))
    story = job.story(graph, THREE, linger_ms=0)
    story.offers("left", 2)
    story.tell(SavepointRequested("keep", SavepointKind.PLAIN))
    story.finishes()
    story.finishes("after")
    reached = tuple(VertexWatermark(vertex=name, watermark_ms=BEFORE_TIME) for name in ("joined", "after"))
    places = tuple(
        SplitPosition(source=name, split=name[0], position=at) for name, at in [("right", None), ("left", "2")]
    )
    passed = PassedBarrier(checkpoint=1, clock_ms=story.now_ms, positions=places, watermarks=reached)
    assert RowKind.SAVEPOINT is story.appends().kind
    story.passes(10)
    for barriers in ((passed,), ()):
        story.offers("left", 3)
        story.finishes()
        story.finishes("after")
        assert barriers == story.commits().barriers


def test_an_entry_names_only_the_files_that_its_parent_does_not(job):
    """Otherwise entries would grow more and more in a long tick."""
    story = job.story(job.two_sources(), THREE, linger_ms=0)
    for _ in range(3):
        story.offers("left", 3)
        name = story.finishes()
        assert [name] == [each.file.path for each in story.commits().vertices[2].subtasks[0].staged]


def test_what_was_compacted_goes_to_one_checkpoint_and_to_the_next_one_if_that_is_declined(job):
    config = CheckpointConfig(compact_files_min=2, compacted_bytes_max=7_000_000)
    compacting = Compacting(job.two_sources(), config, ())
    ready = (Compacted("out/joined", ()),)
    assert (CompactFiles(("out/joined",), 2, 7_000_000),) == compacting.rows_read()
    compacting.told(FilesCompacted(ready))

    def taken(checkpoint):
        return compacting.onto(Draft(checkpoint, (), Statistics(triggered_ms=0, committed_ms=0, rows=0))).compacted

    assert [ready, ()] == [taken(checkpoint) for checkpoint in (1, 2)]
    compacting.declined(2)
    assert () == taken(3)
    compacting.declined(1)
    assert [ready, ()] == [taken(checkpoint) for checkpoint in (4, 5)]


@pytest.mark.parametrize(("every_rows", "files"), [(9, 2), (3, 3)], ids=["no cut named it", "no retained cut does"])
def test_state_that_was_replaced_is_deleted(job, every_rows, files):
    """State that a cut named is deleted when the second cut after that one is complete."""
    story = job.story(job.two_sources(), {"every_rows": every_rows, "retained": 1}, linger_ms=0)
    for number in range(files):
        assert [] == story.all_told(DiscardFiles)
        story.offers("left", 3)
        run = story.take(RunMicroBatch)
        state = (job.keyed(f"s{number}", 0, 127, Version(1, run.micro_batch), KeyedFileKind.BASE),)
        story.tell(MicroBatchFinished("joined", run.micro_batch, (SubtaskOutput(state=state),)))
        if every_rows == 3:
            story.commits()
    assert [("s0",)] == [each.paths for each in story.all_told(DiscardFiles)]
