"""The Delta table `checkpoints`: every append is a compare-and-swap, and one of them is THE COMMIT POINT.

A row is one small Parquet file that one log entry adds. Whoever appends names the version it saw; the
append is that version's successor or nothing. Any reply of the log but success is unknown until the
row's nonce is looked for: found, the row is in; not found while another commit has taken that version,
it certainly is not and never will be; not found and the version free, nobody can tell yet, and only a
commit by somebody else (a new claim) settles it (design 3, corners).

Appended means durable: the row's file is synced before the commit and the log entry after it. A power
cut may still take staged files that their writers did not sync; their `crc32` shows it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_claim
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.codec import decode, encode, kind_of
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row, RowKind
from jobs.stores import maintenance
from jobs.stores.delta_log import DeltaLog, FaultHook, LogEntry, active_paths, entries_after, no_fault, remove
from jobs.stores.row_files import RowFiles
from jobs.stores.warehouse import Warehouse

GENERATIONS_KEPT: Final = 20
"""Claims and releases of this many generations stay readable: the history of who held the job."""

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
"""Of our own tables: their row files are deleted by `maintenance` alone, and a VACUUM passes them by, so a
Delta log checkpoint need not remember removed files."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The row is in, at that version, and durable."""

    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The row is not in and never will be: `holder` says who took its version."""

    holder: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Whether the row is in, or may still come in, cannot be told now; `error` is what was met."""

    error: str


AppendResult = Appended | Refused | Unknown


class CheckpointStore:
    """The `checkpoints` table of one job."""

    def __init__(self, warehouse: Warehouse, *, hook: FaultHook = no_fault) -> None:
        """Open the table, creating it if this is the job's first tick."""
        self._warehouse = warehouse
        self._log = DeltaLog(warehouse.path(warehouse.paths.checkpoints), hook=hook)
        self._files = RowFiles(self._log.folder, SCHEMA)
        self._decoded: dict[str, Row] = {}
        self._log.create(SCHEMA, dict(SMALL_TABLE))

    def observe(self) -> tuple[int, tuple[Row, ...]]:
        """Return the table's version and its rows, newest first.

        Raises UnknownFormatError or UnreadableRowError (see the codec) for a row that cannot be read.
        """
        table = self._log.current()
        return table.version(), self._rows(table)

    def append(
        self,
        row: Row,
        at_version: int,
        subsumed: Collection[CheckpointId] = (),
        *,
        disposed: Collection[CheckpointId] = (),
    ) -> AppendResult:
        """Append the row if the table is at `at_version`; the same commit drops the subsumed checkpoints.

        Savepoints are never subsumed; the same commit drops those that their owner has `disposed` of. Asking
        again after Unknown is safe: a nonce that is in is found.
        """
        try:
            table = self._log.current()
            if table.version() == at_version:
                self._commit(table, row, subsumed, disposed)
                self._log.sync(at_version + 1)
                return Appended(at_version + 1)
            met = f"`checkpoints` is at version {table.version()}, not {at_version}"
        except Exception as error:  # noqa: BLE001 - whatever it was, only reading back tells the outcome
            met = f"{type(error).__name__}: {error}"
        return self._read_back(row, at_version, met)

    def maintain(self) -> None:
        """Keep the log short. Call it while holding the job, away from the commit path."""
        if maintenance.shorten(self._log.folder, now_s=self._warehouse.now_ms() / 1000):
            self._log.reopen()

    def _commit(
        self, table: DeltaTable, row: Row, subsumed: Collection[CheckpointId], disposed: Collection[CheckpointId]
    ) -> None:
        at_ms = self._warehouse.now_ms()
        version = table.version() + 1
        survivors: list[dict[str, Any]] = []
        actions: list[Any] = []
        for path, entries in self._files.read(active_paths(table)).items():
            kept = [
                entry
                for entry in entries
                if entry["checkpoint"] not in disposed and not _is_subsumed(entry, row, subsumed)
            ]
            if len(kept) < len(entries):
                actions.append(remove(path, at_ms))
                survivors.extend(kept)
        fresh = _entry(row, version, at_ms, self._warehouse.writer)
        actions.append(self._files.write(f"{version:020d}", [*survivors, fresh], at_ms))
        self._log.commit(table, actions, says={"row": kind_of(row).value, "nonce": row.nonce})

    def _read_back(self, row: Row, at_version: int, met: str) -> AppendResult:
        try:
            table = self._log.reopen()
            after = list(entries_after(table, at_version))
            mine = next((entry for entry in after if entry.ours and entry.ours.get("nonce") == row.nonce), None)
            if mine is not None:
                self._log.sync(mine.version)
                return Appended(mine.version)
            rows = self._files.read(active_paths(table)).values()
            there = next((entry for file in rows for entry in file if entry["nonce"] == row.nonce), None)
            if there is not None:
                return Appended(there["version"])
            taken = next((entry for entry in after if entry.version == at_version + 1), None)
            return Unknown(met) if taken is None else Refused(self._taker(table, row, taken))
        except Exception as error:  # noqa: BLE001 - unreadable means unknown
            return Unknown(f"{met}; reading back failed too: {type(error).__name__}: {error}")

    def _taker(self, table: DeltaTable, row: Row, taken: LogEntry) -> str:
        claim = newest_claim(self._rows(table))
        if taken.ours is None:
            return f"a foreign commit to `checkpoints`, {taken}; nobody but Tidemark may write there"
        if claim is None or (isinstance(row, CheckpointRecord | Release) and claim.generation == row.generation):
            return f"another append of this generation, {taken}"
        return f"{claim.holder}, generation {claim.generation}"

    def _rows(self, table: DeltaTable) -> tuple[Row, ...]:
        entries = [entry for file in self._files.read(active_paths(table)).values() for entry in file]
        entries.sort(key=lambda entry: int(entry["version"]), reverse=True)
        self._decoded = {
            entry["nonce"]: self._decoded[entry["nonce"]]
            if entry["nonce"] in self._decoded
            else decode(entry["payload"])
            for entry in entries
        }
        return tuple(self._decoded[entry["nonce"]] for entry in entries)


def _entry(row: Row, version: int, at_ms: int, writer: str) -> dict[str, Any]:
    return {
        "version": version,
        "kind": kind_of(row).value,
        "checkpoint": row.checkpoint if isinstance(row, CheckpointRecord) else None,
        "generation": row.generation,
        "nonce": row.nonce,
        "at_ms": at_ms,
        "payload": encode(row, writer=writer),
    }


def _is_subsumed(entry: dict[str, Any], row: Row, subsumed: Collection[CheckpointId]) -> bool:
    if entry["kind"] == RowKind.CHECKPOINT.value:
        return entry["checkpoint"] in subsumed
    if entry["kind"] in (RowKind.CLAIM.value, RowKind.RELEASE.value):
        return isinstance(row, Claim) and entry["generation"] <= row.generation - GENERATIONS_KEPT
    return False
