"""A vertex holds the files of its overwrite tables, hands them over at each barrier, and has them after a restore."""

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import EdgeId
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.restoring import CutDoesNotFitError, check_fits, live_files
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from checkpointing.metadata.record import TableKeys

NEWEST = Table("out/newest", TableMode.OVERWRITE, ("v",), judged=True, columns=(TableColumn("v", "long"),))
QUARANTINE = Table("out/bad", TableMode.APPEND)


def file(number, version, table="out/newest"):
    """Return a file of a version. Of an append table, it has none."""
    folder = f"version.number.{version}/" if table == "out/newest" else ""
    return FileHandle(f"{table}/_data/3/{folder}newest-{number}-{number:032x}.parquet", 1, 10, 0)


def vertex(*tables, kind=VertexKind.STATELESS, name="newest"):
    """Return a vertex with these tables."""
    return Vertex(name, kind, 1, tables)


@pytest.fixture
def run():
    """Return the vertex at work, without any rows yet."""
    return OperatorRun(vertex(NEWEST, QUARANTINE), None, 3, live_files(vertex(NEWEST, QUARANTINE), None, 128), passed=4)


def finish(run, *files, also=()):
    """Finish a micro-batch that staged these files. Return the paths to which nothing refers any more."""
    run.micro_batch += 1
    output = SubtaskOutput(staged=(*((NEWEST.name, each) for each in files), *also))
    return run.finish(MicroBatchFinished("newest", run.micro_batch, (output,)))


def shown(snapshot):
    """Return the files that a snapshot names for the table."""
    return [keyed.file for own in snapshot.ranges if own.table == NEWEST.name for keyed in own.files]


def test_files_of_no_cut_are_deleted_once_a_newer_version_comes(run):
    """A file that comes too late is deleted at once. A file that a snapshot names stays: a cut may show it."""
    first, second, late, third = file(1, 9), file(2, 10), file(3, 9), file(4, 11)
    assert () == finish(run, first)
    assert (first.path,) == finish(run, second)
    assert (late.path,) == finish(run, late)
    assert [second] == shown(run.take_snapshot(5)[0])
    assert () == finish(run, third)
    assert [third] == shown(run.take_snapshot(6)[0])


def test_an_overwrite_table_has_no_staged_files(run):
    """The next checkpoint gets them from the snapshot. Files of another table of the vertex are staged as ever."""
    bad = file(7, 0, "out/bad")
    output = SubtaskOutput(staged=(("out/newest", file(1, 9)), ("out/bad", bad)))
    assert [bad] == [staged.file for staged in run.staged(output)]
    assert () == finish(run, file(1, 9), also=[("out/bad", bad)])
    assert [file(1, 9)] == shown(run.take_snapshot(5)[0])


def test_a_vertex_that_wrote_nothing_new_hands_over_the_same_snapshot(run):
    """So a commit sees that nothing changed."""
    finish(run, file(1, 9))
    first = run.take_snapshot(5)[0]
    assert () == finish(run)
    assert first is run.take_snapshot(6)[0]
    assert (file(2, 8).path,) == finish(run, file(2, 8))
    assert first is run.take_snapshot(7)[0]


def cut(job, table=NEWEST, files=(), mode=TableMode.OVERWRITE, columns=("v",)):
    """Return a cut at which the vertex held these files."""
    keyed = tuple(KeyedFile(each, KeyedFileKind.BASE, 0, 0, Version(1, 1)) for each in files)
    record = job.record(graph(table), 5, {"newest": (SubtaskSnapshot(ranges=(RangeFiles(table.name, keyed),)),)})
    keys = (TableKeys(table=table.name, columns=columns, mode=mode),) if mode is not TableMode.APPEND else ()
    vertices = tuple(
        each.model_copy(update={"table_keys": keys}) if each.vertex == "newest" else each for each in record.vertices
    )
    listed = (TableColumns(table.name, (TableColumn("v", "long"),)),)
    return record.model_copy(update={"vertices": vertices, "columns": listed})


def graph(table, kind=VertexKind.STATELESS):
    """Return source -> vertex with this table."""
    return JobGraph(
        (Vertex("s", VertexKind.SOURCE, 1, splits=("a",)), vertex(table, kind=kind)), (EdgeId("s", "newest"),)
    )


def test_after_a_restore_the_vertex_goes_on_from_the_cut(job):
    """A later file of an older version is not shown. Tables that the vertex no longer writes are left behind."""
    was = cut(job, files=[file(1, 9)])
    live = live_files(vertex(NEWEST), was, 128)
    run = OperatorRun(vertex(NEWEST), None, 3, live)
    assert (file(2, 8).path,) == finish(run, file(2, 8))
    assert [file(1, 9).path] == [each.path for each in shown(run.take_snapshot(6)[0])]
    assert () == live_files(vertex(QUARANTINE), was, 128)[0].ranges


def test_a_suite_judges_the_files_that_the_parent_does_not_show(job, run):
    """Files of a failed checkpoint are judged again. A file that gave way to a newer version is not."""
    finish(run, file(1, 9))
    finish(run, file(2, 9))
    parent = cut(job, files=[file(1, 9)])
    assert (("out/newest", (file(2, 9),)),) == run.overwritten_to_judge(parent)
    run.take_snapshot(6)
    assert (("out/newest", (file(2, 9),)),) == run.overwritten_to_judge(parent)
    assert (("out/newest", (file(1, 9), file(2, 9))),) == run.overwritten_to_judge(None)
    finish(run, file(3, 10))
    assert (("out/newest", (file(3, 10),)),) == run.overwritten_to_judge(parent)
    unjudged = OperatorRun(vertex(Table(NEWEST.name, NEWEST.mode, ("v",))), None, 3, run.live)
    assert () == unjudged.overwritten_to_judge(parent)


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
    """With another mode the table would lose its rows. With another version its rows would be compared by wrong values.

    No flag permits that. Changed keys of an upsert table are found when the columns of its state are compared.
    """
    mode, columns = was
    record = cut(job, mode=mode, columns=columns)
    kind = VertexKind.KEYED if now.mode is TableMode.UPSERT else VertexKind.STATELESS
    if told is None:
        check_fits(graph(now, kind), record, 128)
        return
    with pytest.raises(CutDoesNotFitError, match=told):
        check_fits(graph(now, kind), record, 128, allow_non_restored_state=True)


def test_another_vertex_does_not_take_a_table_over(job):
    """It would not have the files that the table shows."""
    record = cut(job, files=[file(1, 9)])
    other = JobGraph(
        (
            Vertex("s", VertexKind.SOURCE, 1, splits=("a",)),
            vertex(),
            vertex(NEWEST, name="other"),
        ),
        (EdgeId("s", "newest"), EdgeId("s", "other")),
    )
    with pytest.raises(CutDoesNotFitError, match=r"by 'newest', and now 'other' writes it.*rows that come from"):
        check_fits(other, record, 128)
