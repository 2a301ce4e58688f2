"""Converts frames to a declared schema, so that files have exactly the declared types."""

import polars as pl
import pyarrow as pa


class FrameSchemaError(Exception):
    """A user function returned columns that are not the declared ones: names both and the way out."""


def frame_of(rows: pa.Table) -> pl.DataFrame:
    """Return an Arrow table as a frame."""
    frame = pl.from_arrow(rows)
    if not isinstance(frame, pl.DataFrame):
        raise TypeError(f"rows of {rows.schema} make no frame")
    return frame


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    """Return a frame of this schema without rows."""
    return frame_of(schema.empty_table())


def conform(rows: pl.DataFrame, schema: pa.Schema, operator: str, what: str) -> pl.DataFrame:
    """Return exactly the columns of `schema`, in its order and types; raise FrameSchemaError if that is impossible."""
    wanted = empty_frame(schema).schema
    missing = [name for name in wanted if name not in rows.columns]
    if missing:
        raise FrameSchemaError(
            f"operator {operator}: the {what} of its function lacks {missing}; it has {rows.columns}, "
            f"declared are {list(wanted)}"
        )
    try:
        return rows.select(pl.col(name).cast(kind) for name, kind in wanted.items())
    except pl.exceptions.PolarsError as error:
        raise FrameSchemaError(
            f"operator {operator}: the {what} of its function does not fit the declared types: {error}"
        ) from error


def arrow_of(rows: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """Return a frame that conforms to `schema` as an Arrow table of it."""
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)
