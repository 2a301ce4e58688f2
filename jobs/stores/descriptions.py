"""Writes what a pipeline says of a table into the table's metadata, in the commit that publishes a checkpoint.

It is no part of a cut: a rollback leaves it alone. Comments and properties that the pipeline does not name stay as they
are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable, Field, Schema

from checkpointing.columns import TableColumn
from jobs.sinks.description import NOTHING_SAID, Description
from jobs.stores.table_columns import COMMENT, since


@dataclass(frozen=True, slots=True)
class Metadata:
    """The part of a table's metadata that a commit of Tidemark may change."""

    schema: Schema
    comment: str | None
    properties: Mapping[str, str]


def next_metadata(
    table: DeltaTable, schema: Schema | None, says: Description, columns: Iterable[TableColumn]
) -> Metadata | None:
    """Return the metadata that a table gets: `schema` (None: its present one), and what the pipeline says of it.

    `columns` are the entry's columns, which say since when a column's values are valid. None if nothing changes.
    """
    if schema is None and says is NOTHING_SAID:
        return None
    known = table.metadata()
    there = Metadata(table.schema(), known.description, dict(known.configuration))
    commented = described(schema or there.schema, says, columns)
    new = Metadata(commented, says.comment or there.comment, {**there.properties, **says.properties})
    same = new.comment == there.comment and new.properties == there.properties
    return None if same and commented.to_json() == there.schema.to_json() else new


def described(schema: Schema, says: Description, columns: Iterable[TableColumn] = ()) -> Schema:
    """Return a schema with the comments that the pipeline gives its columns."""
    valid = {column.name: since(column) for column in columns}
    return Schema(
        [_commented(each, says.columns.get(each.name, ""), valid.get(each.name, "")) for each in schema.fields]
    )


def _commented(column: Field, comment: str, valid: str) -> Field:
    if not comment:
        return column
    metadata: dict[str, Any] = {**(column.metadata or {}), COMMENT: "; ".join(filter(None, (comment, valid)))}
    return Field(column.name, column.type, nullable=column.nullable, metadata=metadata)
