"""Plants bugs in the columns of append tables: renames that files do not follow, and drops that are forgotten."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from checkpointing import columns
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit import appended_columns, recovery
from checkpointing.commit import columns as of_tables
from checkpointing.commit.columns import Columns
from checkpointing.graph import Table
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord
from spec.machines.changing_columns import COLUMNS_READABLE
from spec.mutants.judges import APPENDED_COLUMNS
from spec.mutants.planting import Patch, mutant

_Columns = tuple[TableColumn, ...]
_Pairs = tuple[tuple[str, str], ...]


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def an_entry_does_not_say_which_columns_it_renames(patch: Patch) -> None:
    def renamed_between(was: Iterable[TableColumn], now: Iterable[TableColumn]) -> _Pairs:
        del was, now
        return ()

    patch.function(columns, "renamed_between", renamed_between)


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def a_publication_renames_no_column_of_an_append_table(patch: Patch) -> None:
    real = recovery.publications

    def publications(record: CheckpointRecord) -> tuple[Publication, ...]:
        return tuple(replace(each, renamed=()) for each in real(record))

    patch.function(recovery, "publications", publications)


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def a_rollback_leaves_rows_of_others_under_the_new_name(patch: Patch) -> None:
    def renamed_back(
        shown: _Columns | None, then: _Columns | None, pending: CheckpointRecord | None, table: TableName
    ) -> _Pairs:
        del shown, then, pending, table
        return ()

    patch.function(of_tables, "renamed_back", renamed_back)


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def a_column_that_is_renamed_again_forgets_its_first_name(patch: Patch) -> None:
    real = appended_columns._kept

    def kept(column: TableColumn, now: Mapping[str, str], declared: Mapping[str, TableColumn]) -> TableColumn:
        found = real(column, now, declared)
        return replace(found, first=column.name) if found.name != column.name else found

    patch.function(appended_columns, "_kept", kept)


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def a_new_column_takes_the_name_of_a_dropped_one(patch: Patch) -> None:
    def held_in_files(name: str, was: TableColumns) -> bool:
        del name, was
        return False

    patch.function(appended_columns, "held_in_files", held_in_files)


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def the_next_checkpoint_forgets_the_dropped_names(patch: Patch) -> None:
    real = appended_columns.appended_columns

    def forgetting(table: Table, was: TableColumns, parent: CheckpointId, renamed: Mapping[str, str]) -> TableColumns:
        now = real(table, was, parent, renamed)
        gone = {column.name for column in was.columns} - {column.name for column in now.columns}
        return replace(now, dropped=tuple(name for name in now.dropped if name in gone))

    patch.function(appended_columns, "appended_columns", forgetting)


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def every_column_that_the_pipeline_leaves_out_is_dropped(patch: Patch) -> None:
    def dropped_now(table: Table, was: TableColumns) -> tuple[str, ...]:
        return tuple(each.name for each in was.columns if each.name not in _declared(table))

    patch.function(appended_columns, "dropped_now", dropped_now)


def _declared(table: Table) -> Collection[str]:
    return {column.name for column in table.columns}


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def a_dropped_column_is_remembered_for_one_checkpoint(patch: Patch) -> None:
    real = appended_columns.appended_columns

    def only_new(table: Table, was: TableColumns, parent: CheckpointId, renamed: Mapping[str, str]) -> TableColumns:
        return real(table, replace(was, dropped=()), parent, renamed)

    patch.function(appended_columns, "appended_columns", only_new)


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def a_rollback_takes_another_column_of_the_same_name_for_its_own(patch: Patch) -> None:
    patch.function(of_tables, "unclear_back", lambda *facts: None)


def _held_otherwise(patch: Patch, otherwise: Callable[[Collection[str], Columns], Collection[str]]) -> None:
    real = of_tables.unclear_back

    def unclear_back(
        shown: Columns,
        then: Columns,
        renamed: Collection[tuple[str, str]],
        listed_now: TableColumns | None,
        held: Collection[str],
    ) -> str | None:
        return real(shown, then, renamed, listed_now, otherwise(held, then))

    patch.function(of_tables, "unclear_back", unclear_back)


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def a_rollback_does_not_look_at_the_columns_of_others(patch: Patch) -> None:
    _held_otherwise(patch, lambda held, then: ())


@mutant(COLUMNS_READABLE, APPENDED_COLUMNS)
def a_column_of_others_has_the_name_that_it_had_then(patch: Patch) -> None:
    """Two columns may have been renamed crosswise before they were dropped."""
    _held_otherwise(patch, lambda held, then: [name for name in held if name not in {each.name for each in then}])
