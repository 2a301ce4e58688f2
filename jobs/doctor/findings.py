"""What the doctor reports: sections of what it saw, and findings, each with the command that repairs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jobs.engine_paths import typed
from jobs.warehouse.warehouse import Warehouse

_DEFAULT_ROOT: Final = Path("warehouse")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and the command or the action that repairs it."""

    what: str
    repair: str


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page: what was seen, as pairs of name and value, and what is wrong there."""

    name: str
    seen: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    values: Mapping[str, object] = field(default_factory=dict)
    """What was seen, for programs: numbers, ids, lists and names, as JSON has them. Times are ms since 1970."""
    not_looked: tuple[str, ...] = ()
    """What was not examined, and why. It must not be taken for healthy."""


def command(verb: str, warehouse: Warehouse, *arguments: str) -> str:
    """Return the command line with this command for this job in this warehouse."""
    where = () if warehouse.root == _DEFAULT_ROOT else ("--warehouse", typed(warehouse.root))
    return " ".join(("tidemark", verb, str(warehouse.paths.job), *arguments, *where))
