"""Lets Spark's JVM and its Python workers talk through Unix domain sockets instead of TCP.

Over TCP, each task waits some 40 ms for nothing: one side delays its acknowledgement, and the other sends no more
before it comes (Nagle's algorithm). Several functions in one job wait one after another. Spark can use Unix domain
sockets since 4.1 (SPARK-51688).
"""

import os
from pathlib import Path
from typing import Final

ENABLED: Final = "spark.python.unix.domain.socket.enabled"
FOLDER: Final = "spark.python.unix.domain.socket.dir"

_PATH_BYTES_MAX: Final = 103
"""The longest path of a socket that every system takes. Linux takes 107 bytes, macOS 103."""
_NAME_BYTES: Final = len("/.00000000-0000-0000-0000-000000000000.sock")


def socket_settings(folder: Path) -> dict[str, str]:
    """Return the settings for sockets in this folder of this machine, which only this user can open.

    There are none if the folder's path is too long. Then Spark uses TCP.
    """
    if len(os.fsencode(folder)) + _NAME_BYTES > _PATH_BYTES_MAX:
        return {}
    return {ENABLED: "true", FOLDER: str(folder)}
