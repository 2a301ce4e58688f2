"""Reads the project that a command or a Dagster code location belongs to, from `[tool.tidemark]` of its pyproject.toml.

```toml
[tool.tidemark]
default = "shop"         # the pipeline of a command that names none; not needed if only one is registered
warehouse = "warehouse"  # relative to this file
data = "data"

[tool.tidemark.pipelines]
shop = "shop.pipeline:build"
```

Relative paths of a project begin at its folder, whatever the working directory is.
"""

import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from checkpointing.identifiers import InvalidNameError, job_name
from jobs.suggestions import WrongInputError, there_are

FILE: Final = "pyproject.toml"
OWN: Final = {
    "flights": "jobs.pipelines.flights:build",
    "offsets_100_105": "jobs.pipelines.offsets_100_105:build",
}
"""The demo and the worked example that come with Tidemark. A project's pipeline of the same name wins."""
FOLDERS: Final = ("warehouse", "data")
_IN_A_CHECKOUT: Final = ("checkpointing", "jobs", "orchestration", "spec", "tidemark")
_KEYS: Final = ("data", "default", "pipelines", "warehouse")


class InvalidProjectError(WrongInputError):
    """A pyproject.toml cannot be used; the message names the file, the key and the rule."""


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with a pyproject.toml. Without `[tool.tidemark]`, only its folder is used."""

    root: Path
    pipelines: Mapping[str, str] = field(default_factory=dict)
    """From a pipeline's name to its `module:attribute`."""
    default: str | None = None
    """The pipeline of a command without a pipeline argument."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """`warehouse` and `data`, as far as they are set."""

    @property
    def file(self) -> Path:
        """The pyproject.toml."""
        return self.root / FILE


def here() -> Project | None:
    """Return the project of the working directory, None outside any; raise InvalidProjectError."""
    folder = working_directory()
    return None if folder is None else project_above(folder)


def working_directory() -> Path | None:
    """Return the folder in which this process works, or None if the folder has been deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def make_importable(folder: Path) -> None:
    """Make a folder's modules importable in this process, and in the Python workers of a Spark that it starts.

    On this process's path the folder comes last, so that it hides no installed package. On a worker's path it comes
    before the installed packages. Raises InvalidProjectError for a folder whose packages would hide Tidemark's packages
    there.
    """
    _must_hide_nothing(folder)
    name = str(folder)
    if name not in sys.path:
        sys.path.append(name)
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if name not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join([*path, name])


def _must_hide_nothing(folder: Path) -> None:
    """Raise InvalidProjectError for a module or package in the folder that has the name of a package of Tidemark.

    A wheel has only the package `tidemark`. A checkout has five packages.
    """
    outermost = Path(__file__).resolve().parents[__name__.count(".")]
    for name in ("tidemark",) if __name__.startswith("tidemark.") else _IN_A_CHECKOUT:
        for found in (folder / name / "__init__.py", folder / f"{name}.py"):
            if found.is_file() and found.parent.resolve() != outermost / name:
                wheel = f", or install Tidemark as a wheel: pip install {outermost}, without --editable"
                raise InvalidProjectError(
                    f"{found}: Tidemark has a package {name!r} of its own, which Spark's workers would not find beside "
                    f"this one: rename yours{'' if name == 'tidemark' else wheel}"
                )


def known_pipelines(project: Project | None) -> tuple[str, ...]:
    """Return the names that a command takes: those that the project registers, else those that come with Tidemark."""
    return tuple(project.pipelines) if project and project.pipelines else tuple(OWN)


def unknown_pipeline(name: str, project: Project | None, others: Iterable[str] = ()) -> str:
    """Return the message for an unknown pipeline name. `others` are further names that the message may suggest."""
    known = dict.fromkeys([*known_pipelines(project), *others])
    register = f"register it under [tool.tidemark.pipelines] in {project.file}, or " if project else ""
    return f"there is no pipeline {name!r}: {there_are(name, known)}; {register}write it as module:attribute"


def project_above(folder: Path) -> Project | None:
    """Return the project whose pyproject.toml is nearest, in this folder or above it; None if there is none.

    Raises InvalidProjectError for a file that is not TOML, or whose table for Tidemark breaks a rule.
    """
    for each in (folder, *folder.parents):
        if (each / FILE).is_file():
            return _read(each)
    return None


def _read(root: Path) -> Project:
    file = root / FILE
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidProjectError(f"{file} cannot be read ({error}): correct it") from error
    tool = tables.get("tool", {})
    own = tool.get("tidemark", {}) if isinstance(tool, dict) else {}
    if not isinstance(own, dict):
        raise InvalidProjectError(f"{file}: tool.tidemark must be a table, [tool.tidemark]")
    for key in own:
        if key not in _KEYS:
            raise InvalidProjectError(f"{file}: [tool.tidemark] has no key {key!r}: {there_are(key, _KEYS)}")
    folders = {name: _text(file, name, own[name]) for name in FOLDERS if name in own}
    pipelines = _pipelines(file, own.get("pipelines", {}))
    return Project(root, pipelines, _default(file, own.get("default"), pipelines), folders)


def _pipelines(file: Path, found: object) -> Mapping[str, str]:
    if not isinstance(found, dict):
        raise InvalidProjectError(
            f'{file}: write [tool.tidemark.pipelines] as a table, like shop = "shop.pipeline:build"'
        )
    for name, reference in found.items():
        where = f"pipelines.{name}"
        try:
            job_name(name)
        except InvalidNameError as error:
            raise InvalidProjectError(f"{file}: [tool.tidemark] {where}: {error}") from error
        module, colon, attribute = _text(file, where, reference).partition(":")
        if not (module and colon and attribute):
            raise InvalidProjectError(
                f"{file}: [tool.tidemark] {where} is {reference!r}: write it as module:attribute, "
                f'like "{name}.pipeline:build"'
            )
    return dict(found)


def _default(file: Path, named: object, pipelines: Mapping[str, str]) -> str | None:
    if named is None:
        return next(iter(pipelines)) if len(pipelines) == 1 else None
    name = _text(file, "default", named)
    if name not in pipelines:
        raise InvalidProjectError(
            f"{file}: [tool.tidemark] default is {name!r}, which is not registered: {there_are(name, pipelines)}"
        )
    return name


def _text(file: Path, key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidProjectError(f"{file}: [tool.tidemark] {key} must be a text that is not empty, not {value!r}")
    return value
