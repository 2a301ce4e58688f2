"""Plants bugs in tables' columns: those that an entry lists, and those that a publication or rollback changes (D6)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit import columns, net, recovery
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.identifiers import NO_CHECKPOINT, TableName, VertexId
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord, RowKind, TableRecord, VertexRecord
from spec.mutants.judges import RELEASES, RELEASES_WITH_STORES, with_long_runs
from spec.mutants.planting import Patch, mutant

_Vertices = Mapping[VertexId, VertexRecord]
_Columns = tuple[TableColumn, ...] | None


# ------------------------------------------------------------------ the columns that a table shows


@mutant("columns-of-cut", RELEASES)
def a_table_without_new_files_keeps_its_columns(patch: Patch) -> None:
    real = net.net_tables

    def net_tables(
        graph: JobGraph,
        vertices: _Vertices,
        parent: CheckpointRecord | None,
        versions: Mapping[TableName, int],
        of_tables: Iterable[TableColumns] = (),
        *,
        renamed: Mapping[TableName, net.Renamed],
    ) -> tuple[TableRecord, ...]:
        found = real(graph, vertices, parent, versions, of_tables, renamed=renamed)
        return tuple(each for each in found if each.adds or each.files)

    patch.function(net, "net_tables", net_tables)


@mutant("columns-of-cut", RELEASES)
def a_publication_forgets_the_columns_of_append_tables(patch: Patch) -> None:
    real = recovery.publications

    def publications(record: CheckpointRecord) -> tuple[Publication, ...]:
        return tuple(
            replace(each, columns=(), leaving=()) if each.mode is TableMode.APPEND else each for each in real(record)
        )

    patch.function(recovery, "publications", publications)


@mutant("columns-of-cut", RELEASES)
def a_rollback_leaves_the_columns_of_the_abandoned_line(patch: Patch) -> None:
    real = recovery.publications

    def publications(record: CheckpointRecord) -> tuple[Publication, ...]:
        due = real(record)
        return due if record.kind is not RowKind.ROLLBACK else tuple(replace(each, leaving=()) for each in due)

    patch.function(recovery, "publications", publications)


@mutant("columns-of-cut", RELEASES)
def a_dropped_column_stays_in_the_table(patch: Patch) -> None:
    def leaving(was: _Columns, now: _Columns) -> tuple[str, ...]:
        del was, now
        return ()

    patch.function(columns, "leaving", leaving)


@mutant("columns-of-cut", with_long_runs(RELEASES_WITH_STORES))
def a_rollback_forgets_columns_that_the_entry_left_behind_takes_away(patch: Patch) -> None:
    real = columns.leaving_back

    def leaving_back(
        shown: _Columns, then: _Columns, pending: CheckpointRecord | None, table: TableName
    ) -> tuple[str, ...]:
        del pending
        return real(shown, then, None, table)

    patch.function(columns, "leaving_back", leaving_back)


# ------------------------------------------------------------------ the columns that an entry lists


@mutant("columns-follow", RELEASES)
def columns_change_under_a_file_of_the_old_ones(patch: Patch) -> None:
    def is_from_before(table: Table, vertex: VertexRecord, parent: CheckpointRecord) -> bool:
        del table, vertex, parent
        return False

    patch.function(columns, "_is_from_before", is_from_before)


@mutant("columns-follow", RELEASES)
def an_older_release_takes_columns_out_of_an_append_table(patch: Patch) -> None:
    def now(
        table: Table, vertex: VertexRecord, parent: CheckpointRecord | None, renamed: Mapping[str, str]
    ) -> TableColumns:
        del vertex, parent, renamed
        return TableColumns(table.name, table.columns)

    patch.function(columns, "_now", now)


@mutant("columns-follow", RELEASES)
def a_new_column_counts_since_the_table_began(patch: Patch) -> None:
    real = columns._dated

    def dated(
        declared: tuple[TableColumn, ...], was: tuple[TableColumn, ...], parent: int, renamed: Mapping[str, str]
    ) -> tuple[TableColumn, ...]:
        del parent
        return real(declared, was, NO_CHECKPOINT, renamed)

    patch.function(columns, "_dated", dated)
