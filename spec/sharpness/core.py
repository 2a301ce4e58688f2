"""Finds the core's modules and their slips, and plants a slip."""

import importlib
import pkgutil
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import checkpointing
from spec.bugs import plant as planting
from spec.sharpness.slips import Slip, lines, planted, slips

ROOT: Final = Path(*checkpointing.__path__).parent


@cache
def modules() -> tuple[ModuleType, ...]:
    """Return all modules of the core, ordered by name."""
    names = sorted(found.name for found in pkgutil.walk_packages(checkpointing.__path__, "checkpointing."))
    return tuple(importlib.import_module(name) for name in names)


def all_slips() -> tuple[Slip, ...]:
    """Return every slip that can be planted."""
    return tuple(slip for module in modules() for slip in slips(module))


def lines_of(slip: Slip) -> tuple[str, frozenset[int]]:
    """Return the slip's file, and lines of which Python runs at least one whenever it runs what the slip changes.

    The file is a path from the root of the project.
    """
    module = importlib.import_module(slip.module)
    return str(Path(str(module.__file__)).relative_to(ROOT)), lines(module, slip)


def plant(slip: Slip) -> None:
    """Give the slip's function the changed code for the rest of this process."""
    module = importlib.import_module(slip.module)
    planting.plant(module, planted(module, slip))


@cache
def equivalent() -> Mapping[str, str]:
    """Return the slips that change nothing visible, each with the reason. They are not counted."""
    rows = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text(encoding="utf-8"))["slip"]
    return {row["slip"]: row["why"] for row in rows}


def is_equivalent(slip: Slip) -> bool:
    return slip.key in equivalent() or slip.identity in equivalent()
