"""Computes the checksums of whole files."""

import os
import threading
import zlib
from typing import Final

from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace

_BUFFER_BYTES: Final = 256 * 1024
_buffers: Final = threading.local()
"""A buffer for each thread, used for all its files. New memory would cost more time than the checksum."""


def measured(place: StoragePlace) -> tuple[int, int]:
    """Return the size and the CRC-32 of a file. Raises the errors of reading it."""
    if isinstance(place.storage, Folder):
        return _of_path(place.storage.path(place.name))
    size, crc32 = 0, 0
    for chunk in place.chunks():
        size, crc32 = size + len(chunk), zlib.crc32(chunk, crc32)
    return size, crc32


def _of_path(path: "os.PathLike[str]") -> tuple[int, int]:
    buffer = _buffer()
    size, crc32 = 0, 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # reading a named pipe might never end
    try:
        while got := os.readv(descriptor, [buffer]):
            size, crc32 = size + got, zlib.crc32(buffer[:got], crc32)
    finally:
        os.close(descriptor)
    return size, crc32


def _buffer() -> memoryview:
    if not hasattr(_buffers, "own"):
        _buffers.own = memoryview(bytearray(_BUFFER_BYTES))
    own: memoryview = _buffers.own
    return own
