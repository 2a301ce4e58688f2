"""Reads from a table's log the files that the table showed earlier, in which versions, and when they were removed.

The log's entries are read, and in an object store many of them at the same time. If another program has deleted the
oldest entries, a file that these entries removed is assumed to have been removed when the first remaining entry was
written.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Literal
from urllib.parse import unquote

from pydantic import TypeAdapter, ValidationError

from checkpointing.commit.cleanup import (
    CleanupFacts,
    CleanUpLook,
    ListedFile,
    Referenced,
    Shown,
    TableSeen,
    Unneeded,
    is_unreferenced,
    log_floor,
    noted,
    oldest_with_leftovers,
    readable_cuts,
    standing,
)
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.identifiers import CheckpointId, Generation, InvalidNameError, TableName, table_name
from checkpointing.messages import RunMicroBatch
from checkpointing.metadata.paths import (
    STAGED,
    ProtocolPaths,
    is_data_file,
    is_foreign_name,
    is_manifest_name,
    parse_generation,
    parse_staged_name,
)
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.storage.folder import Folder
from jobs.storage.place import StoragePlace, drop_if_empty, in_threads, together
from jobs.storage.port import Listed, NotARegularFileError
from jobs.warehouse import log_lengths
from jobs.warehouse.cuts_table import Cut, ReservationStore
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.log_entries import ENTRY, log_of
from jobs.warehouse.output_tables import JOB_PROPERTY
from jobs.warehouse.table_snapshot import KnownTable, active_paths, delta_table
from jobs.warehouse.warehouse import Warehouse

_HEAD_BYTES: Final = 16
"""The number of bytes at the beginning of a line that name its action."""

_Actions = tuple[set[str], dict[str, int], bool]
"""The files that an entry adds, and the files that it removes, with the time of removal in the entry.

The last item says whether the entry removes erased files, which no version shows any more (`log_rewriting`).
"""


@dataclass(slots=True)
class TableHistory:
    """The files that a log has removed: from a path inside the table to when the table showed the file.

    `before` is the period before the log's entries.
    """

    removed: dict[str, tuple[Shown, ...]] = field(default_factory=dict)
    before: Shown | None = None
    whole: range = range(0)
    """The newest versions of the log, back to a missing entry."""

    def tells_of(self, version: int, newest: int) -> bool:
        """Return whether the log has all entries between these two versions."""
        return version in self.whole and newest in self.whole

    def removed_since(self, version: int) -> Iterator[str]:
        """Yield the files that the table showed at a known version and has removed since."""
        for path, times in self.removed.items():
            if any(shown.first <= version < shown.until for shown in times):
                yield path

    def shown(self, path: str) -> tuple[Shown, ...]:
        """Return the past periods in which the log showed a file that it does not show now."""
        if path in self.removed:
            return self.removed[path]
        return () if self.before is None else (self.before,)


def read_history(folder: StoragePlace) -> TableHistory:
    """Return a table's history. Raises OSError for an unreadable entry, ValueError for an entry that is not JSON."""
    log = log_of(folder)
    found = ((ENTRY.fullmatch(each.name), each) for each in log.entries())
    entries = sorted(((int(name[1]), each) for name, each in found if name), key=itemgetter(0))
    history = TableHistory()
    if entries and entries[0][0] > 0:
        version, first = entries[0]
        history.before = Shown(0, version, first.changed_ms)
    since: dict[str, int] = {}
    threads = 1 if isinstance(folder.storage, Folder) else len(entries)
    read = in_threads(threads, lambda entry: _actions((log / entry[1].name).read()), entries)
    for (version, each), actions in zip(entries, read, strict=True):
        begun = history.whole.start if version == history.whole.stop else version
        history.whole = range(begun, version + 1)
        _take(version, each, actions, since, history)
    return history


def _take(version: int, entry: Listed, actions: _Actions, since: dict[str, int], history: TableHistory) -> None:
    adds, removes, erases = actions
    for path, removed_ms in removes.items():
        if erases and path not in adds and path not in since:
            history.removed[path] = (Shown(0, 0, max(removed_ms, entry.changed_ms)),)
        elif path not in adds:  # else it only got other properties, such as a deletion vector
            shown = Shown(since.pop(path, 0), version, max(removed_ms, entry.changed_ms))
            history.removed[path] = (*history.removed.get(path, ()), shown)
    for path in adds:
        since.setdefault(path, version)


def _actions(entry: bytes) -> _Actions:
    adds: set[str] = set()
    removes: dict[str, int] = {}
    erases = False
    for line in entry.splitlines():
        head = line[:_HEAD_BYTES]
        erases = erases or (b'"commitInfo"' in head and b'"erases": true' in line)
        if b'"add"' in head:
            adds.add(_path(json.loads(line)["add"]))
        elif b'"remove"' in head:
            remove = json.loads(line)["remove"]
            removes[_path(remove)] = remove.get("deletionTimestamp") or 0
    return adds, removes, erases


def _path(action: dict[str, Any]) -> str:
    return unquote(str(action["path"]))


# ------------------------------------------------------------------
# Stores what earlier clean-ups observed, in a small file. If the file is lost, the grace period starts again.


@dataclass(frozen=True, slots=True)
class _LooksFile:
    format: Literal[1] = 1
    looks: tuple[CleanUpLook, ...] = ()


_FILE: Final = TypeAdapter(_LooksFile)


def read_looks(warehouse: Warehouse) -> tuple[CleanUpLook, ...]:
    """Return the looks of earlier clean-ups.

    There are none if the file is missing or unreadable, which only delays deletions.
    """
    try:
        content = warehouse.place(warehouse.paths.cleanup_looks).read()
        return _FILE.validate_json(content).looks
    except (OSError, ValidationError):
        return ()


def note_look(
    warehouse: Warehouse, earlier: tuple[CleanUpLook, ...], now: CleanUpLook, grace_ms: int
) -> tuple[CleanUpLook, ...]:
    """Store a look, and return all kept looks.

    If two clean-ups run at the same time, a look may be lost, which only delays deletions.
    """
    kept = noted(earlier, now, grace_ms)
    content = _FILE.dump_json(_LooksFile(looks=kept), indent=1)
    warehouse.place(warehouse.paths.cleanup_looks).replace(content, durable=False)
    return kept


# ------------------------------------------------------------------
# Finds the folders in which a job stages files: output tables, operators' states, channels, and the manifests.
#
# The pipeline is not used for this, because a clean-up must also find what an older version of the pipeline wrote.


@dataclass(frozen=True, slots=True)
class HeldLogs:
    """A job's logs that are already open, so that looking at them again is cheap."""

    warehouse: Warehouse
    rows: Callable[[], tuple[Row, ...]]
    """Returns the entries of `checkpoints`, newest first. Raises the codec's errors."""
    cuts: Callable[[], dict[CheckpointId, Cut]]
    """Returns every recorded cut."""
    newest: Callable[[TableName], AbstractContextManager[KnownTable]]
    """Lends a table at its newest version. Raises the error of delta-rs if the table cannot be read."""


@dataclass(frozen=True, slots=True, order=True)
class JobTable:
    """A folder of the job. If `ours`, this job created the table and may delete all files that its log has removed."""

    name: TableName
    ours: bool

    def has_log(self, paths: ProtocolPaths) -> bool:
        """Return whether the folder is a table, whose log decides what is needed. Channels and manifests are none."""
        return not self.name.startswith(f"{paths.channels}/") and self.name != paths.manifests


def job_tables(logs: HeldLogs) -> tuple[JobTable, ...]:
    """Return the job's folders in order of their names, without tables of other jobs in the warehouse."""
    warehouse = logs.warehouse
    named = {table for cut in logs.cuts().values() for table in cut}
    named |= {table.table for row in logs.rows() if isinstance(row, CheckpointRecord) for table in row.tables}
    found = {JobTable(name, ours=True) for name in _made_by_job(logs)} | set(_own(warehouse))
    known = {table.name for table in found}
    there = {JobTable(name, ours=False) for name in named - known if warehouse.place(name).is_folder()}
    return tuple(sorted(found | there))


def _own(warehouse: Warehouse) -> Iterator[JobTable]:
    for root in (warehouse.paths.states, warehouse.paths.channels):
        yield from (JobTable(TableName(each.name), ours=True) for each in warehouse.place(root).folders())
    yield JobTable(warehouse.paths.manifests, ours=True)


def _made_by_job(logs: HeldLogs) -> Iterator[TableName]:
    """Yield the output tables that this job created, according to a property of the table."""
    for schema in logs.warehouse.place("").folders():
        for folder in schema.folders():
            name = _table_named(folder.name)
            if name is not None and log_of(folder).is_folder() and _owner(logs, name) == logs.warehouse.paths.job:
                yield name


def _table_named(text: str) -> TableName | None:
    try:
        return table_name(text)
    except InvalidNameError:
        return None


def _owner(logs: HeldLogs, table: TableName) -> str | None:
    try:
        with logs.newest(table) as known:
            return known.loaded.metadata().configuration.get(JOB_PROPERTY)
    except Exception:  # noqa: BLE001 - an unreadable table is skipped here; if an entry names it, it is found by that
        return None


# ------------------------------------------------------------------
# Deletes the files that a clean-up has selected, in an object store several at a time.
#
# An interrupted clean-up can simply be run again.


@dataclass(frozen=True, slots=True)
class Deleted:
    """The deleted files, and the files that could not be deleted, each with the reason."""

    files: tuple[Unneeded, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Return the deleted bytes."""
        return sum(each.file.bytes for each in self.files)


def delete_unneeded(warehouse: Warehouse, unneeded: Iterable[Unneeded]) -> Deleted:
    """Delete these files. If a file cannot be deleted, the others are still deleted."""

    def failure(each: Unneeded) -> str:
        try:
            gone = warehouse.delete(each.file.path)
        except OSError as error:
            return f"{each.file.path}: {error.strerror or error}"
        return "" if gone else f"{each.file.path}: lies behind a symbolic link; put the folder itself there"

    asked = tuple(unneeded)
    failures = together(warehouse.storage, failure, asked)
    gone = tuple(each for each, failed in zip(asked, failures, strict=True) if not failed)
    return Deleted(gone, tuple(filter(None, failures)))


def drop_empty_folders(warehouse: Warehouse, tables: Iterable[JobTable], current: Generation) -> None:
    """Delete the empty folders of older generations."""
    for table in tables:
        for folder in warehouse.place(warehouse.paths.staged_root(table.name)).folders():
            generation = parse_generation(folder.last)
            if generation is not None and generation < current:
                _drop_empty(folder)


def _drop_empty(folder: StoragePlace) -> None:
    """Delete a folder if it has no file. The folder may have a subfolder for each partition."""
    for inside in folder.folders() if isinstance(folder.storage, Folder) else ():
        _drop_empty(inside)
    drop_if_empty(folder)


# ------------------------------------------------------------------
# Collects the facts for a clean-up: first the existing files, then the entries, the cuts and the logs.
#
# The order matters: if an entry or a log begins to name a file meanwhile, the clean-up sees that the file is needed. If
# a table cannot be read at its newest version or at a recorded cut, none of its files is deleted, and the table is
# reported.


_UNFINISHED: Final = re.compile(r"\..+\.tmp")
"""The temporary file of a writer that died."""

_WAITS: Final = (
    "checkpoint {} is committed, and this clean-up found no cut of it. So all files that tables have shown stay. "
    "If the cut is missing, 'tidemark run' or the next tick in Dagster records it. Clean up again after that"
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The facts, the look at the tables for later clean-ups, and the reasons why files or tables were left alone.

    `look` is None if the clean-up found no cut of the newest checkpoint. Then it does not know all needed versions, and
    later clean-ups must not rely on its look.
    """

    facts: CleanupFacts
    look: CleanUpLook | None
    tables: tuple[JobTable, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """A table according to its log: its versions, the needed paths, and the removed files."""

    seen: TableSeen
    active: frozenset[str]
    history: TableHistory


def gather(logs: HeldLogs, current: Generation, grace_ms: int, *, others_hold: bool) -> Gathered:
    """Return the facts for a clean-up of a job. `current` is the generation of the last claim that the caller has seen.

    If no other tick holds the job, cuts that are not readable any more need no files. Changes nothing. Raises the
    codec's errors for entries that cannot be read.
    """
    warehouse = logs.warehouse
    tables = job_tables(logs)
    names = [table.name for table in tables]
    listed = together(warehouse.storage, lambda name: tuple(_staged(warehouse, name)), names)
    staged = dict(zip(names, listed, strict=True))
    rows, cuts = logs.rows(), logs.cuts()
    kept = cuts.keys() if others_hold else readable_cuts(rows, cuts.keys())
    reservations = ReservationStore(warehouse).reservations()  # after the cuts: see jobs/warehouse/cuts_table.py
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
    """Return a table according to its log. The history is read last, so it has all removals."""
    folder = logs.warehouse.place(name)
    with logs.newest(name) as table:
        seen = table_seen(name, table.version(), cuts)
        active = set(_named(table.paths(), name))
    history = read_history(folder)
    for version in seen.cuts - {seen.newest}:
        told = history.tells_of(version, seen.newest)
        paths = history.removed_since(version) if told else active_paths(delta_table(folder, version))
        active.update(_named(paths, name))
    return _Read(seen, frozenset(active), history)


def table_seen(name: TableName, newest: int, cuts: Collection[Cut]) -> TableSeen:
    """Return the versions of a table in a look: the newest version, and the versions in recorded cuts."""
    versions = frozenset(cut[name] for cut in cuts if name in cut)
    return TableSeen(newest, versions, in_every_cut=all(name in cut for cut in cuts))


def _named(paths: Iterable[str], name: TableName) -> Iterator[str]:
    """Yield paths inside a table as paths relative to the warehouse, once unchanged and once URL-decoded."""
    for path in paths:
        yield f"{name}/{path}"
        yield f"{name}/{unquote(path)}"


def _staged(warehouse: Warehouse, table: TableName) -> Iterator[ListedFile]:
    """Yield the files that generations staged for a table, including unfinished ones, and no other files."""
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
    """Yield the staged files with the periods in which the log showed them, and removed files of other writers."""
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


# ------------------------------------------------------------------
# Deletes log entries of output tables some time after the last reader could need them.
#
# A retained cut needs the entries since its version. A plain reader needs the entries since the version at which it
# began. Clean-ups record these versions (`CleanUpLook`). Older entries may be deleted. Every Delta writer deletes old
# entries by their age. So a commit's cost does not grow with the number of checkpoints (P9).


@dataclass(frozen=True, slots=True)
class LogKeeping:
    """Entries are kept for `grace_ms` after a reader last needed them, and at least until they are `keep_ms` old."""

    grace_ms: int
    keep_ms: int

    def shorten(
        self, log: DeltaLog, name: TableName, looks: Collection[CleanUpLook], cuts: Collection[Cut], now_ms: int
    ) -> None:
        """Delete the unneeded entries of one table's log. `looks` are the looks of earlier clean-ups.

        Only the holder of the job may call it. Raises OSError for an entry that cannot be read.
        """
        now = CleanUpLook(now_ms, {name: table_seen(name, log.known().version(), cuts)})
        floor = log_floor((*looks, now), name, now_ms, self.grace_ms)
        kept_s = max(self.keep_ms, self.grace_ms) / 1000
        if floor and log_lengths.drop_entries(log.folder, floor, kept_s=kept_s, now_s=now_ms / 1000):
            log.reopen()


# ------------------------------------------------------------------
# Deletes files that older generations staged and that nothing can refer to.
#
# `checkpointing.commit.cleanup` has the rule. A file is not deleted if its name is not the name of a staged file.


LISTED_ALONE: Final = 4
"""Up to this many generations, their folders are listed one by one. For more, all files of the table are listed."""


def delete_leftovers(
    warehouse: Warehouse, tables: Iterable[TableName], *, current: Generation, by: Referenced
) -> tuple[str, ...]:
    """Delete the leftovers in these tables' folders. Return their warehouse-relative paths, in order.

    If the process dies before the end, the next tick deletes the rest.
    """
    found = together(
        warehouse.storage, lambda table: sorted(_of_table(warehouse, table, current=current, by=by)), tables
    )
    paths = [path for of_table in found for path in of_table]
    deleted = together(warehouse.storage, warehouse.delete, paths)
    return tuple(path for path, gone in zip(paths, deleted, strict=True) if gone)


def delete_unfinished(warehouse: Warehouse, tables: Iterable[TableName], effect: RunMicroBatch) -> None:
    """Delete the files of a failed micro-batch, so that a full disk has room again.

    A file can remain because a task writes it later, or because the system refuses. A clean-up deletes such a file.
    """
    for table in tables:
        folder = warehouse.paths.staged_folder(table, Generation(effect.generation))
        with suppress(OSError):
            for file in [*warehouse.place(folder).entries(deep=True)]:
                name = parse_staged_name(file.name)
                if name is not None and (name.vertex, name.micro_batch) == (effect.vertex, effect.micro_batch):
                    warehouse.delete(f"{folder}/{file.name}")


def own_folders(warehouse: Warehouse) -> Iterator[TableName]:
    """Yield every folder of state and of channels, including folders of vertices that the pipeline no longer has."""
    for root in (warehouse.paths.states, warehouse.paths.channels):
        yield from (TableName(folder.name) for folder in warehouse.place(root).folders())


def staging_folders(graph: JobGraph, paths: ProtocolPaths) -> tuple[TableName, ...]:
    """Return every folder into which the job's vertices stage files: of tables, states and channels."""
    tables = [table.name for table in graph.tables()]
    states = [paths.state_table(vertex.id) for vertex in graph.operators() if vertex.kind is VertexKind.KEYED]
    channels = [paths.channel(vertex.id) for vertex in graph.operators()]
    return tuple(dict.fromkeys([*tables, *states, *channels]))


def _of_table(warehouse: Warehouse, table: TableName, *, current: Generation, by: Referenced) -> Iterator[str]:
    for generation, last in _staged_earlier(warehouse, table, oldest_with_leftovers(by), current):
        name, path = parse_staged_name(last), f"{warehouse.paths.staged_folder(table, generation)}/{last}"
        if name is not None and is_unreferenced(path, name, generation, current=current, by=by):
            yield path


def _staged_earlier(
    warehouse: Warehouse, table: TableName, oldest: Generation, current: Generation
) -> Iterator[tuple[Generation, str]]:
    """Yield the generation and name of each file that generations from `oldest` to before `current` staged.

    Usually this is a single generation. Then only its folder is listed, and not the files of a thousand checkpoints.
    For more than `LISTED_ALONE` generations, files of generations before `oldest` are yielded too.
    """
    if current - oldest <= LISTED_ALONE:
        for generation in map(Generation, range(oldest, current)):
            staged = warehouse.place(warehouse.paths.staged_folder(table, generation))
            yield from ((generation, file.name) for file in staged.entries(deep=True))
        return
    for file in warehouse.place(warehouse.paths.staged_root(table)).entries(deep=True):
        folder, _, last = file.name.partition("/")
        by = parse_generation(folder)
        if by is not None and by < current:
            yield by, last
