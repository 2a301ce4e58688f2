"""The layout of rows in the exchange, and how a task takes it apart.

All inputs of a keyed vertex travel through one exchange. Each row has a key group, a tag that names its input, and a
struct column for each input. Only the struct column of the tagged input is filled. If only one input has rows, they
travel flat, without tag and struct, which is a fifth less work for Spark.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.state.frames import frame_of
from jobs.state.merge import KEY_GROUP

TAG = "_input"

WAKING = -1
"""The tag of a row that belongs to no input and only makes its subtask run."""


def flat_column(place: int) -> str:
    """Return the name of a column that travels flat, by its place in the schema."""
    return f"_column_{place}"


def struct_column(tag: int) -> str:
    """Return the name of the struct column of the input with this tag."""
    return f"_rows_{tag}"


@dataclass(frozen=True, slots=True)
class Arrived:
    """The rows that one task received: a frame per tag, each with its `_key_group`."""

    frames: tuple[pl.DataFrame, ...]

    @property
    def rows(self) -> int:
        """Rows of all frames."""
        return sum(frame.height for frame in self.frames)


def take_apart(batches: Iterable[pa.RecordBatch], schemas: Sequence[pa.Schema], only: int | None = None) -> Arrived:
    """Return the rows of these batches by tag, each in its schema and with the key group in front.

    `only` is the tag of rows that travelled flat, None if they travelled with their tags.
    """
    received = [batch for batch in batches if batch.num_rows]
    if not received:
        return Arrived(tuple(_empty(schema) for schema in schemas))
    rows = pa.Table.from_batches(received)
    if only is not None:
        return Arrived(
            tuple(_flat(rows, schema) if tag == only else _empty(schema) for tag, schema in enumerate(schemas))
        )
    return Arrived(tuple(_tagged(rows, tag, schema) for tag, schema in enumerate(schemas)))


def _empty(schema: pa.Schema) -> pl.DataFrame:
    return frame_of(_with_key_group(schema).empty_table())


def _flat(rows: pa.Table, schema: pa.Schema) -> pl.DataFrame:
    columns = [rows.column(flat_column(place)).cast(field.type) for place, field in enumerate(schema)]
    return frame_of(pa.table([rows.column(KEY_GROUP), *columns], schema=_with_key_group(schema)))


def _tagged(rows: pa.Table, tag: int, schema: pa.Schema) -> pl.DataFrame:
    if struct_column(tag) not in rows.column_names:
        return _empty(schema)
    mine = rows.filter(pc.equal(rows.column(TAG), tag))
    columns = [mine.column(KEY_GROUP), *_fields(mine.column(struct_column(tag)), schema)]
    return frame_of(pa.table(columns, schema=_with_key_group(schema)))


def _fields(structs: pa.ChunkedArray, schema: pa.Schema) -> list[pa.ChunkedArray]:
    chunks = [chunk.flatten() for chunk in structs.chunks]
    return [
        pa.chunked_array([chunk[place] for chunk in chunks], type=structs.type.field(place).type).cast(field.type)
        for place, field in enumerate(schema)
    ]


def _with_key_group(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *schema])
