"""How persisted rows of older formats become rows of the present one: a chain of single steps.

A step takes the JSON object of a row in format n and returns the one of format n + 1; nothing is ever
read in an old format anywhere else. A change that raises `FORMAT` adds the step from the format before, and a
test with a row of it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from checkpointing.metadata.record import FORMAT, RowKind

Document = dict[str, Any]
"""A row as a JSON object."""

Step = Callable[[str, Document], Document]
"""(kind, row in format n) -> row in format n + 1."""


def _pinned(kind: str, document: Document) -> Document:
    """Format 2 says of a cut whether it is pinned; in format 1 a savepoint was so by its kind, nothing else."""
    if kind in (RowKind.CHECKPOINT.value, RowKind.SAVEPOINT.value):
        document = {"pinned": kind == RowKind.SAVEPOINT.value, **document}
    return document | {"format": 2}


def _on_its_line(kind: str, document: Document) -> Document:
    """Format 3 knows rollbacks: in format 2 no row was ever left behind, and no table lost files of ours."""
    if kind in (RowKind.CHECKPOINT.value, RowKind.SAVEPOINT.value):
        tables = [{"removes": [], **table} for table in document.get("tables", [])]
        document = {"abandoned": False, **document, "tables": tables}
    return document | {"format": 3}


def _with_meanings_and_columns(kind: str, document: Document) -> Document:
    """Format 4 records what state columns mean, the keys of upsert tables and the columns of every table."""
    if kind not in (RowKind.CLAIM.value, RowKind.RELEASE.value):
        vertices = [{"meanings": None, "table_keys": [], **vertex} for vertex in document.get("vertices", [])]
        document = {"columns": [], **document, "vertices": vertices}
    return document | {"format": 4}


def _with_renames_subtasks_and_hooks(kind: str, document: Document) -> Document:
    """Format 5 records renames, what was measured of subtasks, and the state of master hooks; older ones have none."""
    if kind not in (RowKind.CLAIM.value, RowKind.RELEASE.value):
        statistics = {"counts": None, **document.get("statistics", {})}
        document = {"renames": [], "hooks": [], **document, "statistics": statistics}
    return document | {"format": 5}


STEPS: Mapping[int, Step] = MappingProxyType(
    {1: _pinned, 2: _on_its_line, 3: _with_meanings_and_columns, 4: _with_renames_subtasks_and_hooks}
)
"""Format n -> the step to n + 1."""


class UnknownFormatError(ValueError):
    """A row in a format that this version cannot read: names who wrote it and what to install."""


def migrate(kind: str, document: Document, *, at: int, to: int = FORMAT, steps: Mapping[int, Step] = STEPS) -> Document:
    """Return the row, which is in format `at`, in format `to`; raise UnknownFormatError if no chain leads there."""
    for number in range(at, to):
        if number not in steps:
            raise UnknownFormatError(f"no way leads from format {number} of a {kind} row to format {to}")
        document = steps[number](kind, document)
    return document
