"""Hands Parquet files of a storage to Arrow: a path, of which Arrow reads what it needs, or a whole object's bytes."""

from typing import Final

import pyarrow as pa

from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace

FOOTER_TAIL: Final = 8
"""Bytes behind a Parquet file's footer: its length in four, little-endian, and the magic word."""
_GUESSED: Final = 64 * 1024


def parquet_of(place: StoragePlace) -> "str | pa.BufferReader":
    """Return the file in a form that Arrow can open: its path, or its bytes. Raises OSError for a missing object."""
    return str(place) if isinstance(place.storage, Folder) else pa.BufferReader(place.read())


def footer_of(place: StoragePlace, size: int | None = None) -> bytes:
    """Return a Parquet file's footer and the bytes behind it: as long as Arrow looks for metadata alone, all it reads.

    Of a file that is no Parquet file, or a part of one, some bytes are returned, and Arrow says what is wrong. Raises
    OSError. With its `size`, one request is enough for most files.
    """
    size = place.described().size if size is None else size
    end = place.storage.read(place.name, start=max(0, size - _GUESSED), most=_GUESSED).bytes
    length = int.from_bytes(end[-FOOTER_TAIL:-4], "little") + FOOTER_TAIL
    if len(end) < length <= size:
        end = place.storage.read(place.name, start=size - length, most=length).bytes
    return end[-length:]
