"""Builds the doors' first state from an entry: positions, overlapping ranges, and refusals (D3, G1, G2)."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import KeyedFileKind, Version
from checkpointing.identifiers import ChannelId, EdgeId, SubtaskId
from checkpointing.job.restoring import (
    CutDoesNotFitError,
    acknowledged,
    channel_now,
    check_fits,
    completed_store,
    in_flight,
    live_files,
    positions,
)
from checkpointing.state_meaning import ColumnMeaning


def one_source(*splits):
    return JobGraph((Vertex("s", VertexKind.SOURCE, len(splits), splits=splits),), ())


def test_splits_are_found_by_name(job):
    """A split continues at its position, even if its index has changed. A new split begins at its start."""
    was = one_source("a", "b")
    cut = job.record(was, 3, {"s": (SubtaskSnapshot(position="10"), SubtaskSnapshot(position="20"))})
    found = positions(one_source("b", "new", "a"), cut)
    assert {SubtaskId("s", 0): "20", SubtaskId("s", 1): None, SubtaskId("s", 2): "10"} == found


def test_without_a_cut_everything_begins_at_its_start():
    """Without an entry, every position is None, nothing is live and nothing is in flight."""
    graph = one_source("a")
    assert {SubtaskId("s", 0): None} == positions(graph, None)
    assert [()] == [files.state for files in live_files(Vertex("k", VertexKind.KEYED, 1), None, 128)]
    assert [] == list(in_flight(None))


def test_a_subtask_gets_the_files_that_overlap_its_key_range(job):
    """Two subtasks become three. The middle one reads files of both, and the others files of one (D3)."""
    graph = job.two_sources(parallelism=2)
    halves = (
        SubtaskSnapshot(
            state=(job.keyed("low", 0, 63, Version(1, 1)),),
            ranges=(RangeFiles("out/t", (job.keyed("t-low", 0, 63, Version(1, 1), KeyedFileKind.BASE),)),),
        ),
        SubtaskSnapshot(state=(job.keyed("high", 64, 127, Version(1, 2)),)),
    )
    cut = job.record(graph, 3, {"joined": halves})
    three = live_files(Vertex("joined", VertexKind.KEYED, 3, (Table("out/t", TableMode.UPSERT),)), cut, 128)
    assert [["low"], ["low", "high"], ["high"]] == [[each.file.path for each in own.state] for own in three]
    assert [["t-low"], ["t-low"], []] == [
        [each.file.path for entry in own.ranges for each in entry.files] for own in three
    ]
    without_table = live_files(Vertex("joined", VertexKind.KEYED, 3), cut, 128)
    assert [(), (), ()] == [own.ranges for own in without_table]


def test_files_of_several_subtasks_come_oldest_first(job):
    """After restores at other parallelisms, several snapshots have files of one key. The newest must come last."""
    graph = job.two_sources(parallelism=2)
    both = job.keyed("both", 0, 127, Version(2, 1))
    halves = (
        SubtaskSnapshot(state=(job.keyed("low", 0, 63, Version(1, 1)), both)),
        SubtaskSnapshot(
            state=(job.keyed("high", 64, 127, Version(1, 1)), both, job.keyed("top", 64, 127, Version(3, 1)))
        ),
    )
    (whole,) = live_files(
        graph.vertex("joined").__class__("joined", VertexKind.KEYED, 1), job.record(graph, 3, {"joined": halves}), 128
    )
    assert ["low", "high", "both", "top"] == [each.file.path for each in whole.state]


def test_a_missing_split_is_refused(job):
    """A split with a position in the cut must exist. The error names it and the way out."""
    cut = job.record(one_source("a", "b"), 3, {})
    with pytest.raises(CutDoesNotFitError, match=r"split 'b' of source 's'.*bring it back"):
        check_fits(one_source("a"), cut, 128)


def test_a_missing_vertex_with_state_is_refused_and_one_without_is_not(job):
    """State must belong to a vertex (G2). A vertex without state may be removed."""
    gone = JobGraph((Vertex("s", VertexKind.SOURCE, 1, splits=("a",)), Vertex("old", VertexKind.KEYED, 1)), ())
    check_fits(one_source("a"), job.record(gone, 3, {}), 128)
    held = (SubtaskSnapshot(state=(job.keyed("f", 0, 127, Version(1, 1)),)),)
    with pytest.raises(CutDoesNotFitError, match=r"state of 'old'.*put it back"):
        check_fits(one_source("a"), job.record(gone, 3, {"old": held}), 128)


def test_a_door_drops_state_if_its_setup_allows(job):
    """If the setup allows it, the job starts without that state. Otherwise the door refuses."""
    gone = JobGraph((Vertex("s", VertexKind.SOURCE, 1, splits=("a",)), Vertex("old", VertexKind.KEYED, 1)), ())
    held = (SubtaskSnapshot(state=(job.keyed("f", 0, 127, Version(1, 1)),)),)
    restored = job.record(gone, 3, {"old": held})
    job.story(one_source("a"), restored=restored, allow_non_restored_state=True)
    with pytest.raises(CutDoesNotFitError, match=r"state of 'old'.*--allow-non-restored-state"):
        job.story(one_source("a"), restored=restored)


def test_another_number_of_key_groups_is_refused(job):
    """Keys would be in other groups. The message says which number to set."""
    with pytest.raises(CutDoesNotFitError, match="set it back to 128"):
        check_fits(one_source("a"), job.record(one_source("a"), 3, {}), 64)


def test_rows_in_flight_need_their_edge(job):
    """Rows in flight on an edge that no longer exists would be lost, so they are refused.

    A narrower edge is allowed.
    """
    graph = job.two_sources()
    held = tuple(job.in_flight_of(EdgeId("left", "joined", 0), 4, "f"))
    cut = job.record(graph, 3, {"joined": (SubtaskSnapshot(in_flight=held),)})
    check_fits(graph, cut, 128)
    assert [ChannelId(EdgeId("left", "joined", 0), 0)] == [channel_now(graph, channel) for channel, _ in in_flight(cut)]
    swapped = JobGraph(graph.vertices, (EdgeId("left", "joined", 1), EdgeId("right", "joined", 0)))
    with pytest.raises(CutDoesNotFitError, match=r"in flight on left->joined:0"):
        check_fits(swapped, cut, 128)


ODD_THEN = r"checkpoint 3 holds .* to 'joined', whose input 1 read the output 'odd' of 'right' and reads "


@pytest.mark.parametrize(
    ("then", "now", "says"),
    [
        ((None, "odd"), (None, "seen"), ODD_THEN + r"the output 'seen' now.*'odd' again.*--suspend"),
        ((None, "odd"), (), ODD_THEN + "the main output now"),
        ((), (None, "seen"), r"input 1 read the main output of 'right' and reads the output 'seen' now"),
        ((None, "odd"), ("seen", "odd"), None),
        ((None, "odd"), (None, "odd"), None),
        ((), (), None),
        (None, (None, "seen"), None),
    ],
)
def test_an_input_with_rows_in_flight_goes_on_with_its_output(job, then, now, says):
    """It would pass over the rows of the output that it read. An input without rows in flight may change."""
    graph = reading(job, now)
    check_fits(graph, reads(job.record(graph, 3, {}), then), 128)
    held = tuple(job.in_flight_of(EdgeId("right", "joined", 1), 0, "f"))
    cut = reads(job.record(graph, 3, {"joined": (SubtaskSnapshot(in_flight=held),)}), then)
    if says is None:
        check_fits(graph, cut, 128)
        return
    for allow in (False, True):
        with pytest.raises(CutDoesNotFitError, match=says):
            check_fits(graph, cut, 128, allow_non_restored_state=allow)


def reading(job, outputs):
    """Return the graph of two sources whose join reads these outputs."""
    graph = job.two_sources()
    vertices = (replace(each, outputs_read=outputs) if each.id == "joined" else each for each in graph.vertices)
    return replace(graph, vertices=tuple(vertices))


def reads(cut, outputs):
    """Return the cut with the outputs that the join read. None: the entry is older than the field."""
    vertices = (
        was.model_copy(update={"outputs_read": outputs if was.vertex == "joined" else ()}) for was in cut.vertices
    )
    return cut.model_copy(update={"vertices": tuple(vertices)})


def test_the_store_knows_every_retained_state_file(job):
    """A file of an old retained checkpoint is deleted only with that checkpoint (D4).

    Table files are never in the store.
    """
    graph = job.two_sources()
    old, new = (job.keyed(name, 0, 127, Version(1, 1)) for name in ("old", "new"))
    cuts = [
        job.record(graph, number, {"joined": (SubtaskSnapshot(state=(file,)),)})
        for number, file in ((2, new), (1, old))
    ]
    store = completed_store(tuple(cuts), 2)
    assert 2 == store.latest_id
    assert (("old", "old"),) == acknowledged(SubtaskSnapshot(state=(old,))).shared
    assert () == acknowledged(SubtaskSnapshot(ranges=(RangeFiles("out/t", (new,)),))).shared


COUNTED = ColumnMeaning(column="n", function="count")
ROWS = ColumnMeaning(column="_rows", function="rows")


def changes(*meanings, first="first", second="second"):
    """Return a graph in which an aggregate takes the changes of another one."""
    return JobGraph(
        (
            Vertex(first, VertexKind.KEYED, 1, meanings=(COUNTED,)),
            Vertex(second, VertexKind.KEYED, 1, meanings=meanings, changes_of=(first,)),
        ),
        (EdgeId(first, second),),
    )


def recorded(job, *vertices):
    """Return a cut with these vertices, each with the columns of its state."""
    graph = JobGraph(tuple(Vertex(name, VertexKind.KEYED, 1, meanings=meanings) for name, meanings in vertices), ())
    cut = job.record(graph, 3, {})
    meant = dict(vertices)
    known = tuple(was.model_copy(update={"meanings": meant[was.vertex]}) for was in cut.vertices)
    return cut.model_copy(update={"vertices": known})


def test_a_vertex_that_takes_changes_goes_on_with_the_state_of_both(job):
    """Both are in the cut, or neither is, and the state has all columns."""
    both = recorded(job, ("first", (COUNTED,)), ("second", (COUNTED, ROWS)))
    check_fits(changes(COUNTED, ROWS), both, 128)
    check_fits(changes(COUNTED, ROWS), recorded(job), 128)


@pytest.mark.parametrize(
    ("vertices", "said"),
    [
        (
            [("first", (COUNTED,))],
            r"holds state of 'first' and none of 'second'; 'second' takes the changes of 'first'",
        ),
        ([("second", (COUNTED, ROWS))], r"holds state of 'second' and none of 'first'; 'second' takes"),
        ([("first", (COUNTED,)), ("second", (COUNTED,))], r"holds state of 'second' without '_rows'"),
        ([("first", (COUNTED,)), ("second", (ROWS,))], r"holds state of 'second' without 'n'.* Leave the column out"),
        ([("first", (COUNTED,)), ("second", None)], r"holds state of 'second' without 'n'"),
    ],
)
def test_a_vertex_may_not_take_back_rows_that_it_never_got(job, vertices, said):
    """One of the two began later, or a column of the state did. The message says what to do."""
    with pytest.raises(CutDoesNotFitError, match=said + r".*give 'second' and 'first' new ids"):
        check_fits(changes(COUNTED, ROWS), recorded(job, *vertices), 128, allow_non_restored_state=True)


def test_a_renamed_column_of_a_vertex_that_takes_changes_is_known(job):
    """Its values are in the state under the old name."""
    graph = changes(replace(COUNTED, column="many"), ROWS)
    second = replace(graph.vertices[1], columns_renamed_from={"many": "n"})
    cut = recorded(job, ("first", (COUNTED,)), ("second", (COUNTED, ROWS)))
    check_fits(replace(graph, vertices=(graph.vertices[0], second)), cut, 128)
