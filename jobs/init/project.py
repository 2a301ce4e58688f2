"""Writes a new project: checks the names first, then writes the whole folder or nothing."""

import keyword
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final

from checkpointing.identifiers import InvalidNameError, job_name
from jobs.distribution import DISTRIBUTION
from jobs.engine_paths import typed
from jobs.init.dependency import Dependency, UnknownOriginError, canonical, dependency
from jobs.suggestions import WrongInputError

TEMPLATES: Final = Path(__file__).parent / "template"
WHEELS: Final = "wheels"
_UV: Final = """
[tool.uv.sources]  # uv installs the project's own wheel; pip does it by `make`
{distribution} = {{ path = "{wheel}" }}
"""
_SUFFIX: Final = ".template"
_PACKAGE: Final = "PACKAGE"
_TAKEN: Final = frozenset({"checkpointing", "jobs", "orchestration", "spec", "tests", "tidemark", "data", "warehouse"})


class ProjectRefusedError(WrongInputError):
    """A project is not written; the message says why, and what to type instead."""


@dataclass(frozen=True, slots=True)
class NewProject:
    """A new project: its folder, the name of its package and pipeline, its files in order, its dependency."""

    folder: Path
    name: str
    files: tuple[str, ...]
    tidemark: str


def create_project(folder: Path, name: str | None = None, tidemark: str | None = None) -> NewProject:
    """Write a project into a folder that does not exist yet or is empty; its name is `name` or the folder's.

    `tidemark` is its dependency, a path or a requirement; None means the Tidemark that runs. The folder appears whole
    or not at all. Raises ProjectRefusedError for a folder that is not empty, for a name that no package or pipeline may
    have, and for a dependency that may not be this software.
    """
    folder = folder.absolute()
    project = checked_name(folder.name if name is None else name, folder, given=name is not None)
    try:
        depends = dependency(tidemark)
    except UnknownOriginError as error:
        raise ProjectRefusedError(str(error)) from error
    _must_be_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{project}-", dir=folder.parent))
    try:
        files = tuple(_written(made, _words(project, depends.requirement), depends))
        made.chmod(0o777 & ~_umask())
        if folder.exists():
            folder.rmdir()
        made.replace(folder)
    except UnknownOriginError as error:
        raise ProjectRefusedError(str(error)) from error
    except OSError as error:
        raise ProjectRefusedError(f"{folder} could not be written ({error.strerror}): name another folder") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return NewProject(folder, project, files, depends.requirement)


def checked_name(name: str, folder: Path, *, given: bool = True) -> str:
    """Return the name if it suits a Python package, a pipeline and a Dagster group.

    Raises ProjectRefusedError saying what is wrong with it and how to give another one.
    """
    wrong = _wrong_with(name)
    if wrong is None:
        return name
    near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "project"
    near = near if near[0].isalpha() and _wrong_with(near) is None else f"my_{near}"
    what = f"the name {name!r}" if given else f"the folder's name {name!r}, which would be the project's,"
    raise ProjectRefusedError(f"{what} {wrong}: name it otherwise, as in 'tidemark init {typed(folder)} --name {near}'")


def _wrong_with(name: str) -> str | None:
    try:
        job_name(name)
    except InvalidNameError:
        return "must be lower-case letters, digits and underscores, a letter first, at most 63"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "is a Python keyword"
    if name in _TAKEN or name in sys.stdlib_module_names or find_spec(name) is not None:
        return "is taken by a module that is there already"
    return None


def constraints() -> str:
    """Return the versions of all packages that this Tidemark runs with, a line each."""
    pinned = {canonical(each.metadata["Name"]): each.version for each in distributions()}
    return "".join(f"{name}=={version}\n" for name, version in sorted(pinned.items()) if name != DISTRIBUTION)


def _must_be_free(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ProjectRefusedError(f"{folder} is a file: name a folder that does not exist yet")
    inside = sorted(entry.name for entry in folder.iterdir())
    if inside:
        raise ProjectRefusedError(
            f"{folder} is not empty, it holds {inside[0]}: name a folder that does not exist yet or is empty"
        )


def _written(folder: Path, words: Mapping[str, str], depends: Dependency) -> list[str]:
    """Write all files; return their names."""
    files = []
    for template in sorted(TEMPLATES.rglob(f"*{_SUFFIX}")):
        inside = str(template.relative_to(TEMPLATES)).removesuffix(_SUFFIX).replace(_PACKAGE, words["project"])
        path = folder / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
        files.append(inside)
    (folder / "constraints.txt").write_text(constraints(), encoding="utf-8")
    if depends.put_wheel is not None:
        wheels = folder / WHEELS
        wheels.mkdir()
        depends.put_wheel(wheels)
        (wheel,) = wheels.glob("*.whl")
        files.append(f"{WHEELS}/{wheel.name}")
        with (folder / "pyproject.toml").open("a", encoding="utf-8") as declared:
            declared.write(_UV.format(distribution=DISTRIBUTION, wheel=files[-1]))
    return sorted([*files, "constraints.txt"])


def _words(project: str, depends: str) -> Mapping[str, str]:
    """Return the values of the templates' $names."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "project": project,
        "distribution": project.replace("_", "-"),
        "tidemark": depends,
        "python": python,
        "title": project.replace("_", " "),
    }


def _umask() -> int:
    """Return the process's mask for new files: a temporary folder is made for its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
