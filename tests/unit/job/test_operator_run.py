"""The asynchronous part in the job door: when a checkpoint ends, its judgements are cancelled (J3, B2)."""

import pytest

from checkpointing.channel_items import Barrier, RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import InputGate
from checkpointing.gate.messages import GateConfig
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, EdgeId, Generation, JobName, TableName, VertexId
from checkpointing.job.operator_run import OperatorRun, broadcasts_left, handed_to_all, restored_broadcasts
from checkpointing.job.restoring import CutDoesNotFitError, check_fits, live_files
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    JudgementFailed,
    JudgeSuites,
    MicroBatchFinished,
    NotifyAborted,
    RunMicroBatch,
    SubtaskOutput,
    SuitesJudged,
    TickOutcome,
)
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import TableKeys, VertexRecord

TIMEOUT_MS = 5_000


@pytest.fixture
def judging(job):
    """Return a job whose first checkpoint waits for its verdict."""
    story = job.story(
        job.two_sources(judged=True), {"every_rows": 3, "timeout_ms": TIMEOUT_MS, "tolerable_failures": 9}, linger_ms=0
    )
    story.offers("left", 3)
    story.finishes()
    assert [1] == [asked.checkpoint for asked in story.all(JudgeSuites)]
    return story


def test_a_timeout_cancels_the_judgement_of_its_checkpoint(judging):
    """It is cancelled once, for the vertex that is judged. The listeners hear of the abort first."""
    judging.passes(TIMEOUT_MS)
    told = [effect for effect in judging.told if isinstance(effect, NotifyAborted | CancelJudgement)]
    assert [NotifyAborted, CancelJudgement] == [type(effect) for effect in told]
    assert CheckpointFailureReason.CHECKPOINT_EXPIRED is told[0].reason
    assert CancelJudgement("joined", 1) == told[1]


@pytest.mark.parametrize("passed", [True, False])
def test_a_late_verdict_changes_nothing(judging, passed):
    """Nothing is appended, and a rejection does not fail the job."""
    judging.passes(TIMEOUT_MS)
    judging.passes(7)
    before = len(judging.told)
    judging.tell(SuitesJudged("joined", 1, passed, '["late"]', "too bad"))
    assert before == len(judging.told)
    assert [] == judging.all(AppendRow)


def test_a_checkpoint_that_has_ended_is_not_judged(job):
    """Its barrier reaches the vertex after the timeout, when nobody would wait for the verdict."""
    story = job.story(
        job.two_sources(judged=True), {"every_rows": 3, "timeout_ms": TIMEOUT_MS, "tolerable_failures": 9}
    )
    story.offers("left", 3)
    story.passes(TIMEOUT_MS)
    story.finishes()
    assert [1] == [aborted.checkpoint for aborted in story.all_told(NotifyAborted)]
    assert 1 not in [asked.checkpoint for asked in story.all_told(JudgeSuites)]


UNJUDGED = "suite s of table out/joined could not be judged: the file is damaged"


def test_a_judgement_that_failed_counts_and_the_message_names_the_way_out(job):
    """By default, no failure is tolerated. The job fails with the cause, and with the setting that lets it go on."""
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


COUNTED = Table("out/counted", TableMode.APPEND, judged=True, judged_empty=True)


def counted() -> JobGraph:
    """Return the graph in -> passing -> counted. The suite of the last table says something of no rows."""
    return JobGraph(
        (
            Vertex("in", VertexKind.SOURCE, 1, splits=("i",)),
            Vertex("beside", VertexKind.SOURCE, 1, splits=("b",)),
            Vertex("passing", VertexKind.STATELESS, 1, (Table("out/passing", TableMode.APPEND),)),
            Vertex("counted", VertexKind.STATELESS, 1, (COUNTED,)),
            Vertex("other", VertexKind.STATELESS, 1, (Table("out/other", TableMode.APPEND),)),
        ),
        (EdgeId("in", "passing"), EdgeId("passing", "counted"), EdgeId("beside", "other")),
    )


def ran(story, vertex: str, *tables: str, emitted: bool = False) -> None:
    effect = story.take(RunMicroBatch, lambda run: run.vertex == vertex)
    new = FileHandle(f"{vertex}-{effect.micro_batch}", 3, 30, 0)
    output = SubtaskOutput(emitted=(new,) if emitted else (), staged=tuple((table, new) for table in tables))
    story.tell(MicroBatchFinished(vertex, effect.micro_batch, (output,)))


@pytest.mark.parametrize("dropped", ["passing", "counted"])
def test_a_table_to_which_no_row_came_is_judged(job, dropped):
    """Rows came, and the vertex dropped them, or the vertex before it. The suite gets the table without a file."""
    story = job.story(counted(), {"every_rows": 3}, linger_ms=0)
    story.offers("in", 3)
    ran(story, "passing", emitted=dropped == "counted")
    if dropped == "counted":
        ran(story, "counted")
    (asked,) = story.all(JudgeSuites)
    assert ("counted", 1, (("out/counted", ()),)) == (asked.vertex, asked.checkpoint, asked.files)


def test_a_table_to_whose_vertex_no_row_could_come_is_not_judged(job):
    """Only the other source has rows. A suite that rejected this checkpoint would stop the job for nothing."""
    story = job.story(counted(), {"every_rows": 3}, linger_ms=0)
    story.offers("beside", 3)
    ran(story, "other", "out/other")
    assert [] == story.all_told(JudgeSuites)
    assert 1 == story.commits().checkpoint


# ------------------------------------------------------------------
# Broadcast state in the job door: what one subtask wrote, all hold, and so does each new subtask (D1).


RULES = Table("_tidemark/j/state/joined_broadcast", TableMode.STATE, broadcast=True)
TOTALS = Table("gold/t", TableMode.UPSERT)


def whole(job, name):
    return RangeFiles(RULES.name, (job.keyed(name, 0, 127, Version(1, 1), KeyedFileKind.BASE),))


def test_each_new_subtask_gets_one_whole_copy_of_the_broadcast_state(job):
    """A subtask without files has none to give, whatever the parallelism is (D1)."""
    copies = [whole(job, name) for name in ("a", "b")]
    empty, other = RangeFiles(RULES.name, ()), RangeFiles(TOTALS.name, copies[0].files)
    subtasks = tuple(SubtaskSnapshot(ranges=(other, entry)) for entry in (copies[0], empty, copies[1]))
    was = VertexRecord(vertex="joined", micro_batch=0, subtasks=subtasks)
    assert ((copies[0],), (copies[1],), (copies[0],), (copies[1],)) == restored_broadcasts([RULES], was, 4)
    assert ((copies[0],),) == restored_broadcasts([RULES], was, 1)
    assert ((), ()) == restored_broadcasts([], was, 2)


def test_what_one_subtask_wrote_all_hold(job):
    """The ranges of an upsert table stay with the subtask that wrote them."""
    own = RangeFiles(TOTALS.name, (job.keyed("t", 0, 63, Version(1, 1)),))
    outputs = handed_to_all((TOTALS, RULES), (SubtaskOutput(ranges=(own, whole(job, "r"))), SubtaskOutput()))
    assert [(own, whole(job, "r")), (whole(job, "r"),)] == [each.ranges for each in outputs]


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


# ------------------------------------------------------------------
# A vertex holds the files of its overwrite tables, hands them over at each barrier, and has them after a restore.


NEWEST = Table("out/newest", TableMode.OVERWRITE, ("v",), judged=True, columns=(TableColumn("v", "long"),))
QUARANTINE = Table("out/bad", TableMode.APPEND)


def file(number, version, table="out/newest"):
    """Return a file of a version. Of an append table, it has none."""
    folder = f"version.number.{version}/" if table == "out/newest" else ""
    return FileHandle(f"{table}/_data/3/{folder}newest-{number}-{number:032x}.parquet", 1, 10, 0)


def vertex(*tables, kind=VertexKind.STATELESS, name="newest"):
    return Vertex(name, kind, 1, tables)


@pytest.fixture
def run():
    return OperatorRun(vertex(NEWEST, QUARANTINE), None, 3, live_files(vertex(NEWEST, QUARANTINE), None, 128), passed=4)


def finish(run, *files, also=()):
    """Finish a micro-batch that staged these files. Return the paths to which nothing refers any more."""
    run.micro_batch += 1
    output = SubtaskOutput(staged=(*((NEWEST.name, each) for each in files), *also))
    return run.finish(MicroBatchFinished("newest", run.micro_batch, (output,)))


def shown(snapshot):
    return [keyed.file for own in snapshot.ranges if own.table == NEWEST.name for keyed in own.files]


def test_files_of_no_cut_are_deleted_once_a_newer_version_comes(run):
    """A file that comes too late is deleted at once. A file that a snapshot names stays: a cut may show it."""
    first, second, late, third = file(1, 9), file(2, 10), file(3, 9), file(4, 11)
    assert () == finish(run, first)
    assert (first.path,) == finish(run, second)
    assert (late.path,) == finish(run, late)
    assert [second] == shown(run.take_snapshot(Barrier(CheckpointId(5)))[0])
    assert () == finish(run, third)
    assert [third] == shown(run.take_snapshot(Barrier(CheckpointId(6)))[0])


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


def test_after_a_restore_the_vertex_goes_on_from_the_cut(job):
    """A later file of an older version is not shown. Tables that the vertex no longer writes are left behind."""
    was = cut(job, files=[file(1, 9)])
    live = live_files(vertex(NEWEST), was, 128)
    run = OperatorRun(vertex(NEWEST), None, 3, live)
    assert (file(2, 8).path,) == finish(run, file(2, 8))
    assert [file(1, 9).path] == [each.path for each in shown(run.take_snapshot(Barrier(CheckpointId(6)))[0])]
    assert () == live_files(vertex(QUARANTINE), was, 128)[0].ranges


def test_a_suite_judges_the_files_that_the_parent_does_not_show(job, run):
    """Files of a failed checkpoint are judged again. A file that gave way to a newer version is not."""
    finish(run, file(1, 9))
    finish(run, file(2, 9))
    parent = cut(job, files=[file(1, 9)])
    assert (("out/newest", (file(2, 9),)),) == run.overwritten_to_judge(parent)
    run.take_snapshot(Barrier(CheckpointId(6)))
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


# ------------------------------------------------------------------
# An overwrite table shows the rows of the batch query, in whatever order its files come.


TABLE = TableName("silver/prices")
PATHS = ProtocolPaths(JobName("shop"))


def keyed(number, version, partition=""):
    name = StagedName(VertexId("prices"), number, f"{number:032x}", partition, version.folder)
    file = FileHandle(PATHS.staged_file(TABLE, Generation(1), name), 1, 1, 0)
    return KeyedFile(file, KeyedFileKind.BASE, 0, 0, Version(Generation(1), number))


def test_a_barrier_is_as_far_behind_as_rows_may_wait_in_the_vertex():
    """They come after it (N6). At the end of time nothing waits, and before time nothing has come."""
    vertex = Vertex(VertexId("paid"), VertexKind.KEYED, 1, rows_wait_ms=10)
    run = OperatorRun(vertex, InputGate(GateConfig(), ()), Generation(1), [])
    sent = [
        run.sent_on(Barrier(CheckpointId(1), watermark_ms=ms)).watermark_ms for ms in (BEFORE_TIME, 100, END_OF_TIME)
    ]
    assert [BEFORE_TIME, 90, END_OF_TIME] == sent
