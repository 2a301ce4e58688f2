"""Writes an entry as any older version of Tidemark wrote it, and says what that text means.

The judge of the codec reads the text with the product, and compares what it reads with this meaning. The two share no
code: this module only knows in which format a field appeared, and what an entry without the field says.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from checkpointing.metadata.codec import encode
from checkpointing.metadata.record import Row

Fields = dict[str, Any]
"""A JSON object."""

PRESENT: Final = 7
_FIRST: Final = {"rollback": 3, "reset": 3}
"""The first format that knew a kind, if it was not format 1."""
_SUBTASKS: Final = ("task_ms", "sync_ms", "rows_in", "rows_out", "bytes_out", "checkpointed_bytes")
_LATER: Final[tuple[tuple[int, str, object], ...]] = (
    (7, "columns.dropped", []),
    (7, "columns.columns.first", ""),
    (7, "tables.renamed", []),
    (7, "tables.in_order", False),
    (7, "tables.compactions", []),
    (7, "vertices.table_keys.mode", "upsert"),
    (7, "vertices.coordinator", None),
    (7, "vertices.outputs_read", None),
    (7, "outside", []),
    (3, "abandoned", False),
    (3, "tables.removes", []),
    (4, "tables.leaving", []),
    (4, "columns", []),
    (4, "vertices.meanings", None),
    (4, "vertices.table_keys", []),
    (5, "tables.planned_on", None),
    (5, "renames", []),
    (5, "hooks", []),
    (5, "statistics.counts", None),
    (5, "statistics.rows_estimated", 0),
    (5, "statistics.vertices.start_delay_ms", None),
    (5, "statistics.vertices.bytes_processed", None),
    (5, "statistics.vertices.async_ms", None),
    (5, "statistics.vertices.subtasks", {name: [] for name in _SUBTASKS}),
    (6, "manifests", []),
    (6, "tables.of_snapshots", False),
)
"""The format in which a field appeared, its place, and what an entry of an older format says instead.

Some versions added fields to format 6 without a new number. So entries of format 6 have them or not. They count as
fields of format 7.
"""


class Written(NamedTuple):
    """An entry in some format."""

    envelope: Fields
    meant: Fields
    """What the entry says, in the present format."""
    says_all: bool
    """True if this format can hold everything in the entry, so that nothing was left out."""


def formats_of(kind: str) -> range:
    """Return the formats that knew this kind of entry, including the present one."""
    return range(_FIRST.get(kind, 1), PRESENT + 1)


def written(row: Row, number: int) -> Written:
    """Return the entry as a version with this format wrote it."""
    text = encode(row, writer="spec")
    envelope: Fields = from_json(text)
    meant, older = from_json(text)["row"], envelope["row"]
    if envelope["kind"] not in ("claim", "release"):
        for since, place, says in _LATER:
            if number < since:
                _leave_out(older, place)
                _say(meant, place, says)
        if number < 2:  # noqa: PLR2004 - every savepoint was pinned then, and nothing else
            del older["pinned"]
            meant["pinned"] = envelope["kind"] == "savepoint"
    envelope["format"] = older["format"] = number
    return Written(envelope, meant, says_all=number == PRESENT or meant == from_json(text)["row"])


def read_otherwise(meant: Fields, read: Row) -> str:
    """Return the first field that is read otherwise than it was meant, or nothing."""
    said: Fields = from_json(read.model_dump_json())
    names = sorted({*meant, *said}) if meant != said else ()
    return next((name for name in names if meant.get(name, names) != said.get(name, names)), "")


def _leave_out(document: Fields, place: str) -> None:
    for owner, name in _owners(document, place):
        del owner[name]


def _say(document: Fields, place: str, says: object) -> None:
    for owner, name in _owners(document, place):
        owner[name] = says


def _owners(document: Fields, place: str) -> Iterator[tuple[Fields, str]]:
    """Yield each object that has the field, and the field's own name."""
    *outer, name = place.split(".")
    owners = [document]
    for each in outer:
        inner = [owner[each] for owner in owners]
        owners = [one for found in inner for one in (found if isinstance(found, list) else [found])]
    yield from ((owner, name) for owner in owners)
