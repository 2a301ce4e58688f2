"""Plants bugs in how old state and old tables are treated when the pipeline changes."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from checkpointing import columns as types
from checkpointing import evolution, renamed_columns, state_evolution, state_meaning
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit import columns
from checkpointing.evolution import Change
from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.renamed_columns import ColumnRenames
from checkpointing.state_evolution import Column, StateSchema
from checkpointing.state_meaning import ColumnMeaning
from spec.mutants.judges import CHANGED_TABLES, CHANGED_TYPES, MEANINGS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ meanings


@mutant("meanings-are-kept", MEANINGS)
def arguments_are_compared_by_their_number(patch: Patch) -> None:
    patch.put(state_meaning, "_columns", lambda meaning: (str(len(meaning.arguments)),))


@mutant("meanings-are-kept", MEANINGS)
def a_version_that_is_no_longer_declared_serves(patch: Patch) -> None:
    real = state_meaning._refusal

    def refusal(was: ColumnMeaning, now: ColumnMeaning) -> str:
        return real(was, now if now.version is not None else replace(now, version=was.version))

    patch.put(state_meaning, "_refusal", refusal)


@mutant("meanings-are-kept", MEANINGS)
def a_dropped_column_is_forgotten_while_files_have_it(patch: Patch) -> None:
    def held(
        was: Sequence[ColumnMeaning] | None, now: Sequence[ColumnMeaning], held: Collection[str]
    ) -> tuple[ColumnMeaning, ...]:
        return tuple(now)

    patch.function(state_meaning, "still_held", held)


# ------------------------------------------------------------------ renames


@mutant("renames-are-clear", MEANINGS)
def a_rename_wins_over_a_column_of_that_name(patch: Patch) -> None:
    def then(now: Collection[str], then: Collection[str], renamed: Mapping[str, str]) -> dict[str, str]:
        return {new: old for new, old in renamed.items() if new in now and old in then}

    patch.put(renamed_columns, "columns_then", then)


@mutant("renames-are-clear", MEANINGS)
def renames_of_the_cut_are_forgotten(patch: Patch) -> None:
    real = renamed_columns.renamed_columns

    def renamed(kind: Any, thing: str, now: Any, then: Any, renames: ColumnRenames, **options: Any) -> Iterator[Change]:  # noqa: ANN401
        return real(kind, thing, now, then, replace(renames, of_cut={}), **options)

    patch.function(renamed_columns, "renamed_columns", renamed)


@mutant("renames-are-clear", MEANINGS)
def an_overwrite_table_renames_its_columns(patch: Patch) -> None:
    patch.function(renamed_columns, "unrenamable", lambda *_: iter(()))


# ------------------------------------------------------------------ hints


@mutant("drops-get-hints", MEANINGS)
def any_new_column_may_be_the_dropped_one(patch: Patch) -> None:
    real = evolution.with_hints

    def hints(found: Sequence[Change], saying: Any) -> tuple[Change, ...]:  # noqa: ANN401 - a function of two names
        new = [each.column for each in found if each.was is None]
        return real(found, lambda old, _: saying(old, new[0]))

    patch.function(evolution, "with_hints", hints)


@mutant("drops-get-hints", MEANINGS)
def a_column_that_stays_gets_a_hint_too(patch: Patch) -> None:
    patch.put(evolution, "_goes", lambda _: True)


@mutant("drops-get-hints", MEANINGS)
def a_column_of_another_function_may_be_the_dropped_one(patch: Patch) -> None:
    real = state_meaning.renaming_of

    def renaming(was: Any, now: Iterable[ColumnMeaning], old: str, new: str) -> str | None:  # noqa: ANN401
        return real(None, now, old, new)

    patch.function(state_meaning, "renaming_of", renaming)


# ------------------------------------------------------------------ types


@mutant("types-become-wider", CHANGED_TYPES)
def a_decimal_is_as_wide_as_its_digits(patch: Patch) -> None:
    real = state_evolution._is_wider_decimal

    def wider(was: str, now: str) -> bool:
        old, new = state_evolution._DECIMAL.fullmatch(was), state_evolution._DECIMAL.fullmatch(now)
        return int(old[1]) <= int(new[1]) if old is not None and new is not None else real(was, now)

    patch.put(state_evolution, "_is_wider_decimal", wider)


@mutant("types-become-wider", CHANGED_TYPES)
def the_key_of_a_map_may_become_wider(patch: Patch) -> None:
    real = state_evolution._all_inside

    def inside(was: Any, now: Any, fits: Any) -> bool:  # noqa: ANN401 - types as JSON has them
        if isinstance(was, dict) and isinstance(now, dict) and was["type"] == now["type"] == "map":
            return inside(was["keyType"], now["keyType"], fits) and inside(was["valueType"], now["valueType"], fits)
        return real(was, now, fits)

    patch.put(state_evolution, "_all_inside", inside)


@mutant("types-become-wider", CHANGED_TYPES)
def readers_follow_all_that_delta_allows(patch: Patch) -> None:
    patch.function(state_evolution, "reads_narrower", state_evolution.is_wider)


@mutant("state-keeps-its-key", CHANGED_TYPES)
def a_key_may_become_wider(patch: Patch) -> None:
    real = state_evolution._of_keys

    def keys(thing: str, was: StateSchema, now: StateSchema) -> Iterator[Change]:
        kinds = {column.name: column.type for column in was.columns}
        same = tuple(replace(column, type=kinds.get(column.name, column.type)) for column in now.columns)
        return real(thing, was, replace(now, columns=same))

    patch.put(state_evolution, "_of_keys", keys)


@mutant("state-keeps-its-key", CHANGED_TYPES)
def the_order_of_the_key_does_not_count(patch: Patch) -> None:
    real = state_evolution._of_keys

    def keys(thing: str, was: StateSchema, now: StateSchema) -> Iterator[Change]:
        if was.keys is not None and sorted(was.keys) == sorted(now.keys or ()):
            was = replace(was, keys=now.keys)
        return real(thing, was, now)

    patch.put(state_evolution, "_of_keys", keys)


@mutant("state-keeps-its-key", CHANGED_TYPES)
def columns_are_compared_by_place(patch: Patch) -> None:
    real = state_evolution._of_columns

    def changed(thing: str, was: StateSchema, now: StateSchema, keys: tuple[str, ...]) -> Iterator[Change]:
        pairs = zip(was.columns, now.columns, strict=False)
        moved = tuple(Column(after.name, before.type) for before, after in pairs)
        return real(thing, replace(was, columns=(*moved, *was.columns[len(moved) :])), now, keys)

    patch.put(state_evolution, "_of_columns", changed)


@mutant("types-are-read", CHANGED_TYPES)
def any_name_is_a_type(patch: Patch) -> None:
    real = types._is_type

    def is_type(kind: Any) -> bool:  # noqa: ANN401 - whatever JSON holds
        return isinstance(kind, str) or real(kind)

    patch.put(types, "_is_type", is_type)


@mutant("types-are-read", CHANGED_TYPES)
def fields_are_not_looked_at(patch: Patch) -> None:
    patch.put(types, "_is_field", lambda field: isinstance(field, dict))


@mutant("types-are-read", CHANGED_TYPES)
def renames_are_looked_for_in_the_outermost_struct(patch: Patch) -> None:
    def fields(was: Any, now: Any, renamed: Mapping[str, str]) -> Iterator[tuple[str, str]]:  # noqa: ANN401
        if isinstance(was, dict) and isinstance(now, dict) and was["type"] == now["type"] == "struct":
            before, after = ([field["name"] for field in kind["fields"]] for kind in (was, now))
            yield from types.columns_then(after, before, renamed).items()

    patch.put(state_evolution, "_fields_then", fields)


# ------------------------------------------------------------------ tables


@mutant("table-changes-said", CHANGED_TABLES)
def a_partition_column_may_become_wider(patch: Patch) -> None:
    real = columns._changes

    def changes(vertex: Vertex, table: Table, was: TableColumns, restored: CheckpointRecord) -> Iterator[Change]:
        return real(vertex, replace(table, partitioned_by=()), was, restored)

    patch.put(columns, "_changes", changes)


@mutant("table-changes-said", CHANGED_TABLES)
def names_of_dropped_columns_come_again(patch: Patch) -> None:
    patch.put(columns, "held_in_files", lambda name, was: name in was.dropped)


@mutant("table-changes-said", CHANGED_TABLES)
def a_sink_is_not_asked_about_renames(patch: Patch) -> None:
    patch.put(columns, "_refused_by_sink", lambda *_: iter(()))


@mutant("cuts-list-columns", CHANGED_TABLES)
def a_table_has_its_new_columns_at_once(patch: Patch) -> None:
    patch.put(columns, "_is_from_before", lambda table, vertex, parent: False)


@mutant("cuts-list-columns", CHANGED_TABLES)
def tables_that_declare_nothing_are_listed(patch: Patch) -> None:
    def at(
        graph: JobGraph, vertices: Mapping[str, VertexRecord], parent: CheckpointRecord | None
    ) -> tuple[TableColumns, ...]:
        return tuple(
            columns._now(table, vertices[vertex.id], parent, vertex.columns_renamed_from)
            for vertex in graph.operators()
            for table in vertex.tables
        )

    patch.function(columns, "columns_at", at)


@mutant("cuts-list-columns", CHANGED_TABLES)
def a_renamed_column_counts_since_the_rename(patch: Patch) -> None:
    real = columns._dated

    def dated(
        declared: tuple[TableColumn, ...], was: tuple[TableColumn, ...], parent: CheckpointId, _: Mapping[str, str]
    ) -> tuple[TableColumn, ...]:
        return real(declared, was, parent, {})

    patch.put(columns, "_dated", dated)


@mutant("cuts-list-columns", CHANGED_TABLES)
def an_overwrite_table_has_the_columns_that_are_declared(patch: Patch) -> None:
    real = columns._now

    def now(
        table: Table, vertex: VertexRecord, parent: CheckpointRecord | None, renamed: Mapping[str, str]
    ) -> TableColumns:
        mode = TableMode.UPSERT if table.mode is TableMode.OVERWRITE else table.mode
        return real(replace(table, mode=mode), vertex, parent, renamed)

    patch.put(columns, "_now", now)


@mutant("table-changes-said", CHANGED_TABLES)
def renames_of_another_vertex_count_for_a_table(patch: Patch) -> None:
    real = renamed_columns.column_renames

    def column_renames(vertex: Vertex, restored: CheckpointRecord) -> ColumnRenames:
        own = tuple(each.model_copy(update={"vertex": vertex.id}) for each in restored.renames)
        return real(vertex, restored.model_copy(update={"renames": own}))

    patch.function(renamed_columns, "column_renames", column_renames)
