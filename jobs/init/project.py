"""Writes a new project: checks the names first, then writes the whole folder or nothing."""

import base64
import hashlib
import json
import keyword
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distributions
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final
from urllib.parse import unquote, urlsplit
from zipfile import ZIP_DEFLATED, ZipFile

from checkpointing.identifiers import InvalidNameError, job_name
from jobs.distribution import DISTRIBUTION
from jobs.engine_paths import typed
from jobs.suggestions import WrongInputError

# ------------------------------------------------------------------
# Decides what a new project depends on: exactly the Tidemark that writes it, never a bare name on a package index.
#
# `pip install` looks a bare name up in the indexes that it is configured for, where a stranger can own the name. So the
# project gets a wheel of this Tidemark, in its folder `wheels`, and installs that without an index. The project names
# no path of this machine, so it can be copied and checked in.


EXTRA: Final = "dagster"
"""The extra that a new project needs, since it has Dagster definitions."""
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^]]*\])?\s*(.*?)\s*", re.DOTALL)
_HOW: Final = f"a checkout, a wheel, or a requirement such as '{DISTRIBUTION}==0.2.0' that your own index serves"
_OF_THE_INSTALLER: Final = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"})


class UnknownOriginError(Exception):
    """A dependency cannot be written safely; the message says why, and what to give."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A requirement, and a function that puts its wheel into a folder.

    None: the requirement itself tells where to find it.
    """

    requirement: str
    put_wheel: Callable[[Path], None] | None = None


def dependency(asked: str | None = None) -> Dependency:
    """Return what a new project depends on: what the user asked for, else the Tidemark that runs.

    Raises UnknownOriginError if the user named something that is not Tidemark, or named nothing and this Tidemark is
    not installed.
    """
    if asked is not None:
        return _asked(asked)
    try:
        installed = Distribution.from_name(DISTRIBUTION)
    except PackageNotFoundError:
        raise UnknownOriginError(
            "this Tidemark is not installed, and a package index may give another package of the same name: say what "
            f"the project depends on with --tidemark: {_HOW}"
        ) from None
    recorded = json.loads(installed.read_text("direct_url.json") or "{}")
    url = str(recorded.get("url", ""))
    version_control = recorded.get("vcs_info")
    if version_control:
        inside = f"#subdirectory={recorded['subdirectory']}" if "subdirectory" in recorded else ""
        return _at(f"{version_control['vcs']}+{url}@{version_control['commit_id']}{inside}")
    if recorded.get("dir_info", {}).get("editable"):
        return _of_checkout(Path(unquote(urlsplit(url).path)))
    if url and urlsplit(url).scheme != "file":
        return _at(url)
    return Dependency(_exactly(installed.version), lambda folder: _repack(installed, folder))


def _at(address: str) -> Dependency:
    return Dependency(f"{DISTRIBUTION}[{EXTRA}] @ {address}")


def _exactly(version: str) -> str:
    return f"{DISTRIBUTION}[{EXTRA}]=={version}"


def _of_checkout(checkout: Path) -> Dependency:
    declared = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    return Dependency(_exactly(declared["project"]["version"]), lambda folder: _build(checkout, folder))


def _of_wheel(wheel: Path) -> Dependency:
    return Dependency(_exactly(wheel.name.split("-")[1]), lambda folder: _copy(wheel, folder))


def _copy(wheel: Path, folder: Path) -> None:
    shutil.copy2(wheel, folder)


def _build(checkout: Path, folder: Path) -> None:
    """Build a wheel from a checkout into the folder. Raises UnknownOriginError."""
    builder = (
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        if find_spec("hatchling")
        else [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(checkout)]
    )
    done = subprocess.run(builder, cwd=checkout, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise UnknownOriginError(
            f"no wheel could be built from {checkout} ({last[0]}): build one with 'pip wheel --no-deps {checkout}', "
            "and name its file with --tidemark"
        )


def _repack(installed: Distribution, folder: Path) -> None:
    """Write the wheel from which this distribution was installed: its files, without what the installer added."""
    tag = re.search(r"^Tag: (\S+)", installed.read_text("WHEEL") or "", re.MULTILINE)
    name = f"{DISTRIBUTION.replace('-', '_')}-{installed.version}"
    lines = []
    with ZipFile(folder / f"{name}-{tag[1] if tag else 'py3-none-any'}.whl", "w", ZIP_DEFLATED) as wheel:
        for file in sorted(installed.files or (), key=str):
            if ".." in file.parts or file.suffix == ".pyc" or file.name in _OF_THE_INSTALLER:
                continue
            content = file.read_binary()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{file.as_posix()},sha256={digest},{len(content)}\n")
            wheel.writestr(file.as_posix(), content)
        record = f"{name}.dist-info/RECORD"
        wheel.writestr(record, "".join([*lines, f"{record},,\n"]))


def _asked(text: str) -> Dependency:
    """Return the dependency that the user named. A path becomes a wheel in the project.

    A requirement stays as it is.
    """
    path = Path(text).expanduser()
    if text and path.exists():
        _must_be_ours(path)
        return _of_checkout(path.absolute().resolve()) if path.is_dir() else _of_wheel(path.absolute().resolve())
    found = _REQUIREMENT.fullmatch(text)
    if found is None or "/" in text.partition("@")[0]:
        raise UnknownOriginError(f"--tidemark {text}: there is no such file or folder; give {_HOW}")
    if canonical(found[1]) != DISTRIBUTION:
        raise UnknownOriginError(
            f"--tidemark {text}: the package {found[1]!r} is not this software, which is distributed as "
            f"{DISTRIBUTION!r}; give {_HOW}"
        )
    if not found[3]:
        raise UnknownOriginError(f"--tidemark {text}: say which version or where it lies; give {_HOW}")
    extras = {EXTRA, *filter(None, re.split(r"[\[\],\s]+", found[2] or ""))}
    return Dependency(f"{found[1]}[{','.join(sorted(extras))}]{' ' if found[3].startswith('@') else ''}{found[3]}")


def _must_be_ours(path: Path) -> None:
    if path.is_dir():
        declared = path / "pyproject.toml"
        text = declared.read_text(encoding="utf-8") if declared.is_file() else ""
        name = tomllib.loads(text).get("project", {}).get("name", "")
        what = f"the project there is {name!r}" if name else "it holds no pyproject.toml that names a project"
    else:
        name = path.name.partition("-")[0] if path.suffix == ".whl" else ""
        what = "it is not a wheel of it"
    if canonical(name) != DISTRIBUTION:
        raise UnknownOriginError(f"--tidemark {path}: this is not {DISTRIBUTION}, {what}; give {_HOW}")


def canonical(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


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
    """A project was refused and not written. The message says why, and what to type instead."""


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
    """Return the process's mask for new files. It is needed because only its owner can read a temporary folder."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
