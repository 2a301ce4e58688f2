"""Tests the messages of refused cuts (G2), the files of a renamed table, and rows that cannot be written (B2)."""

import pytest

from checkpointing.channel_items import RangeFiles, SourceSlice, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFileKind, Version
from checkpointing.identifiers import EdgeId, Generation, JobName, TableName
from checkpointing.job.renaming import relocated_files
from checkpointing.job.restoring import CutDoesNotFitError, check_fits
from checkpointing.job.tick_end import FIRST_MS
from checkpointing.messages import (
    AppendRow,
    MicroBatchNotStaged,
    NotifyAborted,
    PollSource,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    TickOutcome,
)
from checkpointing.metadata.paths import parse_staged_name
from checkpointing.state_meaning import ColumnMeaning


def one_source(*splits):
    return JobGraph((Vertex("s", VertexKind.SOURCE, len(splits), splits=splits),), ())


def test_a_missing_split_is_refused(job):
    """A split with a position in the cut must exist. The error names the split and the way out."""
    cut = job.record(one_source("a", "b"), 3, {})
    with pytest.raises(CutDoesNotFitError, match=r"split 'b' of source 's'.*bring it back"):
        check_fits(one_source("a"), cut, 128)


def test_a_missing_vertex_with_state_is_refused_and_one_without_is_not(job):
    """State in a cut must belong to a vertex of the pipeline (G2). A vertex without state may be removed."""
    gone = JobGraph((Vertex("s", VertexKind.SOURCE, 1, splits=("a",)), Vertex("old", VertexKind.KEYED, 1)), ())
    check_fits(one_source("a"), job.record(gone, 3, {}), 128)
    held = (SubtaskSnapshot(state=(job.keyed("f", 0, 127, Version(1, 1)),)),)
    with pytest.raises(CutDoesNotFitError, match=r"state of 'old'.*put it back"):
        check_fits(one_source("a"), job.record(gone, 3, {"old": held}), 128)


def test_another_number_of_key_groups_is_refused(job):
    """With another number, keys would be in other groups. The message says which number to set."""
    with pytest.raises(CutDoesNotFitError, match="set it back to 128"):
        check_fits(one_source("a"), job.record(one_source("a"), 3, {}), 64)


COUNTED = ColumnMeaning(column="n", function="count")
ROWS = ColumnMeaning(column="_rows", function="rows")


def changes(*meanings, first="first", second="second"):
    """Return a graph in which one aggregate takes the changes of another aggregate."""
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
    """One of the two vertices, or a state column, began later than the rest. The message says what to do."""
    with pytest.raises(CutDoesNotFitError, match=said + r".*give 'second' and 'first' new ids"):
        check_fits(changes(COUNTED, ROWS), recorded(job, *vertices), 128, allow_non_restored_state=True)


# ------------------------------------------------------------------
# A changed pipeline is refused if its tables would silently lose rows (G2).


COLUMNS = (TableColumn("k", "long"),)


def graph(bronze="bronze/rows", **keyed):
    """Return source -> bronze -> keyed vertices. Each keyed vertex has an upsert table of this name, or none (None)."""
    tables = {
        name: (Table(table, TableMode.UPSERT, ("k",), columns=COLUMNS),) if table else ()
        for name, table in keyed.items()
    }
    vertices = [Vertex(name, VertexKind.KEYED, 1, written) for name, written in tables.items()]
    kept = (Table(bronze, TableMode.APPEND, columns=COLUMNS),) if bronze else ()
    return JobGraph(
        (Vertex("s", VertexKind.SOURCE, 1, splits=("a",)), Vertex("bronze", VertexKind.STATELESS, 1, kept), *vertices),
        (EdgeId("s", "bronze"), *(EdgeId("bronze", name) for name in keyed)),
    )


@pytest.fixture
def cut(job):
    """Return a function that makes a graph's cut.

    Each keyed vertex has state, and a range of its table if it has one.
    """

    def of(was, **changes):
        held = {}
        for vertex in was.operators():
            names = [table.name for table in vertex.tables if table.mode is TableMode.UPSERT]
            file = job.keyed(f"{vertex.id}-file", 0, 127, Version(1, 1), KeyedFileKind.BASE)
            ranges = tuple(RangeFiles(name, (file,)) for name in names)
            state = (file,) if vertex.kind is VertexKind.KEYED else ()
            held[vertex.id] = (SubtaskSnapshot(state=state, ranges=ranges),)
        columns = tuple(TableColumns(table.name, table.columns) for table in was.tables())
        return job.record(was, 3, held, **{"columns": columns, **changes})

    return of


WAS = graph(by_user="gold/by_user", by_route="gold/by_route")


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (
            graph(by_user="gold/per_user", by_route="gold/by_route"),
            "has table gold/by_user, .* gold/per_user is new in",
        ),
        (
            graph("bronze/all", by_user="gold/by_user", by_route="gold/by_route"),
            "bronze/rows, .* bronze/all is new in it",
        ),
        (
            graph(None, by_user="gold/by_user", by_route="gold/by_route"),
            "bronze/rows, which the pipeline no longer has:",
        ),
        (
            graph(by_user="gold/by_route", by_route="gold/by_user"),
            "gold/by_route as written by 'by_route', and now 'by_user'",
        ),
        (graph(by_user=None, by_route="gold/by_route"), "has table gold/by_user, which the pipeline no longer has:"),
    ],
)
def test_a_table_that_would_lose_its_rows_is_refused_by_name(cut, now, says):
    """A table was renamed, removed or swapped. The message names the old and the new table, and the way out."""
    with pytest.raises(CutDoesNotFitError, match=f"checkpoint 3 .*{says}.*--allow-non-restored-state"):
        check_fits(now, cut(WAS), 128)
    check_fits(now, cut(WAS), 128, allow_non_restored_state=True)


def test_a_renamed_vertex_is_named_with_the_new_one(cut):
    """So the user sees at once which id was changed."""
    now = graph(per_user="gold/by_user", by_route="gold/by_route")
    with pytest.raises(
        CutDoesNotFitError, match="state of 'by_user', which the pipeline no longer has, and 'per_user' is"
    ):
        check_fits(now, cut(WAS), 128)


# ------------------------------------------------------------------
# The files of a renamed table get paths that only the tick knows, until an entry names them (G2).


OLD, NEW = TableName("gold/old"), TableName("gold/new")
UNIQUE = "0123456789abcdef0123456789abcdef"


def moved(*paths, inline=""):
    files = [FileHandle(path, 1, 1, 0, inline=inline) for path in paths]
    return relocated_files(files, JobName("job"), {OLD: NEW}, Generation(7))


def test_foreign_files_and_files_of_one_name_stay_apart():
    """A file of another program gets a staged name. Two files with the same name in two folders get different names."""
    paths = [
        f"{OLD}/part-0.parquet",
        f"{OLD}/_data/3/sums-1-{UNIQUE}.parquet",
        f"{OLD}/_data/4/sums-1-{UNIQUE}.parquet",
    ]
    files, links = moved(*paths)
    assert 3 == len(links) == len({file.path for file in files})
    assert all(parse_staged_name(file.path.rpartition("/")[2]) for file in files)


# ------------------------------------------------------------------
# A micro-batch cannot write its files. The rows wait for the next barrier, and the job goes on (B2, E5).


FULL = "micro-batch of vertex joined could not be written: the disk is full"


def rows_of(run):
    parts = (part for each in run.inputs for part in each.segments)
    return [(part.source, part.start, part.end) for part in parts if isinstance(part, SourceSlice)]


def fails(story, vertex="joined"):
    """Fail the vertex's micro-batch because of a full disk. Return its slices."""
    run = story.take(RunMicroBatch, lambda run: run.vertex == vertex)
    story.tell(MicroBatchNotStaged(vertex, run.micro_batch, FULL))
    return rows_of(run)


def begun(job, **config):
    story = job.story(job.two_sources(), {"tolerable_failures": 9, **config}, linger_ms=0)
    story.offers("left", 3)
    return story


def test_the_waiting_checkpoint_is_declined_and_the_next_one_has_the_rows(job):
    """No micro-batch runs before the next barrier.

    Then another micro-batch has the same rows, and they are committed once.
    """
    story = begun(job, every_rows=3)
    assert [("left", "0", "3")] == fails(story)
    (aborted,) = story.all_told(NotifyAborted)
    assert (1, Reason.CHECKPOINT_ASYNC_EXCEPTION, FULL) == (aborted.checkpoint, aborted.reason, aborted.message)
    assert story.end is None
    story.passes(FIRST_MS - 1)
    assert [] == story.all(RunMicroBatch)
    story.passes(1)
    (run,) = story.all(RunMicroBatch)
    assert ([("left", "0", "3")], 2) == (rows_of(run), run.micro_batch)
    story.finishes()
    row = story.commits()
    assert (2, ["out-1"]) == (row.checkpoint, [file.path for file in row.tables[0].adds])
    assert "3" == row.vertices[0].subtasks[0].position


def test_without_a_setting_the_job_fails_and_names_the_way_out(job):
    """After one retry the tick fails. The next tick reads the rows again, and nothing was appended."""
    story = begun(job, tolerable_failures=0)
    fails(story)
    fails(story)
    assert (TickOutcome.FAILED, Reason.CHECKPOINT_ASYNC_EXCEPTION) == (story.end.outcome, story.end.reason)
    assert FULL in story.end.message
    assert "--set tolerable_failures=3" in story.end.message
    assert [] == story.all_told(AppendRow)


@pytest.mark.parametrize("kind", [SavepointKind.SUSPEND, SavepointKind.DRAIN])
def test_the_savepoint_of_a_stop_is_the_next_barrier(job, kind):
    """If the rows cannot be written at that barrier either, the stop fails.

    No rows are read after the barrier (Flink).
    """
    story = begun(job)
    fails(story)
    story.tell(SavepointRequested("mine", kind))
    while story.all(RunMicroBatch):
        fails(story)
    (answer,) = story.all_told(SavepointFailed)
    assert ("mine", Reason.CHECKPOINT_ASYNC_EXCEPTION) == (answer.request, answer.reason)
    assert TickOutcome.FAILED is story.end.outcome


def test_a_new_upsert_table_beside_old_state_is_refused(cut):
    """The new table would show only the keys that change from now on. A new append table is allowed."""
    was = graph(by_user=None)
    with pytest.raises(CutDoesNotFitError, match="holds state of 'by_user', and table gold/by_user is new beside it"):
        check_fits(graph(by_user="gold/by_user"), cut(was), 128)


def test_rows_that_a_cut_holds_in_flight_take_credit_until_they_have_run(job):
    """The rows in flight fill the channel of `left`. So `left` is not polled before they have run."""
    graph = job.two_sources()
    held = tuple(job.in_flight_of(graph.edges[0], 0, "one", "two"))
    was = job.record(graph, 1, {"joined": (SubtaskSnapshot(in_flight=held),)})
    first = job.claim.model_copy(update={"first_id": 2})
    story = job.story(graph, restored=was, claim=first, credit_bytes=20, linger_ms=0)
    assert ["right"] == [poll.source for poll in story.all(PollSource)]
    story.finishes()
    assert {"left", "right"} == {poll.source for poll in story.all(PollSource)}
