"""Refuses a changed pipeline whose tables would silently lose their rows (G2)."""

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import KeyedFileKind, Version
from checkpointing.identifiers import EdgeId
from checkpointing.job.restoring import CutDoesNotFitError, check_fits, tables_left, unfit_tables

COLUMNS = (TableColumn("k", "long"),)


def graph(bronze="bronze/rows", **keyed):
    """Return source -> bronze -> keyed vertices, each with an upsert table of this name (None: without one)."""
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


def test_the_same_tables_fit(cut):
    """They fit in another order too, and beside a table of a new vertex."""
    assert [] == list(unfit_tables(WAS, cut(WAS)))
    assert [] == list(unfit_tables(graph(by_route="gold/by_route", by_user="gold/by_user", more="gold/more"), cut(WAS)))


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


def test_a_new_upsert_table_beside_old_state_is_refused(cut):
    """It would show only the keys that change from now on. A new append table is allowed."""
    was = graph(by_user=None)
    with pytest.raises(CutDoesNotFitError, match="holds state of 'by_user', and table gold/by_user is new beside it"):
        check_fits(graph(by_user="gold/by_user"), cut(was), 128)


def test_a_renamed_vertex_is_named_with_the_new_one(cut):
    """The user sees at once which id was changed."""
    now = graph(per_user="gold/by_user", by_route="gold/by_route")
    with pytest.raises(
        CutDoesNotFitError, match="state of 'by_user', which the pipeline no longer has, and 'per_user' is"
    ):
        check_fits(now, cut(WAS), 128)


def test_an_older_entry_knows_its_upsert_tables_by_their_ranges(cut):
    """Entries before format 4 have no columns. Only the facts about tables that they have are judged."""
    old = cut(WAS, columns=())
    now = graph("bronze/all", by_user="gold/per_user", by_route="gold/by_route")
    assert ("gold/by_user",) == tables_left(now, old)
    assert [] == list(unfit_tables(WAS, old))
    check_fits(WAS, old, 128, allow_non_restored_state=True)
