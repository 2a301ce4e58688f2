"""Broadcast state in the job door: what one subtask wrote, all hold, and so does each new subtask (D1)."""

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import KeyedFileKind, Version
from checkpointing.job.operator_run import broadcasts_left, handed_to_all, restored_broadcasts
from checkpointing.job.restoring import live_files
from checkpointing.messages import SubtaskOutput
from checkpointing.metadata.record import VertexRecord

RULES = Table("_tidemark/j/state/joined_broadcast", TableMode.STATE, broadcast=True)
TOTALS = Table("gold/t", TableMode.UPSERT)


def whole(job, name):
    """Return the broadcast state in one file."""
    return RangeFiles(RULES.name, (job.keyed(name, 0, 127, Version(1, 1), KeyedFileKind.BASE),))


def test_what_one_subtask_wrote_all_hold(job):
    """The ranges of an upsert table stay with the subtask that wrote them."""
    own = RangeFiles(TOTALS.name, (job.keyed("t", 0, 63, Version(1, 1)),))
    outputs = handed_to_all((TOTALS, RULES), (SubtaskOutput(ranges=(own, whole(job, "r"))), SubtaskOutput()))
    assert [(own, whole(job, "r")), (whole(job, "r"),)] == [each.ranges for each in outputs]


def test_a_micro_batch_without_broadcast_rows_changes_nothing(job):
    """The outputs stay what they are."""
    outputs = (SubtaskOutput(), SubtaskOutput(ranges=(RangeFiles(TOTALS.name, ()),)))
    assert outputs == handed_to_all((TOTALS, RULES), outputs)


def test_each_new_subtask_gets_the_whole_state(job):
    """Three subtasks follow two. An old subtask that had finished has no state, and is passed over."""
    held = (SubtaskSnapshot(finished=True), SubtaskSnapshot(ranges=(whole(job, "r"),)))
    was = VertexRecord(vertex="joined", micro_batch=1, subtasks=held)
    assert ((whole(job, "r"),),) * 3 == restored_broadcasts((TOTALS, RULES), was, 3)
    assert ((), ()) == restored_broadcasts((TOTALS,), was, 2)


def test_a_restore_gives_the_state_to_every_subtask(job):
    """The live files of each subtask are its own range of the table, and all of the broadcast state."""
    graph = job.two_sources(parallelism=1)
    own = RangeFiles(TOTALS.name, (job.keyed("t", 0, 63, Version(1, 1), KeyedFileKind.BASE),))
    cut = job.record(graph, 3, {"joined": (SubtaskSnapshot(ranges=(own, whole(job, "r"))),)})
    two = live_files(Vertex("joined", VertexKind.KEYED, 2, (TOTALS, RULES)), cut, 128)
    assert [(own, whole(job, "r")), (RangeFiles(TOTALS.name, ()), whole(job, "r"))] == [each.ranges for each in two]


def test_state_whose_input_is_gone_is_named(job):
    """The vertex is still there, and nobody would keep its broadcast state."""
    graph = job.two_sources(parallelism=1)
    cut = job.record(graph, 3, {"joined": (SubtaskSnapshot(ranges=(whole(job, "r"),)),)})
    seeing = JobGraph((Vertex("joined", VertexKind.KEYED, 1, (RULES,)),), ())
    assert ["joined"] == list(broadcasts_left(graph, cut))
    assert [] == list(broadcasts_left(seeing, cut))
