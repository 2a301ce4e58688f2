"""Declares the vertex that keeps the newest row of each key of a table's changes."""

from typing import Literal

from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from jobs.operators.newest import DELETED, NewestRows
from jobs.pipeline.columns import require_columns
from jobs.pipeline.streams import KeyedStream, Stream
from jobs.sources.change_rows import HEAD, KIND, LSN, UNCHANGED
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN


def newest_rows(
    changes: KeyedStream,
    id: str,  # noqa: A002 - its name
    *,
    truncates: Literal["fail", "ignore"] = "fail",
    renamed_from: str | None = None,
) -> Stream:
    """Return the newest row of each key of a table's changes, to be kept with `upsert`.

    The rows have the table's columns, then `_lsn`, `_position`, `_unchanged` and `_is_deleted`. A deleted key keeps its
    row with `_is_deleted` true, and its other columns are null unless the server sends the whole old row. `truncates`
    says what becomes of a truncate of the table: an error, or nothing. `renamed_from` is the id that the vertex had
    before.
    Raises InvalidPipelineError for rows that are not a table's changes.
    """
    rows = changes.stream.schema
    require_columns(f"newest_rows {id}", rows, [KIND, LSN, UNCHANGED, POSITION_COLUMN])
    added = {*HEAD.names, SPLIT_COLUMN, POSITION_COLUMN}
    own = [field for field in rows.fields if field.name not in added and field.name not in changes.keys]
    state = StructType(
        [
            *own,
            StructField(LSN, LongType()),
            StructField(POSITION_COLUMN, LongType()),
            StructField(UNCHANGED, ArrayType(StringType())),
            StructField(DELETED, BooleanType()),
        ]
    )
    output = StructType([*(rows[key] for key in changes.keys), *state.fields])
    function = NewestRows(changes.keys, tuple(field.name for field in own), truncates == "ignore")
    return changes.process(id, function, state=state, output=output, renamed_from=renamed_from)
