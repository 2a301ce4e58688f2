"""Lets Spark's JVM and its Python workers talk through Unix domain sockets instead of TCP.

Over TCP, each task waits some 40 ms for nothing: one side delays its acknowledgement, and the other sends no more
before it comes (Nagle's algorithm). Several functions in one job wait one after another. Spark can use Unix domain
sockets since 4.1 (SPARK-51688).
"""

import os
import socket
from pathlib import Path
from typing import Final

ENABLED: Final = "spark.python.unix.domain.socket.enabled"
FOLDER: Final = "spark.python.unix.domain.socket.dir"

_PATH_BYTES_MAX: Final = 103
"""The longest path of a socket that every system takes. Linux takes 107 bytes, macOS 103."""
_NAME: Final = ".00000000-0000-0000-0000-000000000000.sock"
"""A name as Spark gives its sockets."""


def socket_settings(folder: Path) -> dict[str, str]:
    """Return the settings for sockets in this folder of this machine, which only this user can open.

    There are none if the folder cannot hold sockets, for example because its path is too long. Then Spark uses TCP.
    """
    if not _holds_sockets(folder / _NAME):
        return {}
    return {ENABLED: "true", FOLDER: str(folder)}


def _holds_sockets(path: Path) -> bool:
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.bind(str(path))
    except OSError:  # file systems of other machines often have none
        return False
    path.unlink()
    return True
