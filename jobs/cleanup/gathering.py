"""Gathers what a clean-up must know: first the existing files, then the entries, the cuts and the logs.

The order matters: a file that an entry or a log begins to name meanwhile is then seen as needed. A table that cannot
be read, at its newest version or at a recorded cut, is left alone as a whole and reported.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from deltalake import DeltaTable

from checkpointing.commit.cleanup import CleanupFacts, CleanUpLook, ListedFile, TableSeen, readable_cuts, standing
from checkpointing.identifiers import Generation, TableName
from checkpointing.metadata.paths import (
    STAGED,
    is_data_file,
    is_foreign_name,
    is_manifest_name,
    parse_generation,
    parse_staged_name,
)
from jobs.cleanup.looks import read_looks
from jobs.cleanup.table_history import TableHistory, read_history
from jobs.cleanup.tables import HeldLogs, JobTable, job_tables
from jobs.storage.port import NotARegularFileError
from jobs.storage.together import together
from jobs.stores.cuts import Cut
from jobs.stores.known_table import active_paths
from jobs.stores.reservations import ReservationStore
from jobs.stores.warehouse import Warehouse

_UNFINISHED: Final = re.compile(r"\..+\.tmp")
"""The temporary file of a writer that died."""

_WAITS: Final = (
    "checkpoint {} is committed, and this clean-up found no cut of it. So all files that tables have shown stay. "
    "If the cut is missing, 'tidemark run' or the next tick in Dagster records it. Clean up again after that"
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The facts, what this clean-up saw of the tables (later ones use it), and why it left files or tables alone.

    `look` is None if it found no cut of the newest checkpoint. Then it does not know all versions that are needed, and
    later clean-ups must not rely on what it saw.
    """

    facts: CleanupFacts
    look: CleanUpLook | None
    tables: tuple[JobTable, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """A table as its log shows it: its versions, the needed paths, and the removed files."""

    seen: TableSeen
    active: frozenset[str]
    history: TableHistory


def gather(logs: HeldLogs, current: Generation, grace_ms: int, *, others_hold: bool) -> Gathered:
    """Return what a clean-up of a job must know. `current` is the last claim that the caller has seen.

    If no other tick holds the job, cuts that no reader can ask for any more need no files. Changes nothing. Raises what
    the codec raises for entries that cannot be read.
    """
    warehouse = logs.warehouse
    tables = job_tables(logs)
    names = [table.name for table in tables]
    listed = together(warehouse.storage, lambda name: tuple(_staged(warehouse, name)), names)
    staged = dict(zip(names, listed, strict=True))
    rows, cuts = logs.rows(), logs.recorded_cuts()
    kept = cuts.keys() if others_hold else readable_cuts(rows, cuts.keys())
    reservations = ReservationStore(warehouse).reservations()  # after the cuts: see jobs/stores/reservations.py
    now_ms = warehouse.now_ms()
    reserved = [dict(each.versions) for each in standing(reservations, now_ms)]
    read, notes = _read_tables(logs, tables, [*(cuts[checkpoint] for checkpoint in kept), *reserved])
    found = [
        file
        for table in tables
        if table.name in read or not table.has_log(warehouse.paths)
        for file in _found(warehouse, table, staged[table.name], read.get(table.name))
    ]
    facts = CleanupFacts(
        current=current,
        others_hold=others_hold,
        now_ms=now_ms,
        grace_ms=grace_ms,
        rows=rows,
        recorded=frozenset(cuts),
        found=tuple(found),
        active=frozenset().union(*(each.active for each in read.values())),
        looks=read_looks(warehouse),
        reservations=reservations,
    )
    look = CleanUpLook(now_ms, {table: each.seen for table, each in read.items()})
    if facts.pending is None:
        return Gathered(facts, look, tables, notes)
    return Gathered(facts, None, tables, (*notes, _WAITS.format(facts.pending.checkpoint)))


def _read_tables(
    logs: HeldLogs, tables: tuple[JobTable, ...], cuts: Collection[Cut]
) -> tuple[dict[TableName, _Read], tuple[str, ...]]:
    read: dict[TableName, _Read] = {}
    notes: list[str] = []
    for table in tables:
        name = table.name
        if not table.has_log(logs.warehouse.paths):
            continue
        try:
            read[name] = _read(logs, name, cuts)
        except Exception as error:  # noqa: BLE001 - an unreadable table is left alone, since its needs are unknown
            notes.append(f"table {name} is left alone: its log cannot be read ({type(error).__name__}: {error})")
    return read, tuple(notes)


def _read(logs: HeldLogs, name: TableName, cuts: Collection[Cut]) -> _Read:
    """Return a table as its log shows it. The history is read last, so it has all removals."""
    folder = logs.warehouse.place(name)
    with logs.newest(name) as table:
        seen = table_seen(name, table.version(), cuts)
        active = set(_named(table.paths(), name))
    history = read_history(folder)
    for version in seen.cuts - {seen.newest}:
        told = history.tells_of(version, seen.newest)
        paths = history.removed_since(version) if told else active_paths(DeltaTable(str(folder), version=version))
        active.update(_named(paths, name))
    return _Read(seen, frozenset(active), history)


def table_seen(name: TableName, newest: int, cuts: Collection[Cut]) -> TableSeen:
    """Return what a look at a table and at the recorded cuts saw of it."""
    versions = frozenset(cut[name] for cut in cuts if name in cut)
    return TableSeen(newest, versions, in_every_cut=all(name in cut for cut in cuts))


def _named(paths: Iterable[str], name: TableName) -> Iterator[str]:
    """Yield paths inside a table, relative to the warehouse, as they are and decoded as a URL."""
    for path in paths:
        yield f"{name}/{path}"
        yield f"{name}/{unquote(path)}"


def _staged(warehouse: Warehouse, table: TableName) -> Iterator[ListedFile]:
    """Yield the files that generations staged for a table, unfinished ones too; no other files."""
    for found in warehouse.place(warehouse.paths.staged_root(table)).entries(deep=True):
        folder, _, name = found.name.partition("/")
        generation = parse_generation(folder)
        if generation is not None and (_is_ours(name) or _UNFINISHED.fullmatch(name.rpartition("/")[2])):
            path = f"{warehouse.paths.staged_folder(table, generation)}/{name}"
            with suppress(FileNotFoundError):  # somebody has just deleted it
                yield ListedFile(path, table, generation, found.size, found.changed_ms)


def _is_ours(name: str) -> bool:
    return parse_staged_name(name) is not None or is_foreign_name(name) or is_manifest_name(name)


def _found(
    warehouse: Warehouse, table: JobTable, staged: tuple[ListedFile, ...], read: _Read | None
) -> Iterator[ListedFile]:
    """Yield the staged files with their times in the log, and other writers' files that the log removed."""
    if read is None:
        yield from staged
        return
    inside = len(table.name) + 1
    for file in staged:
        shown = read.history.shown(file.path[inside:])
        yield ListedFile(file.path, file.table, file.generation, file.bytes, file.modified_ms, shown)
    for path, shown in read.history.removed.items() if table.ours else ():
        if path.startswith(f"{STAGED}/") or not is_data_file(path):
            continue
        place = warehouse.place(table.name) / path
        with suppress(FileNotFoundError, NotADirectoryError, NotARegularFileError):
            found = place.described()
            yield ListedFile(place.name, table.name, None, found.size, found.changed_ms, shown)
