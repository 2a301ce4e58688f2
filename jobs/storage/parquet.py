"""Hands Parquet files of a warehouse to Arrow: a path, of which Arrow reads what it needs, or a whole object's bytes."""

import pyarrow as pa

from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace


def parquet_of(place: StoragePlace) -> "str | pa.BufferReader":
    """Return what Arrow opens to read a file: its path, or its bytes. Raises OSError for a missing object."""
    return str(place) if isinstance(place.storage, Folder) else pa.BufferReader(place.read())
