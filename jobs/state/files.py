"""Reads files of keyed state: checks each file against its handle, and converts it to the declared schema."""

import base64
import zlib
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.columns import columns_then
from checkpointing.handles import FileHandle
from jobs.storage.folder import Folder
from jobs.storage.parquet import footer_of
from jobs.storage.place import StoragePlace, storage_at, together

# ------------------------------------------------------------------
# Converts frames to a declared schema, so that files have exactly the declared types.


class FrameSchemaError(Exception):
    """A user's function returned columns that are not the declared ones. The message names both and a way out."""


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
    """Return exactly the columns of `schema`, in its order and types. Raise FrameSchemaError if that is impossible."""
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
    """Return a frame that conforms to `schema` as an Arrow table of this schema."""
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)


def of_its_own(rows: pl.DataFrame, content: pa.Table) -> pl.DataFrame:
    """Return `rows` without the texts and lists of other rows, if these take more memory than the rows' own.

    A Polars column of texts refers to buffers. So a part of a frame keeps the buffers of the whole frame in memory.
    Then the result is built from `content`, the same rows in Arrow.
    """
    held = rows.to_arrow(compat_level=pl.CompatLevel.newest()).get_total_buffer_size()
    return frame_of(content) if held > 2 * rows.estimated_size() else rows


_PART_ROWS: Final = 65_536


def parts_of(rows: pl.DataFrame, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield a frame that conforms to `schema` as Arrow tables of at most 65,536 rows, one after the other."""
    return (arrow_of(part, schema) for part in rows.iter_slices(_PART_ROWS))


# ------------------------------------------------------------------
# Errors of reading and writing keyed state. Each message names the operator, the file or size, and a way out.


class StateFileError(Exception):
    """A state or range file is missing, damaged or of another schema."""

    def __init__(self, operator: str, path: str, problem: str) -> None:
        """Build the message from the operator, the file and what is wrong with the file."""
        super().__init__(
            f"operator {operator}: file {path} {problem}; it is part of the checkpoint that this run restored, "
            "so restore from an older checkpoint"
        )


class StateTooLargeError(Exception):
    """A subtask's state is larger than the memory backend may put into a checkpoint's entry."""

    def __init__(self, operator: str, size_bytes: int, bytes_max: int) -> None:
        """Build the message from the operator, the size, the limit and the way out."""
        super().__init__(
            f"operator {operator}: the state of one subtask takes {size_bytes} bytes, and memory_state_bytes_max "
            f"allows {bytes_max} in a checkpoint's entry; set state_backend to incremental, or raise the limit"
        )


class KeyGroupError(Exception):
    """Rows reached a subtask that does not own their key groups."""


NONE_RENAMED: Final[Mapping[str, str]] = MappingProxyType({})


def read_verified(
    root: str, operator: str, file: FileHandle, schema: pa.Schema, renamed: Mapping[str, str] = NONE_RENAMED
) -> pa.Table:
    """Return the file's rows in `schema`. Missing columns are null, at every depth. Narrower types are widened.

    `renamed` maps new column names to old ones. If a file has only the old name, the column is read by that name. Raise
    StateFileError if the file is missing, differs from its handle or cannot be converted to the schema.
    """
    content = base64.b64decode(file.inline) if file.inline else _read(root, operator, file)
    if len(content) != file.bytes or zlib.crc32(content) != file.crc32:
        raise StateFileError(operator, file.path, f"is damaged (its checksum is not {file.crc32:#010x})")
    rows = pq.read_table(pa.BufferReader(content))
    then = columns_then(schema.names, rows.column_names, renamed)
    now = {old: new for new, old in then.items()}
    return _in_schema(operator, file, rows.rename_columns([now.get(name, name) for name in rows.column_names]), schema)


def _read(root: str, operator: str, file: FileHandle) -> bytes:
    try:
        return storage_at(root).read(file.path).bytes
    except FileNotFoundError as error:
        raise StateFileError(operator, file.path, "is missing") from error
    except OSError as error:
        raise StateFileError(operator, file.path, f"can't be read ({error.strerror})") from error


def _in_schema(operator: str, file: FileHandle, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    if rows.schema.equals(schema):
        return rows
    try:
        columns = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
    except pa.ArrowException as error:
        raise StateFileError(operator, file.path, f"does not fit the declared state schema ({error})") from error
    return pa.table(columns, schema=schema)


def schemas_of(root: str, files: Collection[FileHandle]) -> list[pa.Schema | None]:
    """Return the result of `schema_of` for each file. From a store, several files are read at the same time."""
    return together(storage_at(root), lambda file: schema_of(root, file), files)


def schema_of(root: str, file: FileHandle) -> pa.Schema | None:
    """Return the schema in a keyed file's footer. None: the file is missing or is not Parquet."""
    try:
        if file.inline:
            return pq.read_schema(pa.BufferReader(base64.b64decode(file.inline)))
        place = StoragePlace(storage_at(root), file.path)
        in_folder = isinstance(place.storage, Folder)
        return pq.read_schema(str(place) if in_folder else pa.BufferReader(footer_of(place, file.bytes)))
    except (OSError, pa.ArrowException):
        return None
