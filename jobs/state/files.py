"""Reads files of keyed state: checks them against their handle, and converts them to the declared schema."""

import base64
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.handles import FileHandle
from jobs.state.failures import StateFileError


def read_verified(root: str, operator: str, file: FileHandle, schema: pa.Schema) -> pa.Table:
    """Return the file's rows in `schema`. Missing columns are null, at every depth; narrower types are widened.

    Raise StateFileError if the file is missing, differs from its handle or cannot be converted to the schema.
    """
    content = base64.b64decode(file.inline) if file.inline else _read(root, operator, file)
    if len(content) != file.bytes or zlib.crc32(content) != file.crc32:
        raise StateFileError(operator, file.path, f"is damaged (its checksum is not {file.crc32:#010x})")
    return _in_schema(operator, file, pq.read_table(pa.BufferReader(content)), schema)


def _read(root: str, operator: str, file: FileHandle) -> bytes:
    try:
        return Path(root, file.path).read_bytes()
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


def schema_of(root: str, file: FileHandle) -> pa.Schema | None:
    """Return the schema in a keyed file's footer; None if the file is missing or is not Parquet."""
    try:
        if file.inline:
            return pq.read_schema(pa.BufferReader(base64.b64decode(file.inline)))
        return pq.read_schema(Path(root, file.path))
    except (OSError, pa.ArrowException):
        return None
