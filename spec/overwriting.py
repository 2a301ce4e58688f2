"""The invariants of overwrite tables: a cut shows the rows of the greatest version of each partition, and no others.

The judges know the rows and the deliveries of the small pipeline, and read folders' names themselves. They use nothing
of what decides it in the product.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointingMode
from spec.cut_contents import first_cuts, in_flight, line_of, read_on
from spec.history import History, RowCommitted
from spec.pipeline import (
    LATER,
    NEWEST,
    NEWEST_TABLE,
    ORDERS,
    SPLITS,
    delivery_of,
    first_id,
    first_table,
    rows_of,
    site_of,
    source_rows,
)
from spec.rollback import goes_back
from spec.savepoints import plain_savepoints

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId, TableName
    from checkpointing.metadata.record import CheckpointRecord

_NUMBERED: Final = re.compile(r"(?P<folders>.*)/version\.number\.(?P<version>-?[0-9]+)/[^/]+")
_WORDED: Final = re.compile(r"(?P<folders>.*)/version\.(?:date|time|text)\.(?P<version>[^/]*)/[^/]+")


def not_the_newest(history: History) -> Iterator[str]:
    """Yield every site of which a cut shows other rows than those of the greatest delivery that was read (F3).

    At least once, rows behind the barrier may be in the table already. Then a cut may show a later delivery, or rows
    more than once, but no two deliveries.
    """
    exactly = history.mode is CheckpointingMode.EXACTLY_ONCE
    for record, cut in (*first_cuts(history), *plain_savepoints(history)):
        if not any(first_id(was.vertex) == NEWEST for was in record.vertices):
            continue
        active = (files for table, files in cut.active if first_table(table) == NEWEST_TABLE)
        shown = Counter({row: times for (row,), times in history.multiset(next(active, frozenset())).items()})
        read = _read(history, record)
        for site in sorted({site_of(row) for row in (*read, *shown)}):
            due, there = _newest(read, site), _of_site(shown, site)
            if there != due and (exactly or not _may_be_ahead(due, there)):
                yield f"checkpoint {record.checkpoint} shows {_told(there)} of site {site}, and {_told(due)} is due"


def _read(history: History, record: "CheckpointRecord") -> Counter[int]:
    """Return the orders that were read before the cut, without those in flight to the table."""
    read = read_on(line_of(history, record))
    splits = (*SPLITS[ORDERS], LATER)
    rows = Counter(row for each in splits for begin, end in read.get(each, ()) for row in source_rows(each, begin, end))
    for held in in_flight(record):
        if first_id(held.channel.edge.downstream) == NEWEST:
            for segment in (each for each in held.segments if isinstance(each, SourceSlice)):
                rows -= Counter(rows_of(segment))
    return rows


def _of_site(rows: Counter[int], site: int) -> Counter[int]:
    return Counter({row: times for row, times in rows.items() if site_of(row) == site})


def _newest(rows: Counter[int], site: int) -> Counter[int]:
    mine = _of_site(rows, site)
    greatest = max(map(delivery_of, mine), default=0)
    return Counter({row: times for row, times in mine.items() if delivery_of(row) == greatest})


def _may_be_ahead(due: Counter[int], there: Counter[int]) -> bool:
    deliveries = {*map(delivery_of, there)}
    if len(deliveries) > 1:
        return False
    return not due - there or min(deliveries, default=0) > max(map(delivery_of, due))


def _told(rows: Counter[int]) -> str:
    return str([(row, delivery_of(row), times) for row, times in sorted(rows.items())])


def fallen_back(history: History) -> Iterator[str]:
    """Yield every partition of an overwrite table in which an entry names two versions, or a smaller one than before.

    Only an entry that goes back to another one, or a reset of it, may have a smaller version than its parent.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        if isinstance(event, RowCommitted):
            record = event.record
            before = _versions(entries[record.parent]) if record.parent in entries else {}
            now = _versions(record)
            for table, versions in now.items():
                for folders, found in versions.items():
                    if len(found) > 1:
                        yield f"entry {record.checkpoint} has versions {sorted(found)} of {table} in {folders!r}"
            if not goes_back(record):
                yield from _smaller(record, before, now)
            entries[record.checkpoint] = record


_Versions = Mapping[str, set[tuple[int, str]]]


def _smaller(
    record: "CheckpointRecord", before: "Mapping[TableName, _Versions]", now: "Mapping[TableName, _Versions]"
) -> Iterator[str]:
    for table, versions in before.items():
        for folders, found in versions.items():
            if table in now and max(now[table].get(folders, {(0, "")})) < max(found):
                yield f"entry {record.checkpoint} has a smaller version of {table} in {folders!r} than its parent"


def _versions(record: "CheckpointRecord") -> "dict[TableName, _Versions]":
    """Return the versions of which an entry names files, by table and by the folders of the partition.

    Only overwrite tables have such folders.
    """
    found: dict[TableName, dict[str, set[tuple[int, str]]]] = {}
    for was in record.vertices:
        for own in (own for subtask in was.subtasks for own in subtask.ranges):
            for keyed in own.files:
                place = _place(keyed.file.path.removeprefix(f"{own.table}/_data/"))
                if place is not None:
                    _, _, folders = place[0].partition("/")
                    found.setdefault(own.table, {}).setdefault(folders, set()).add(place[1])
    return dict(found)


def _place(inside: str) -> tuple[str, tuple[int, str]] | None:
    """Return the folders before that of the version, and the version, by a path below `_data`."""
    numbered = _NUMBERED.fullmatch(inside)
    if numbered is not None:
        return numbered["folders"], (int(numbered["version"]), "")
    worded = _WORDED.fullmatch(inside)
    return (worded["folders"], (0, worded["version"])) if worded is not None else None
