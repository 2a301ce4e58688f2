"""Writes the archive that `tidemark package` builds, and says how Spark's workers use it.

Spark unpacks it into the working folder of an executor. Its `bin/python` starts the worker's own Python of the same
version, with the packed packages first on its path.
"""

import io
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PACKAGES: Final = "packages"
_LEVEL: Final = 1
"""Of gzip: a higher level takes several times as long, and saves a tenth."""
_LAUNCHER: Final = """#!/bin/sh
here=$(CDPATH= cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/{packages}${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
exec {python} "$@"
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """A written archive. `python` is the program that each worker must have on its PATH."""

    path: Path
    files: int
    bytes: int
    python: str


def write_archive(packed: Mapping[str, Path], to: Path) -> Archive:
    """Write the archive, replacing an older one at once. `packed` are the files by their names on Python's path."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    unfinished = to.with_name(f".{to.name}.unfinished")
    try:
        with tarfile.open(unfinished, "w:gz", compresslevel=_LEVEL) as archive:
            _add_launcher(archive, _LAUNCHER.format(packages=_PACKAGES, python=python))
            for name, path in sorted(packed.items()):
                archive.add(path.resolve(), f"{_PACKAGES}/{name}", recursive=False, filter=_nobodys)
        unfinished.replace(to)
    finally:
        unfinished.unlink(missing_ok=True)
    return Archive(to, len(packed), to.stat().st_size, python)


def _add_launcher(archive: tarfile.TarFile, text: str) -> None:
    info = tarfile.TarInfo("bin/python")
    info.size, info.mode = len(text.encode()), 0o755
    archive.addfile(info, io.BytesIO(text.encode()))


def _nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the entry of a file without its owner, readable by every worker."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode |= 0o444
    return info
