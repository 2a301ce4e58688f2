"""Decides what a new project depends on: exactly the Tidemark that writes it, never a bare name of a package index.

`pip install` takes a bare name from any index that it is configured for, where a stranger may own the name. So the
dependency is a path or an address (`tidemark-spark @ file:///...`) if one is known. Otherwise the user has to give it.
"""

import json
import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from jobs.distribution import DISTRIBUTION

EXTRA: Final = "dagster"
"""What a new project needs beside the base: it has Dagster definitions."""
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^]]*\])?\s*(.*?)\s*", re.DOTALL)
_HOW: Final = f"a checkout, a wheel, or a requirement such as '{DISTRIBUTION}==0.2.0' that your own index serves"


class UnknownOriginError(Exception):
    """A dependency cannot be written safely; the message says why, and what to give."""


def requirement(asked: str | None = None) -> str:
    """Return the requirement of a new project: what the user asked for, else where this Tidemark was installed from.

    Raises UnknownOriginError if the user named something that is not Tidemark, or named nothing and the origin is
    not recorded.
    """
    if asked is not None:
        return _asked(asked)
    origin = _recorded_origin()
    if origin is None:
        raise UnknownOriginError(
            "this Tidemark does not know where it was installed from, and a package index may give another package of "
            f"the same name: say what the project depends on with --tidemark: {_HOW}"
        )
    return f"{DISTRIBUTION}[{EXTRA}] @ {origin}"


def _recorded_origin() -> str | None:
    """Return the address that pip or uv recorded (PEP 610), None without one or if its file is gone."""
    try:
        recorded = json.loads(Distribution.from_name(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    url = str(recorded.get("url", ""))
    version_control = recorded.get("vcs_info")
    if version_control:
        inside = f"#subdirectory={recorded['subdirectory']}" if "subdirectory" in recorded else ""
        return f"{version_control['vcs']}+{url}@{version_control['commit_id']}{inside}"
    if urlsplit(url).scheme == "file" and not Path(unquote(urlsplit(url).path)).exists():
        return None
    return url or None


def _asked(text: str) -> str:
    """Return what the user gave as a requirement: a path becomes an address, a requirement stays as it is."""
    path = Path(text).expanduser()
    if text and path.exists():
        _must_be_ours(path)
        return f"{DISTRIBUTION}[{EXTRA}] @ {path.absolute().resolve().as_uri()}"
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
    return f"{found[1]}[{','.join(sorted(extras))}]{' ' if found[3].startswith('@') else ''}{found[3]}"


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
