"""Converts columns between three forms: Arrow's, a Delta log's, and the form in an entry of `checkpoints`."""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema

from checkpointing.columns import TableColumn
from checkpointing.state_evolution import parsed, shown
from jobs.storage.parquet import parquet_of
from jobs.warehouse.file_checks import is_ours
from jobs.warehouse.warehouse import Warehouse

NONE_RENAMED: Final[Mapping[str, str]] = MappingProxyType({})

COMMENT: Final = "comment"
"""The key in a column's metadata under which Delta and Spark store its comment."""


def declared_columns(schema: pa.Schema) -> tuple[TableColumn, ...]:
    """Return the columns of a declared schema in the form of an entry."""
    return columns_of_schema(Schema.from_arrow(schema))


def columns_of_schema(schema: Schema) -> tuple[TableColumn, ...]:
    """Return the columns of a table's schema in the form of an entry."""
    return tuple(TableColumn(field.name, type_of(field)) for field in schema.fields)


def type_of(field: Field) -> str:
    """Return a field's Delta type: its name, or the JSON of a nested type with sorted keys."""
    kind: Any = json.loads(field.to_json())["type"]
    return kind if isinstance(kind, str) else json.dumps(kind, sort_keys=True)


def field_of(column: TableColumn) -> Field:
    """Return a column as a nullable field of a log. Its comment says since when its values are valid."""
    kind: Any = json.loads(column.type) if column.type.startswith("{") else column.type
    metadata = {COMMENT: since(column)} if column.after else {}
    return Field.from_json(json.dumps({"name": column.name, "type": kind, "nullable": True, "metadata": metadata}))


def since(column: TableColumn) -> str:
    """Return words that say since when a column's values are valid, or an empty text if they always were."""
    return f"holds only what came after checkpoint {column.after}" if column.after else ""


def next_schema(
    table: DeltaTable,
    columns: Iterable[TableColumn],
    leaving: Iterable[str],
    renamed: Mapping[str, str] = NONE_RENAMED,
    *,
    in_order: bool = False,
) -> Schema | None:
    """Return the schema that a table gets: these columns and other writers' columns. None if nothing changes.

    A column whose type does not change keeps its metadata. So does a renamed column: `renamed` maps new names to old
    names. Columns in `leaving` are removed. If the table has no columns of other writers, the columns have the
    pipeline's order. Otherwise new columns come last. With `in_order`, all of the pipeline's columns come first, in its
    order, and then the others.
    """
    there: Mapping[str, Field] = {field.name: field for field in table.schema().fields}
    said = {column.name: column for column in columns}
    if not said:
        return None
    gone = set(leaving) - said.keys()
    new = {name: column for name, column in said.items() if name not in there or type_of(there[name]) != column.type}
    if not new and gone.isdisjoint(there) and not in_order:
        return None
    foreign = [name for name in there if name not in said and name not in gone]
    now = {old: name for name, old in renamed.items() if name in new and old in gone}
    order = dict.fromkeys([*(now.get(name, name) for name in there if name not in gone or name in now), *said])
    names = list(order) if foreign and not in_order else [*said, *foreign]
    old = {name: there[was] for was, name in now.items() if was in there}
    fields = (_field(new[name], old.get(name)) if name in new else there[name] for name in names)
    return Schema(list(fields))


def _field(column: TableColumn, was: Field | None) -> Field:
    """Return a column as a field of a log. A renamed column keeps its metadata and nullability."""
    field = field_of(column)
    return field if was is None else Field(column.name, field.type, nullable=was.nullable, metadata=was.metadata)


def told(before: Schema, after: Schema, renamed: Mapping[str, str]) -> str:
    """Return a description of a commit's changes to a table's columns, for the checkpoint's note.

    `renamed` maps new names of columns to old ones.
    """
    old, new = ({field.name: field for field in schema.fields} for schema in (before, after))
    said = [f"column {was} is now called {name}" for name, was in renamed.items()]
    said += [_came(new[name]) for name in new if name not in old and name not in renamed]
    said += [f"column {name} is gone" for name in old if name not in new and name not in renamed.values()]
    for name in old:
        if name in new and type_of(old[name]) != type_of(new[name]):
            said.append(f"column {name} was {_shown(old[name])} and is now {_shown(new[name])}")
    if not said and [*old] != [*new]:
        said.append("its columns come in another order")
    return ", ".join(said)


def _came(field: Field) -> str:
    since = field.metadata.get(COMMENT)
    return f"column {field.name} is new and {since}" if since else f"column {field.name} is new"


def _shown(field: Field) -> str:
    return shown(parsed(type_of(field)))


# ------------------------------------------------------------------
# Reads the facts that a rollback needs from files of others: wider types, and the names of columns.
#
# A rollback to a cut from before a widening gives a column its narrower type back. No reader narrows values, so a file
# with wider values would make the table unreadable. Tidemark checks this twice: when it plans the rollback, and when it
# publishes the rollback. In between, another program can append a file.


def wider_values(warehouse: Warehouse, table: str, paths: Iterable[str], narrower: Mapping[str, str]) -> str | None:
    """Return an error message if another program's file has a type that differs from `narrower`, else None.

    `paths` are files in the warehouse. Raises OSError and ArrowException for a file that cannot be read.
    """
    for path in sorted(paths) if narrower else ():
        if is_ours(path.removeprefix(f"{table}/")):
            continue
        with pq.ParquetFile(parquet_of(warehouse.place(path))) as file:
            types = {column.name: column.type for column in declared_columns(file.schema_arrow)}
        wide = next((column for column, kind in narrower.items() if types.get(column, kind) != kind), None)
        if wide is not None:
            return (
                f"table {table}: column {wide} was widened since, and others have written wider values ({path}): take "
                "these rows out of the table"
            )
    return None


def names_in(warehouse: Warehouse, paths: Iterable[str]) -> frozenset[str]:
    """Return the names of all columns that these files have. Raises the errors of `wider_values`."""
    names: set[str] = set()
    for path in paths:
        with pq.ParquetFile(parquet_of(warehouse.place(path))) as file:
            names.update(column.name for column in declared_columns(file.schema_arrow))
    return frozenset(names)
