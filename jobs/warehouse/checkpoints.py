"""Writes and reads the manifests of `checkpoints` as compressed, durable files, several files at the same time."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from checkpointing.commit.erasure import forgotten
from checkpointing.commit.fencing import newest_claim
from checkpointing.commit.manifests import (
    SIZES,
    Handles,
    Manifest,
    Stored,
    counted_by,
    handles_in,
    newest_stored,
    path_of,
    stored,
    unfit,
    whole,
)
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.codec import ROW_CHARACTERS_MAX, UnreadableRowError, decode_stored, encode, kind_of
from checkpointing.metadata.record import CheckpointRecord, Claim, ManifestReference, Release, Row, RowKind
from jobs.storage.place import beside, together
from jobs.warehouse import log_lengths
from jobs.warehouse.delta_log import DeltaLog, FaultHook, no_fault, remove
from jobs.warehouse.internal_tables import RowFiles, is_own, opened
from jobs.warehouse.log_entries import LogEntry, entries_after, entry_place, newest_entries
from jobs.warehouse.table_snapshot import KnownTable, delta_table
from jobs.warehouse.warehouse import Warehouse

THREADS: Final = 16

_CODEC: Final = "zstd"


class ManifestFiles:
    """The manifests of one job. The handles of a manifest stay in memory as long as an entry names it."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Read no manifest yet."""
        self._warehouse = warehouse
        self._handles: dict[str, Handles | UnreadableRowError] = {}

    def write(self, stored: Stored) -> None:
        """Write the new manifests of an entry. They are durable on return.

        A file that exists already is left as it is. Its name has the checksum of its content, so its content is the
        same.
        """
        if stored.new:
            with ThreadPoolExecutor(min(THREADS, len(stored.new)), thread_name_prefix="manifest") as pool:
                list(pool.map(self._write, stored.new, stored.new.values()))
        self._handles |= {path_of(stored.entry, each): each.handles for each in stored.manifests}

    def read(self, entries: Iterable[CheckpointRecord]) -> None:
        """Read all manifests of these entries that are not in memory yet. Forget the manifests of all other entries."""
        wanted = {path_of(entry, each): (entry, each) for entry in entries for each in entry.manifests}
        known = {path: self._handles[path] for path in wanted if isinstance(self._handles.get(path), Handles)}
        missing = [path for path in wanted if path not in known]
        if missing:
            with ThreadPoolExecutor(min(THREADS, len(missing)), thread_name_prefix="manifest") as pool:
                found = list(pool.map(lambda path: self._read(*wanted[path]), missing))
            known |= zip(missing, found, strict=True)
        self._handles = known

    def of(self, entry: CheckpointRecord) -> tuple[Manifest, ...]:
        """Return the manifests of an entry, which `read` must have read before. Raises UnreadableRowError."""
        return tuple(counted_by(entry, each, self._handles_of(entry, each)) for each in entry.manifests)

    def _handles_of(self, entry: CheckpointRecord, reference: ManifestReference) -> Handles:
        found = self._handles[path_of(entry, reference)]
        if isinstance(found, UnreadableRowError):
            raise found
        return found

    def _write(self, path: str, content: bytes) -> None:
        with suppress(FileExistsError):
            self._warehouse.place(path).write(pa.compress(content, _CODEC, asbytes=True))

    def _read(self, entry: CheckpointRecord, reference: ManifestReference) -> Handles | UnreadableRowError:
        path = path_of(entry, reference)
        try:
            packed = pa.BufferReader(self._warehouse.place(path).read(ROW_CHARACTERS_MAX))
            with pa.CompressedInputStream(packed, _CODEC) as content:
                return handles_in(entry, reference, content.read(ROW_CHARACTERS_MAX))
        except UnreadableRowError as error:
            return error
        except (OSError, pa.ArrowException) as error:
            return unfit(entry, f"{path} cannot be read ({type(error).__name__}: {error})")


# ------------------------------------------------------------------
# Appends entries to the Delta table `checkpoints` by compare-and-swap. A checkpoint's append is THE COMMIT POINT.
#
# One Delta commit adds an entry as one small Parquet file. The process that appends names the version that it has seen,
# and its commit becomes the next version or fails. If the log replies with anything but success, the store searches the
# table for the entry's nonce. If the nonce is found, the entry is in the table. If another commit has taken the
# version, the entry is not in the table and never will be. If the version is still free, the outcome is not known yet.
# Then only another commit (a new claim) decides it.
#
# An appended entry is durable. Its manifests and its file are synced before the commit, and the log entry is synced
# after it. Before that, `JobEntries.append` makes the files durable that a checkpoint names.


GENERATIONS_KEPT: Final = 20
"""The number of generations whose claims and releases are kept. These entries show which ticks held the job."""

NO_MARKS: Final[Mapping[CheckpointId, bool]] = MappingProxyType({})

SCHEMA: Final = pa.schema(
    [
        pa.field("version", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("checkpoint", pa.int64()),
        pa.field("generation", pa.int64()),
        pa.field("nonce", pa.string()),
        pa.field("at_ms", pa.int64()),
        pa.field("payload", pa.string()),
    ]
)

SMALL_TABLE: Final = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 0 seconds",
    "delta.checkpointInterval": "1000000",
}
"""Properties of Tidemark's own tables.

Only `log_lengths` deletes the row files of these tables, and a VACUUM ignores the files. So a Delta log checkpoint need
not name removed files.
"""


@dataclass(frozen=True, slots=True)
class Appended:
    """The entry is in the table since version `version`, and durable."""

    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The entry is not in the table and never will be. `holder` says who took its version."""

    holder: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It is not known yet whether the entry is or will be in the table. `error` is the reply of the log."""

    error: str


AppendResult = Appended | Refused | Unknown


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """An entry, or a file of entries, that cannot be read. `checkpoint` is the entry's checkpoint id, if known."""

    name: str
    checkpoint: CheckpointId | None
    why: str

    def __str__(self) -> str:
        """Return the damage as messages describe it."""
        return f"{self.name} cannot be read ({self.why})"


class CheckpointStore:
    """The `checkpoints` table of one job."""

    def __init__(self, warehouse: Warehouse, *, hook: FaultHook = no_fault, beyond_damage: bool = False) -> None:
        """Open the table. The job's first tick creates it.

        With `beyond_damage`, the store ignores unreadable entries of checkpoints. The next append of a checkpoint drops
        them. The entries that the fence needs must be readable.
        """
        self._warehouse = warehouse
        self._log = DeltaLog(warehouse.place(warehouse.paths.checkpoints), hook=hook, small=True)
        self._files = RowFiles(self._log.folder, SCHEMA, nullable=frozenset({"checkpoint"}))  # a claim has none
        self._beyond_damage = beyond_damage
        self._manifests = ManifestFiles(warehouse)
        self._stored: dict[str, Row] = {}
        """From an entry's text to its stored form."""
        self._decoded: dict[str, Row] = {}
        """From an entry's text to its whole form, with its manifests."""
        self._damaged: dict[str, DamagedRow] = {}
        """From the nonce of an entry or the path of a file to its damage."""
        self._seen: tuple[int, tuple[Row, ...]] | None = None
        """The version that this store committed or read last, and its entries, newest first."""
        self._log.create(SCHEMA, dict(SMALL_TABLE))

    def observe(self) -> tuple[int, tuple[Row, ...]]:
        """Return the table's version and its entries, newest first.

        Raises UnknownFormatError or UnreadableRowError (see the codec) for an entry that cannot be read.
        """
        seen = None
        while True:
            self._log.look_anew()
            table = opened(self._warehouse, self._log, self._warehouse.paths.checkpoints)
            version = table.version()
            try:
                self._seen = version, self._rows(table)
            except UnreadableRowError:
                if version == seen:
                    raise
                seen = version  # a clean-up may have deleted the manifests of an entry that was dropped meanwhile
            else:
                return self._seen

    def identity(self) -> str:
        """Return the id of the table. No other warehouse has this id, except a copy of all files."""
        return str(self._log.known().loaded.metadata().id)

    def observe_at(self, version: int) -> tuple[Row, ...]:
        """Return the entries at one of the table's last `log_lengths.EVERY_VERSIONS` versions, newest first.

        A reader calls this for an entry that was subsumed later. Raises the error of delta-rs for a missing version.
        """
        return self._rows(KnownTable(delta_table(self._log.folder, version), self._log.folder.name))

    def latest(self) -> tuple[Row, ...]:
        """Return the entries like `observe`. Nothing is read if no process has committed since the last look."""
        if self._seen is not None and self._log.ends_at(self._seen[0]):
            return self._seen[1]
        return self.observe()[1]

    def known(self) -> tuple[Row, ...]:
        """Return the entries as of this store's last commit or look. An append fails if others have appended since."""
        return self._seen[1] if self._seen is not None else self.observe()[1]

    @property
    def damaged(self) -> tuple[DamagedRow, ...]:
        """The entries and files that the last look ignored because they are damaged."""
        return tuple(self._damaged.values())

    def append(
        self,
        row: Row,
        at_version: int,
        subsumed: Collection[CheckpointId] = (),
        *,
        disposed: Collection[CheckpointId] = (),
        marks: Mapping[CheckpointId, bool] = NO_MARKS,
        make_durable: Callable[[], None] = lambda: None,
    ) -> AppendResult:
        """Append the entry if the table is at `at_version`. The same commit drops the subsumed checkpoints.

        `make_durable` makes the files durable that the entry names. It runs in another thread while the entry is
        written. The commit waits until it has returned. If it raises, nothing is committed.

        Savepoints are never subsumed. The same commit also drops the entries that a user has `disposed` of, and those
        that a rollback has abandoned. `marks` says which entries the commit marks as abandoned, or as no longer
        abandoned. After Unknown, a second call is safe: if the nonce is in the table, the store finds the nonce.
        """
        changes = _Changes(row, frozenset(subsumed), frozenset(disposed), marks)
        try:
            table = self._log.known()
            if table.version() == at_version:
                with beside(make_durable) as durable:
                    entries = self._commit(table, changes, durable)
                self._log.sync(at_version + 1)
                self._note(at_version + 1, entries)
                return Appended(at_version + 1)
            met = f"`checkpoints` is at version {table.version()}, not {at_version}"
        except Exception as error:  # noqa: BLE001 - after any error, only the table says what happened
            met = f"{type(error).__name__}: {error}"
        return self._read_back(row, at_version, met)

    def maintain(self) -> None:
        """Shorten the log. The caller must hold the job. Do not call it on the commit path."""
        log_lengths.shorten(self._log, now_s=self._warehouse.now_ms() / 1000)

    def erased_since(self, moment_ms: int) -> bool:
        """Return whether rows were erased after this moment. If so, readers of the older log may still be at work."""
        entries = newest_entries(self._log.folder, self._log.current().version())
        found = (entry.version for entry in entries if (entry.ours or {}).get("row") == RowKind.FORGET.value)
        newest = next(found, None)
        return newest is not None and entry_place(self._log.folder, newest).described().changed_ms > moment_ms

    def drop_older_versions(self, kept_ms: int) -> None:
        """Drop all versions of the table before its newest version. The caller must hold the job."""
        now_s = self._warehouse.now_ms() / 1000
        log_lengths.drop_older_versions(self._log, now_s=now_s, kept_s=kept_ms / 1000)

    def _note(self, version: int, entries: list[dict[str, Any]]) -> None:
        """Store the entries of the version that was just committed, unless one of them was never decoded."""
        entries.sort(key=lambda entry: int(entry["version"]), reverse=True)
        rows = tuple(self._decoded[entry["payload"]] for entry in entries if entry["payload"] in self._decoded)
        self._seen = (version, rows) if len(rows) == len(entries) and not self._damaged else None

    def _commit(self, table: KnownTable, changes: "_Changes", durable: Callable[[], None]) -> list[dict[str, Any]]:
        """Commit the changes once `durable` has returned. Return all entries that the table has now."""
        at_ms, row, version = self._warehouse.now_ms(), changes.row, table.version() + 1
        survivors, staying = list[dict[str, Any]](), list[dict[str, Any]]()
        actions: list[Any] = []
        found, unreadable = self._entries(table)
        leaves = self._damaged if isinstance(row, CheckpointRecord) else {}
        for path, entries in found.items():
            sound = [entry for entry in entries if entry["nonce"] not in leaves]
            kept = list(changes.apply(sound, self._warehouse.writer))
            if isinstance(row, CheckpointRecord) and row.kind is RowKind.FORGET:
                kept = [self._forgotten(entry, row) for entry in kept]
            staying += kept
            if kept != list(entries) or not is_own(path):
                actions.append(remove(path, at_ms))
                survivors.extend(kept)
        actions += [remove(path, at_ms) for path in unreadable if path in leaves]
        form = self._in_manifests(row, found) if isinstance(row, CheckpointRecord) else None
        fresh = _entry(row if form is None else form.entry, version, at_ms, self._warehouse.writer)
        calls: list[Callable[[], object]] = [lambda: self._log.must_have(table.version())]
        calls.append(lambda: None if form is None else self._manifests.write(form))
        calls.append(lambda: actions.append(self._files.write(f"{version:020d}", [*survivors, fresh], at_ms)))
        together(self._log.folder.storage, lambda call: call(), calls)
        durable()
        self._log.commit(table, actions, says=_says(row))
        self._stored[fresh["payload"]] = row if form is None else form.entry
        self._decoded[fresh["payload"]] = row if form is None else row.model_copy(update={"held_in": form.held_in})
        return [*staying, fresh]

    def _forgotten(self, entry: dict[str, Any], by: CheckpointRecord) -> dict[str, Any]:
        """Return an entry without the files that `by` erased. New manifests are written for it, and are durable."""
        known = self._decoded[entry["payload"]]
        row = forgotten(known, by.erased)
        if row == known:
            return entry
        form = row
        if isinstance(row, CheckpointRecord):
            written = stored(row.model_copy(update={"generation": by.generation}), None, SIZES)
            self._manifests.write(written)
            form = written.entry.model_copy(update={"generation": row.generation})
            row = row.model_copy(update={"held_in": written.held_in})
        payload = encode(form, writer=self._warehouse.writer)
        self._stored[payload], self._decoded[payload] = form, row
        return entry | {"payload": payload}

    def _in_manifests(self, row: CheckpointRecord, found: Mapping[str, tuple[dict[str, Any], ...]]) -> Stored:
        """Return the stored form of an entry to append to these entries. Its new manifests are not written yet.

        An entry that erases rows names no older manifest, since an older manifest has the bounds of erased files.
        """
        if row.kind is RowKind.FORGET:
            return stored(row, None, SIZES)
        entries = sorted((each for file in found.values() for each in file), key=lambda each: -(each["version"] or 0))
        texts = [each["payload"] for each in entries if each["payload"] in self._decoded]
        newest = newest_stored(self._stored[text] for text in texts)
        whole_form = next((self._decoded[text] for text in texts if self._stored[text] is newest), None)
        if newest is None or not isinstance(whole_form, CheckpointRecord):
            return stored(row, None, SIZES)
        return stored(row, Stored(whole_form, newest, self._manifests.of(newest)), SIZES)

    def _read_back(self, row: Row, at_version: int, met: str) -> AppendResult:
        try:
            table = self._log.reopen()
            after = list(entries_after(self._log.folder, table.version(), at_version))
            mine = next((entry for entry in after if entry.ours and entry.ours.get("nonce") == row.nonce), None)
            if mine is not None:
                self._log.sync(mine.version)
                return Appended(mine.version)
            rows, _ = self._entries(table)
            there = next((entry for file in rows.values() for entry in file if entry["nonce"] == row.nonce), None)
            if there is not None:
                return Appended(there["version"])
            taken = next((entry for entry in after if entry.version == at_version + 1), None)
            return Unknown(met) if taken is None else Refused(self._taker(table, row, taken))
        except Exception as error:  # noqa: BLE001 - if the table cannot be read, the outcome is unknown
            return Unknown(f"{met}; reading back failed too: {type(error).__name__}: {error}")

    def _taker(self, table: KnownTable, row: Row, taken: LogEntry) -> str:
        claim = newest_claim(self._rows(table))
        if taken.ours is None:
            return f"a foreign commit to `checkpoints`, {taken}; nobody but Tidemark may write there"
        if claim is None or (isinstance(row, CheckpointRecord | Release) and claim.generation == row.generation):
            return f"another append of this generation, {taken}"
        return f"{claim.holder}, generation {claim.generation}"

    def _entries(self, table: KnownTable) -> tuple[dict[str, tuple[dict[str, Any], ...]], dict[str, str]]:
        """Return for each file its entries, and for each unreadable file its damage. Raise UnreadableRowError."""
        found, unreadable = self._files.read_sound(table.paths())
        if unreadable and not self._beyond_damage:
            path, why = next(iter(unreadable.items()))
            raise UnreadableRowError(str(self._damaged_file(path, why)))
        return found, unreadable

    def _rows(self, table: KnownTable) -> tuple[Row, ...]:
        found, unreadable = self._entries(table)
        entries = [entry for file in found.values() for entry in file]
        entries.sort(key=lambda entry: entry["version"] or 0, reverse=True)
        self._damaged = {path: self._damaged_file(path, why) for path, why in unreadable.items()}
        self._stored = self._sound(entries, self._stored_of)
        self._manifests.read(row for row in self._stored.values() if isinstance(row, CheckpointRecord))
        self._decoded = self._sound(entries, self._whole_of)
        rows = tuple(self._decoded[entry["payload"]] for entry in entries if entry["payload"] in self._decoded)
        if unreadable:
            self._must_know_the_fence(table, rows)
        return rows

    def _sound(self, entries: list[dict[str, Any]], read: Callable[[dict[str, Any]], Row | None]) -> dict[str, Row]:
        """Return a dict from the text of each entry to the result of `read`, without entries for which this is None.

        Raise UnreadableRowError for an entry that `read` cannot read. If the store reads beyond damage, leave this
        entry out and record its damage instead, unless the entry is a claim or a release.
        """
        rows: dict[str, Row] = {}
        for entry in entries:
            try:
                row = read(entry)
            except UnreadableRowError as error:
                if not self._beyond_damage or entry["kind"] in _OF_THE_FENCE:
                    raise
                named = f"the entry of {entry['kind']} {entry['checkpoint']}"
                self._damaged[entry["nonce"]] = DamagedRow(named, entry["checkpoint"], str(error))
            else:
                rows |= {} if row is None else {entry["payload"]: row}
        return rows

    def _stored_of(self, entry: dict[str, Any]) -> Row:
        known = self._stored.get(entry["payload"])
        return known if known is not None else self._own(entry, decode_stored(entry["payload"]))

    def _whole_of(self, entry: dict[str, Any]) -> Row | None:
        row, known = self._stored.get(entry["payload"]), self._decoded.get(entry["payload"])
        if known is not None or not isinstance(row, CheckpointRecord):
            return known or row
        return whole(row, self._manifests.of(row))

    def _own(self, entry: dict[str, Any], row: Row) -> Row:
        """Return the entry. Raise UnreadableRowError if it is another job's, or its columns contradict its text."""
        job = self._warehouse.paths.job
        if isinstance(row, CheckpointRecord) and row.job != job:
            raise UnreadableRowError(
                f"the entry of {row.kind.value} {row.checkpoint} is of job {row.job} and lies among those of {job}: "
                f"restore {self._log.folder} from a backup"
            )
        columns = _columns(row)
        wrong = [name for name, value in columns.items() if entry[name] != value]
        if wrong or not isinstance(entry["version"], int):
            name = wrong[0] if wrong else "version"
            raise UnreadableRowError(
                f"an entry of {self._log.folder} says {name} {entry[name]!r} in its column and "
                f"{columns.get(name)!r} in its text: restore the folder from a backup"
            )
        return row

    def _damaged_file(self, path: str, why: str) -> DamagedRow:
        return DamagedRow(f"file {path} in {self._log.folder}", None, why)

    def _must_know_the_fence(self, table: KnownTable, rows: tuple[Row, ...]) -> None:
        """Raise UnreadableRowError if a damaged file may hold a newer claim than the readable entries."""
        newest, claim = next(newest_entries(self._log.folder, table.version())), newest_claim(rows)
        if claim is None or (newest.ours or {}).get("generation") != claim.generation:
            lost = next(iter(self._damaged.values()))
            raise UnreadableRowError(f"{lost}, and who held the job last is not known without it: restore the file")


def _says(row: Row) -> dict[str, object]:
    """Return the note on an entry for the log. It can be read even if the entry cannot."""
    return {"row": kind_of(row).value, "nonce": row.nonce, "generation": row.generation}


_OF_THE_FENCE: Final = frozenset({RowKind.CLAIM.value, RowKind.RELEASE.value})


def _entry(row: Row, version: int, at_ms: int, writer: str) -> dict[str, Any]:
    return {"version": version, **_columns(row), "at_ms": at_ms, "payload": encode(row, writer=writer)}


def _columns(row: Row) -> dict[str, Any]:
    """Return the values of an entry's columns other than its text."""
    return {
        "kind": kind_of(row).value,
        "checkpoint": row.checkpoint if isinstance(row, CheckpointRecord) else None,
        "generation": row.generation,
        "nonce": row.nonce,
    }


@dataclass(frozen=True, slots=True)
class _Changes:
    """The changes that one append makes to the entries in the table."""

    row: Row
    subsumed: frozenset[CheckpointId]
    disposed: frozenset[CheckpointId]
    marks: Mapping[CheckpointId, bool]

    def apply(self, entries: Iterable[dict[str, Any]], writer: str) -> Iterator[dict[str, Any]]:
        """Yield the entries that stay, those in `marks` with their new mark and the others unchanged."""
        for entry in entries:
            if entry["checkpoint"] in self.disposed or self._is_subsumed(entry):
                continue
            marked = entry["checkpoint"] in self.marks
            yield _marked(entry, abandoned=self.marks[entry["checkpoint"]], writer=writer) if marked else entry

    def _is_subsumed(self, entry: dict[str, Any]) -> bool:
        if entry["kind"] in _SUBSUMABLE:
            return entry["checkpoint"] in self.subsumed
        if entry["kind"] in _OF_THE_FENCE:
            return isinstance(self.row, Claim) and entry["generation"] <= self.row.generation - GENERATIONS_KEPT
        return False


_SUBSUMABLE: Final = frozenset(
    kind.value for kind in (RowKind.CHECKPOINT, RowKind.ROLLBACK, RowKind.RESET, RowKind.FORGET)
)


def _marked(entry: dict[str, Any], *, abandoned: bool, writer: str) -> dict[str, Any]:
    """Return a checkpoint's entry, marked as abandoned or not. An entry that has this mark is returned unchanged."""
    record = decode_stored(entry["payload"])
    if not isinstance(record, CheckpointRecord) or record.abandoned is abandoned:
        return entry
    return entry | {"payload": encode(record.model_copy(update={"abandoned": abandoned}), writer=writer)}


# ------------------------------------------------------------------
# Finds the cuts of upstream jobs in an entry of `checkpoints` (A10). Imports neither Spark nor a source.


@dataclass(frozen=True, slots=True)
class UpstreamCut:
    """A cut of another job: its warehouse, job and checkpoint. `nonce` distinguishes cuts with the same number."""

    warehouse: str
    job: str
    checkpoint: CheckpointId
    nonce: str

    def __str__(self) -> str:
        """Return the cut's name in messages."""
        return f"cut {self.checkpoint} of {self.job} in {self.warehouse}"


class NamesCut(BaseModel):
    """The part of a position that names the cut, in a source that reads cuts."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    warehouse: str
    job: str
    cut: CheckpointId
    nonce: str
    at_cut: bool

    @property
    def upstream(self) -> UpstreamCut:
        """Return the cut."""
        return UpstreamCut(self.warehouse, self.job, self.cut, self.nonce)


def rests_on(record: CheckpointRecord | None) -> tuple[UpstreamCut, ...]:
    """Return the upstream cuts at which an entry's sources stand, each once."""
    vertices = record.vertices if record is not None else ()
    return cuts_at(subtask.position for vertex in vertices if vertex.splits for subtask in vertex.subtasks)


def cuts_at(positions: Iterable[str | None]) -> tuple[UpstreamCut, ...]:
    """Return the upstream cuts at these positions, each once. Ignore positions of other kinds of sources."""
    return tuple(dict.fromkeys(_cuts(positions)))


def _cuts(positions: Iterable[str | None]) -> Iterator[UpstreamCut]:
    for position in positions:
        with suppress(ValidationError):
            yield NamesCut.model_validate_json(position or "").upstream
