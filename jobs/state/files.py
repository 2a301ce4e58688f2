"""Reads files of keyed state: checks them against their handle, and converts them to the declared schema."""

import base64
import zlib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.columns import columns_then
from checkpointing.handles import FileHandle
from jobs.state.failures import StateFileError
from jobs.storage.folder import Folder
from jobs.storage.location import storage_at
from jobs.storage.parquet import footer_of
from jobs.storage.place import StoragePlace
from jobs.storage.together import together

NONE_RENAMED: Final[Mapping[str, str]] = MappingProxyType({})


def read_verified(
    root: str, operator: str, file: FileHandle, schema: pa.Schema, renamed: Mapping[str, str] = NONE_RENAMED
) -> pa.Table:
    """Return the file's rows in `schema`. Missing columns are null, at every depth; narrower types are widened.

    `renamed` are old column names by the new ones: a file that has only the old one is read with it.
    Raise StateFileError if the file is missing, differs from its handle or cannot be converted to the schema.
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
    """Return what `schema_of` returns of each file. A store is asked for several at the same time."""
    return together(storage_at(root), lambda file: schema_of(root, file), files)


def schema_of(root: str, file: FileHandle) -> pa.Schema | None:
    """Return the schema in a keyed file's footer; None if the file is missing or is not Parquet."""
    try:
        if file.inline:
            return pq.read_schema(pa.BufferReader(base64.b64decode(file.inline)))
        place = StoragePlace(storage_at(root), file.path)
        in_folder = isinstance(place.storage, Folder)
        return pq.read_schema(str(place) if in_folder else pa.BufferReader(footer_of(place, file.bytes)))
    except (OSError, pa.ArrowException):
        return None
