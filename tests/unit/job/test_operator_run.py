"""Messages about a failed judgement, and about tables and broadcast state that do not fit the cut (J3, D1, G2)."""

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import EdgeId
from checkpointing.job.operator_run import broadcasts_left
from checkpointing.job.restoring import CutDoesNotFitError, check_fits
from checkpointing.messages import (
    AppendRow,
    JudgementFailed,
    JudgeSuites,
    MicroBatchFinished,
    RunMicroBatch,
    SubtaskOutput,
    TickOutcome,
)
from checkpointing.metadata.record import TableKeys

UNJUDGED = "suite s of table out/joined could not be judged: the file is damaged"


def test_a_judgement_that_failed_counts_and_the_message_names_the_way_out(job):
    """By default, no failure is tolerated. The job's error names the cause, and the setting that tolerates failures."""
    story = job.story(job.two_sources(judged=True), {"every_rows": 3}, linger_ms=0)
    story.offers("left", 3)
    story.finishes()
    story.tell(JudgementFailed("joined", 1, UNJUDGED))
    assert (TickOutcome.FAILED, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION) == (
        story.end.outcome,
        story.end.reason,
    )
    assert UNJUDGED in story.end.message
    assert "--set tolerable_failures=3" in story.end.message
    assert [] == story.all_told(AppendRow)


SUMS = "out/sums"


@pytest.mark.parametrize(
    ("sent_on", "into_table", "judged"),
    [
        ((), (), [((SUMS, ()),)]),
        ((FileHandle("clean", 1, 10, 0),), (), [((SUMS, ()),)]),
        ((FileHandle("clean", 1, 10, 0),), (ROW := FileHandle("row", 1, 10, 0),), [((SUMS, (ROW,)),)]),
        (None, (), []),
    ],
    ids=["dropped above", "dropped here", "one kept", "none came"],
)
def test_a_table_that_got_none_of_the_rows_that_came_is_judged_if_its_suite_says_something_of_none(
    job, sent_on, into_table, judged
):
    """If no rows came at all, there is nothing to judge (J3). Rows of `right` cannot reach the table of `sums`."""
    table = Table(SUMS, TableMode.APPEND, judged=True, judged_empty=True)
    named = {name: Vertex(name, VertexKind.SOURCE, 1, splits=(name[0],)) for name in ("left", "right")}
    named |= {name: Vertex(name, VertexKind.KEYED, 1) for name in ("clean", "other")}
    named["sums"] = Vertex("sums", VertexKind.KEYED, 1, (table,))
    edges = (EdgeId("left", "clean"), EdgeId("clean", "sums"), EdgeId("right", "other"))
    story = job.story(JobGraph(tuple(named.values()), edges), {"every_rows": 3}, linger_ms=0)
    story.offers("right" if sent_on is None else "left", 3)
    for vertex in ("clean", "other", "sums"):
        for run in [each for each in story.all(RunMicroBatch) if each.vertex == vertex]:
            story.waiting.remove(run)
            staged = tuple((SUMS, file) for file in into_table) if vertex == "sums" else ()
            output = SubtaskOutput(emitted=sent_on or () if vertex == "clean" else (), staged=staged)
            story.tell(MicroBatchFinished(vertex, run.micro_batch, (output,)))
    assert judged == [asked.files for asked in story.all(JudgeSuites)]


# ------------------------------------------------------------------
# Broadcast state whose input is gone (D1).


RULES = Table("_tidemark/j/state/joined_broadcast", TableMode.STATE, broadcast=True)


def whole(job, name):
    return RangeFiles(RULES.name, (job.keyed(name, 0, 127, Version(1, 1), KeyedFileKind.BASE),))


def test_state_whose_input_is_gone_is_named(job):
    """The vertex still exists, but no table would keep its broadcast state."""
    graph = job.two_sources(parallelism=1)
    cut = job.record(graph, 3, {"joined": (SubtaskSnapshot(ranges=(whole(job, "r"),)),)})
    seeing = JobGraph((Vertex("joined", VertexKind.KEYED, 1, (RULES,)),), ())
    assert ["joined"] == list(broadcasts_left(graph, cut))
    assert [] == list(broadcasts_left(seeing, cut))
    empty = job.record(graph, 3, {"joined": (SubtaskSnapshot(ranges=(RangeFiles(RULES.name, ()),)),)})
    assert [] == list(broadcasts_left(graph, empty)), "there is nothing to lose"


# ------------------------------------------------------------------
# A table with another mode or version column (G2).


NEWEST = Table("out/newest", TableMode.OVERWRITE, ("v",), judged=True, columns=(TableColumn("v", "long"),))


def vertex(*tables, kind=VertexKind.STATELESS, name="newest"):
    return Vertex(name, kind, 1, tables)


def cut(job, table=NEWEST, files=(), mode=TableMode.OVERWRITE, columns=("v",)):
    keyed = tuple(KeyedFile(each, KeyedFileKind.BASE, 0, 0, Version(1, 1)) for each in files)
    record = job.record(graph(table), 5, {"newest": (SubtaskSnapshot(ranges=(RangeFiles(table.name, keyed),)),)})
    keys = (TableKeys(table=table.name, columns=columns, mode=mode),) if mode is not TableMode.APPEND else ()
    vertices = tuple(
        each.model_copy(update={"table_keys": keys}) if each.vertex == "newest" else each for each in record.vertices
    )
    listed = (TableColumns(table.name, (TableColumn("v", "long"),)),)
    return record.model_copy(update={"vertices": vertices, "columns": listed})


def graph(table, kind=VertexKind.STATELESS):
    return JobGraph(
        (Vertex("s", VertexKind.SOURCE, 1, splits=("a",)), vertex(table, kind=kind)), (EdgeId("s", "newest"),)
    )


UPSERT = Table("out/newest", TableMode.UPSERT, ("v",), columns=NEWEST.columns)
APPEND = Table("out/newest", TableMode.APPEND, columns=NEWEST.columns)
BY_OTHER = Table("out/newest", TableMode.OVERWRITE, ("w",), columns=NEWEST.columns)


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ((TableMode.APPEND, ()), NEWEST, "as an append table, and .* as an overwrite table by version v"),
        ((TableMode.UPSERT, ("v",)), NEWEST, "as an upsert table by key v, and .* as an overwrite table by version v"),
        ((TableMode.OVERWRITE, ("v",)), UPSERT, "as an overwrite table by version v, and .* an upsert table by key v"),
        ((TableMode.OVERWRITE, ("v",)), APPEND, "as an overwrite table by version v, and .* as an append table"),
        ((TableMode.APPEND, ()), UPSERT, "as an append table, and .* as an upsert table by key v"),
        ((TableMode.UPSERT, ("v",)), APPEND, "as an upsert table by key v, and .* as an append table"),
        ((TableMode.OVERWRITE, ("v",)), BY_OTHER, "an overwrite table by version v, and .* by version w"),
        ((TableMode.OVERWRITE, ("v",)), NEWEST, None),
        ((TableMode.APPEND, ()), APPEND, None),
        ((TableMode.UPSERT, ("k",)), UPSERT, None),
    ],
)
def test_a_table_keeps_its_mode_and_its_version(job, was, now, told):
    """With another mode, the table would lose its rows. With another version column, wrong values would be compared.

    No flag permits such a change. Changed keys of an upsert table are found when the columns of its state are compared.
    """
    mode, columns = was
    record = cut(job, mode=mode, columns=columns)
    kind = VertexKind.KEYED if now.mode is TableMode.UPSERT else VertexKind.STATELESS
    if told is None:
        check_fits(graph(now, kind), record, 128)
        return
    with pytest.raises(CutDoesNotFitError, match=told):
        check_fits(graph(now, kind), record, 128, allow_non_restored_state=True)
