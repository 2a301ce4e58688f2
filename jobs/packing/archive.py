"""Writes the archive that `tidemark package` builds for Spark's workers.

Spark unpacks the archive into the working folder of an executor. Its `bin/python` starts the worker's own Python of the
same version, with the packed packages first on its path.
"""

import io
import json
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from jobs.init.project import canonical

_PACKAGES: Final = "packages"
_LEVEL: Final = 1
"""The level of gzip. A higher level takes several times as long, and saves a tenth of the size."""
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
    """Write the archive, and replace an older one atomically.

    `packed` maps the files' names on Python's path to the files.
    """
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
    """Return the archive's entry of a file without an owner, and readable for every user."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode |= 0o444
    return info


# ------------------------------------------------------------------
# Lists the files that a worker's Python must be able to import: installed packages and the project's own modules.
#
# The files of an installed package are listed in its RECORD. For an editable package, and for the project, every
# package and module in the folder is packed. A package that cannot be packed in this way is refused with an error that
# names it.


LEFT_OUT: Final = frozenset({"deltalake", "great-expectations", "pip", "py4j", "pyspark", "setuptools"})
"""Packages that no worker imports from the archive. Spark itself gives its workers pyspark and py4j."""

_COMPILED: Final = "__pycache__"


class NotPackableError(Exception):
    """Something cannot be packed. The message names it and the way out."""


def contents(project: Path | None, installed: Iterable[Distribution] | None = None) -> dict[str, Path]:
    """Return the files to pack, as a dict from names below a folder of Python's path to files. Raises NotPackableError.

    `project` is the folder of the user's own modules. By default, `installed` has the packages that this process can
    import. Of two packages with the same name the first one wins, as in Python.
    """
    packed: dict[str, Path] = {}
    seen = set(LEFT_OUT)
    for each in distributions() if installed is None else installed:
        name = canonical(each.metadata["Name"])
        if name not in seen:
            seen.add(name)
            packed = dict(_files_of(each, name)) | packed
    return dict(_modules(project)) | packed if project is not None else packed


def must_hold_imported(packed: Mapping[str, Path]) -> None:
    """Raise NotPackableError if this process has imported a module that is neither packed nor Python's own.

    Call this after the pipeline was built, when its modules are imported.
    """
    places = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    files = {path.resolve() for path in packed.values()}
    for name, module in sorted(sys.modules.items()):
        found = getattr(module, "__file__", None)
        if found is None or name == "__main__":
            continue
        path = Path(found).resolve()
        if path not in files and not any(path.is_relative_to(place) for place in places):
            raise NotPackableError(
                f"the pipeline imports {name} from {path}, which is neither in an installed package nor in a package "
                "or module of the project's folder: install it with pip, or move it there"
            )


def _files_of(found: Distribution, name: str) -> Iterator[tuple[str, Path]]:
    if found.files is None:
        raise NotPackableError(f"{name} has no list of its files (RECORD): install it with pip or uv")
    for file in found.files:
        path = Path(str(found.locate_file(file)))
        if file.is_absolute() or ".." in file.parts or _COMPILED in file.parts:
            continue  # programs of bin/, and what Python compiles anew
        if not path.is_file():
            raise NotPackableError(f"{name} lacks its file {path}: install it again")
        if path.suffix == ".pth" and _is_editable(found):
            yield from _linked(path, name)
        else:
            yield str(file), path


def _is_editable(found: Distribution) -> bool:
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))


def _linked(links: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the modules of the folders that an editable package's .pth file names."""
    for line in links.read_text(encoding="utf-8").splitlines():
        folder = Path(line.strip())
        if not line.strip() or not folder.is_dir():
            raise NotPackableError(
                f"{name} is installed editable, and {links.name} names no folder: install it without --editable"
            )
        yield from _modules(folder)


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the modules of a folder, and all files of its packages."""
    for each in sorted(folder.iterdir()):
        if each.suffix == ".py" and each.stem.isidentifier():
            yield each.name, each
        elif each.name.isidentifier() and (each / "__init__.py").is_file():
            for path in sorted(each.rglob("*")):
                if path.is_file() and _COMPILED not in path.parts:
                    yield str(path.relative_to(folder)), path
