"""The Delta table `cuts`: which version of each table belongs to checkpoint n, so that all can be read as one (K1)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from checkpointing.identifiers import CheckpointId, InvalidNameError, TableName
from checkpointing.metadata.codec import UnreadableRowError
from checkpointing.metadata.row_validity import NUMBER_MAX
from jobs.stores import maintenance
from jobs.stores.checkpoints import SMALL_TABLE
from jobs.stores.delta_log import DeltaLog, FaultHook, active_paths, no_fault, remove
from jobs.stores.own_tables import opened
from jobs.stores.row_files import RowFiles, is_own
from jobs.stores.warehouse import Warehouse

TRIES: Final = 10

SCHEMA: Final = pa.schema(
    [
        pa.field("checkpoint", pa.int64()),
        pa.field("table", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("published_at_ms", pa.int64()),
    ]
)

Cut = dict[TableName, int]
"""Table -> Delta version."""


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A cut and when it was recorded, the publication of its last table being complete; ms since the epoch."""

    checkpoint: CheckpointId
    published_at_ms: int
    versions: Mapping[TableName, int]


class CutsNotRecordedError(RuntimeError):
    """The cut could not be written; nothing is lost, since the next tick publishes and records it again."""


class CutStore:
    """The `cuts` table of one job. A row file that is lost is passed over: what it said is told again (`rebuilt`)."""

    def __init__(self, warehouse: Warehouse, *, hook: FaultHook = no_fault) -> None:
        """Open the table, creating it if this is the job's first tick."""
        self._warehouse = warehouse
        self._log = DeltaLog(warehouse.path(warehouse.paths.cuts), hook=hook)
        self._files = RowFiles(self._log.folder, SCHEMA)
        self._log.create(SCHEMA, dict(SMALL_TABLE))

    def record(
        self,
        checkpoint: CheckpointId,
        versions: Iterable[tuple[TableName, int]],
        retained: Collection[CheckpointId] | None = None,
    ) -> None:
        """Record the cut of a checkpoint, once, however often it is asked for; it is durable then.

        With `retained`, the same commit drops the cuts of all other checkpoints but this one. If a newer cut is
        recorded, nothing changes: another tick has taken the job over, and has recorded this cut before that one.
        What the caller knows as retained is older than the newer cut. Raises CutsNotRecordedError if the log refuses
        it, and OSError if it cannot be made durable.
        """
        rows = [self._row(checkpoint, table, version) for table, version in versions]
        met: Exception | None = None
        for _ in range(TRIES):
            table = self._log.current()
            if any(known >= checkpoint for known in self._cuts(table)):
                self._log.sync(table.version())
                return
            try:
                self._commit(table, checkpoint, rows, retained)
            except Exception as error:  # noqa: BLE001 - read back at the next turn
                met = error
                self._log.reopen()
                continue
            self._log.sync(table.version() + 1)
            return
        raise CutsNotRecordedError(f"the cut of checkpoint {checkpoint} could not be recorded: {met}")

    def drop(self, checkpoints: Collection[CheckpointId]) -> None:
        """Drop the cuts of these checkpoints; raise CutsNotRecordedError if the log refuses it."""
        met: Exception | None = None
        for _ in range(TRIES):
            table = self._log.current()
            known = self._cuts(table).keys()
            dropped = sorted(known & set(checkpoints))
            if not dropped:
                return
            survivors, actions = self._without(table, known - set(dropped))
            if survivors:
                actions.append(self._files.write(f"{dropped[-1]:020d}", survivors, self._warehouse.now_ms()))
            try:
                self._log.commit(table, actions, says={"cuts_dropped": dropped})
            except Exception as error:  # noqa: BLE001 - read back at the next turn
                met = error
                self._log.reopen()
        raise CutsNotRecordedError(f"the cuts of deleted checkpoints could not be dropped: {met}")

    def correct(
        self, changed: Mapping[CheckpointId, Mapping[TableName, int]], dropped: Collection[CheckpointId]
    ) -> None:
        """Record these cuts otherwise and drop others, in one durable commit; they keep the time of their publication.

        Raises CutsNotRecordedError if the log refuses it, and OSError if it cannot be made durable.
        """
        met: Exception | None = None
        for _ in range(TRIES):
            table = self._log.current()
            known = self._cuts(table)
            if not known.keys() & set(dropped) and all(known.get(each) == cut for each, cut in changed.items()):
                self._log.sync(table.version())
                return
            at_ms = {each: cut.published_at_ms for each, cut in self.entries().items()}
            survivors, actions = self._without(table, known.keys() - set(dropped) - changed.keys())
            rows = [
                {
                    "checkpoint": each,
                    "table": name,
                    "version": version,
                    "published_at_ms": at_ms.get(each, self._warehouse.now_ms()),
                }
                for each, cut in changed.items()
                for name, version in cut.items()
            ]
            if survivors or rows:
                now_ms = self._warehouse.now_ms()
                actions.append(self._files.write(f"{max((*known, *changed)):020d}", [*survivors, *rows], now_ms))
            try:
                self._log.commit(table, actions, says={"cuts_corrected": sorted(changed), "cuts_dropped": [*dropped]})
            except Exception as error:  # noqa: BLE001 - read back at the next turn
                met = error
                self._log.reopen()
        raise CutsNotRecordedError(f"the corrected cuts could not be recorded: {met}")

    def read(self, checkpoint: CheckpointId) -> Cut | None:
        """Return the version of each table at that checkpoint, or None if its cut is not recorded."""
        return self.all().get(checkpoint)

    def entries(self) -> dict[CheckpointId, RecordedCut]:
        """Return all recorded cuts with their times, of one version of the table."""
        table = self._opened()
        at_ms: dict[CheckpointId, int] = {}
        for rows in self._files.read_sound(active_paths(table))[0].values():
            for row in rows:
                at_ms[row["checkpoint"]] = max(row["published_at_ms"], at_ms.get(row["checkpoint"], 0))
        return {each: RecordedCut(each, at_ms[each], cut) for each, cut in self._cuts(table).items()}

    def all(self) -> dict[CheckpointId, Cut]:
        """Return every recorded cut, of one version of the table; raise UnreadableRowError for a foreign entry."""
        return self._cuts(self._opened())

    def recorded(self) -> frozenset[CheckpointId]:
        """Return the checkpoints whose cut is recorded."""
        return frozenset(self.all())

    def maintain(self) -> None:
        """Keep the log short. Call it while holding the job, away from the commit path."""
        if maintenance.shorten(self._log.folder, now_s=self._warehouse.now_ms() / 1000):
            self._log.reopen()

    def _opened(self) -> DeltaTable:
        return opened(self._warehouse, self._log, self._warehouse.paths.cuts)

    def _row(self, checkpoint: CheckpointId, table: TableName, version: int) -> dict[str, Any]:
        now_ms = self._warehouse.now_ms()
        return {"checkpoint": checkpoint, "table": table, "version": version, "published_at_ms": now_ms}

    def _commit(
        self,
        table: DeltaTable,
        checkpoint: CheckpointId,
        rows: list[dict[str, Any]],
        retained: Collection[CheckpointId] | None,
    ) -> None:
        survivors, actions = self._without(table, retained)
        actions.append(self._files.write(f"{checkpoint:020d}", [*survivors, *rows], self._warehouse.now_ms()))
        self._log.commit(table, actions, says={"cut": checkpoint})

    def _without(
        self, table: DeltaTable, retained: Collection[CheckpointId] | None
    ) -> tuple[list[dict[str, Any]], list[Any]]:
        """Return what takes out all files with a cut that is not retained, and the rows of theirs that stay."""
        at_ms = self._warehouse.now_ms()
        survivors: list[dict[str, Any]] = []
        actions: list[Any] = []
        found, lost = self._files.read_sound(active_paths(table))
        actions += [remove(path, at_ms) for path in lost]
        for path, entries in found.items():
            kept = [row for row in entries if retained is None or row["checkpoint"] in retained]
            if len(kept) < len(entries) or not is_own(path):
                actions.append(remove(path, at_ms))
                survivors.extend(kept)
        return survivors, actions

    def _cuts(self, table: DeltaTable) -> dict[CheckpointId, Cut]:
        cuts: dict[CheckpointId, Cut] = {}
        for rows in self._files.read_sound(active_paths(table))[0].values():
            for row in rows:
                checkpoint, name, version = self._entry(row)
                cuts.setdefault(checkpoint, {})[name] = version
        return cuts

    def _entry(self, row: dict[str, Any]) -> tuple[CheckpointId, TableName, int]:
        """Return what an entry says; raise UnreadableRowError for one that this job cannot have written."""
        checkpoint, version = row["checkpoint"], row["version"]
        try:
            name = self._warehouse.paths.known_table(str(row["table"]))
        except InvalidNameError as error:
            raise self._foreign(str(error)) from error
        for number in (checkpoint, version):
            if not isinstance(number, int) or not 0 <= number <= NUMBER_MAX:
                raise self._foreign(f"{number} is no checkpoint and no version")
        return CheckpointId(checkpoint), name, version

    def _foreign(self, why: str) -> UnreadableRowError:
        job = self._warehouse.paths.job
        return UnreadableRowError(
            f"an entry of {self._log.folder} is not one that Tidemark writes for {job}: {why}. "
            "Restore the folder from a backup"
        )
