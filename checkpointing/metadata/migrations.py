"""Translates entries of older formats into the present format, step by step.

A step takes the JSON object of an entry in format n, and returns it with the fields of format n + 1. `migrate` then
sets the format number. No other code reads older formats. If you raise `FORMAT`, add a step from the previous format,
and a test with an entry in that format.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from checkpointing.metadata.record import FORMAT, RowKind

Document = dict[str, Any]
"""An entry as a JSON object."""

Step = Callable[[str, Document], Document]
"""(kind, entry in format n) -> entry with the fields of format n + 1."""


def _each(document: Document, name: str, new: Document) -> Document:
    """Add fields to each object of a list. What is no list, or no object, stays as it is: the model refuses it."""
    there = document.get(name)
    if not isinstance(there, list):
        return document
    return document | {name: [new | each if isinstance(each, dict) else each for each in there]}


def _pinned(kind: str, document: Document) -> Document:
    """Format 2 says whether a cut is pinned. In format 1 savepoints were pinned, and nothing else."""
    if kind in (RowKind.CHECKPOINT.value, RowKind.SAVEPOINT.value):
        document = {"pinned": kind == RowKind.SAVEPOINT.value, **document}
    return document


def _on_its_line(kind: str, document: Document) -> Document:
    """Format 3 knows rollbacks. In format 2 no entry was ever abandoned, and no table lost files of ours."""
    if kind in (RowKind.CHECKPOINT.value, RowKind.SAVEPOINT.value):
        document = {"abandoned": False, **_each(document, "tables", {"removes": []})}
    return document


def _with_meanings_and_columns(kind: str, document: Document) -> Document:
    """Format 4 records what state columns mean, the keys of upsert tables and the columns of every table."""
    if kind not in (RowKind.CLAIM.value, RowKind.RELEASE.value):
        document = {"columns": [], **_each(document, "vertices", {"meanings": None, "table_keys": []})}
    return document


def _with_renames_subtasks_and_hooks(kind: str, document: Document) -> Document:
    """Format 5 records renames, measurements of subtasks, and the state of master hooks. Older entries have none."""
    if kind not in (RowKind.CLAIM.value, RowKind.RELEASE.value):
        document = {"renames": [], "hooks": [], **document}
    return document


def _with_manifests(kind: str, document: Document) -> Document:
    """Format 6 may keep handles in manifests. An older entry names all its files itself."""
    if kind not in (RowKind.CLAIM.value, RowKind.RELEASE.value):
        document = {"manifests": [], **document}
    return document


def _with_what_came_to_format_6(kind: str, document: Document) -> Document:
    """Format 7 has fields that versions added to format 6 without a new number. An entry without one says nothing."""
    if kind not in (RowKind.CLAIM.value, RowKind.RELEASE.value):
        later = {"renamed": [], "in_order": False, "compactions": [], "of_snapshots": False}
        document = {"outside": [], **_each(document, "tables", later)}
        document = _each(document, "vertices", {"coordinator": None, "outputs_read": None})
        document = _each(document, "columns", {"dropped": []})
    return document


STEPS: Mapping[int, Step] = MappingProxyType(
    {
        1: _pinned,
        2: _on_its_line,
        3: _with_meanings_and_columns,
        4: _with_renames_subtasks_and_hooks,
        5: _with_manifests,
        6: _with_what_came_to_format_6,
    }
)
"""Format n -> the step to n + 1."""


class UnknownFormatError(ValueError):
    """An entry in a format that this version cannot read. The message names its writer and what to install."""


def migrate(kind: str, document: Document, *, at: int, to: int = FORMAT, steps: Mapping[int, Step] = STEPS) -> Document:
    """Return the entry, which has format `at`, in format `to`. Raise UnknownFormatError if no steps lead there."""
    for number in range(at, to):
        if number not in steps:
            raise UnknownFormatError(f"no way leads from format {number} of a {kind} row to format {to}")
        document = steps[number](kind, document) | {"format": number + 1}
    return document
