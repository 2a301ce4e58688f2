"""Warehouses that are made once in a process, and copied for each test that begins with one."""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path

_MADE: dict[Hashable, Path] = {}


def copied(root: Path, name: Hashable, make: Callable[[Path], object]) -> None:
    """Copy the warehouse of that name to `root`. The first time, `make` makes it. A warehouse can be moved."""
    if name not in _MADE:
        made = Path(tempfile.mkdtemp(prefix="tidemark-prepared-"))
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        make(made)
        for traces in made.glob("_tidemark/*/traces"):
            shutil.rmtree(traces)
        _MADE[name] = made
    shutil.copytree(_MADE[name], root, dirs_exist_ok=True)
