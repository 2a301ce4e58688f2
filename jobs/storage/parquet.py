"""Gives Arrow Parquet files of a warehouse: as a path, of which Arrow reads what it needs, or as an object's bytes."""

import pyarrow as pa

from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace


def parquet_of(place: StoragePlace) -> "str | pa.BufferReader":
    """Return the file in a form that Arrow can open: its path, or its bytes. Raises OSError for a missing object."""
    return str(place) if isinstance(place.storage, Folder) else pa.BufferReader(place.read())
