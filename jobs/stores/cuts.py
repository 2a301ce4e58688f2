"""Keeps the Delta table `cuts`: the version of each table at checkpoint n, to read all tables as of n (K1)."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from checkpointing.identifiers import CheckpointId, InvalidNameError, TableName
from checkpointing.metadata.codec import UnreadableRowError
from checkpointing.metadata.field_validity import NUMBER_MAX
from jobs.storage.together import both
from jobs.stores import maintenance
from jobs.stores.checkpoints import SMALL_TABLE
from jobs.stores.delta_log import DeltaLog, FaultHook, no_fault, remove
from jobs.stores.known_table import KnownTable
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
"""Maps each table to its Delta version."""


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A cut, and the time at which its last table was published, in ms since the epoch."""

    checkpoint: CheckpointId
    published_at_ms: int
    versions: Cut


_Recorded = dict[CheckpointId, RecordedCut]


@dataclass(frozen=True, slots=True)
class _Change:
    """One commit: the recorded cuts to keep (None: all), the cuts to write, and the note for the log."""

    staying: Collection[CheckpointId] | None
    written: Sequence[RecordedCut]
    says: dict[str, Any]


class CutsNotRecordedError(RuntimeError):
    """The cut could not be written. Nothing is lost: the next tick publishes and records it again."""


class CutStore:
    """The `cuts` table of one job. A lost row file is ignored, because its cuts can be `rebuilt`."""

    def __init__(self, warehouse: Warehouse, *, hook: FaultHook = no_fault) -> None:
        """Open the table. The job's first tick creates it."""
        self._warehouse = warehouse
        self._log = DeltaLog(warehouse.place(warehouse.paths.cuts), hook=hook, small=True)
        self._files = RowFiles(self._log.folder, SCHEMA)
        self._log.create(SCHEMA, dict(SMALL_TABLE))

    def record(
        self,
        checkpoint: CheckpointId,
        versions: Iterable[tuple[TableName, int]],
        retained: Collection[CheckpointId] | None = None,
    ) -> None:
        """Record the cut of a checkpoint durably, once, even if the caller asks again.

        With `retained`, the same commit drops the cuts of all checkpoints but these and this one. If a newer cut is
        recorded, nothing changes. Then another tick has taken over the job and has recorded this cut before its own,
        and the caller's `retained` is outdated. Raises CutsNotRecordedError if the log refuses the commit, and OSError
        if it cannot be made durable.
        """
        cut = RecordedCut(checkpoint, self._warehouse.now_ms(), dict(versions))

        def change(recorded: _Recorded) -> _Change | None:
            newer = any(known >= checkpoint for known in recorded)
            return None if newer else _Change(retained, [cut], {"cut": checkpoint})

        self._change(change, f"the cut of checkpoint {checkpoint} could not be recorded")

    def drop(self, checkpoints: Collection[CheckpointId]) -> None:
        """Drop the cuts of these checkpoints. Raise CutsNotRecordedError if the log refuses the commit."""

        def change(recorded: _Recorded) -> _Change | None:
            dropped = sorted(recorded.keys() & set(checkpoints))
            return _Change(recorded.keys() - set(dropped), [], {"cuts_dropped": dropped}) if dropped else None

        self._change(change, "the cuts of deleted checkpoints could not be dropped")

    def correct(
        self, changed: Mapping[CheckpointId, Mapping[TableName, int]], dropped: Collection[CheckpointId]
    ) -> None:
        """Replace these cuts and drop others, in one durable commit. They keep the time of their publication.

        Raises CutsNotRecordedError if the log refuses the commit, and OSError if it cannot be made durable.
        """

        def change(recorded: _Recorded) -> _Change | None:
            now_ms = self._warehouse.now_ms()
            at_ms = {each: recorded[each].published_at_ms if each in recorded else now_ms for each in changed}
            wanted = [RecordedCut(each, at_ms[each], dict(cut)) for each, cut in changed.items()]
            if recorded.keys().isdisjoint(dropped) and all(recorded.get(cut.checkpoint) == cut for cut in wanted):
                return None
            staying = recorded.keys() - set(dropped) - changed.keys()
            return _Change(staying, wanted, {"cuts_corrected": sorted(changed), "cuts_dropped": [*dropped]})

        self._change(change, "the corrected cuts could not be recorded")

    def read(self, checkpoint: CheckpointId) -> Cut | None:
        """Return the version of each table at that checkpoint, or None if its cut is not recorded."""
        return self.all().get(checkpoint)

    def entries(self) -> dict[CheckpointId, RecordedCut]:
        """Return every recorded cut, read at one version of the table. Raise UnreadableRowError for a foreign entry."""
        self._log.look_anew()
        return self._seen()

    def all(self) -> dict[CheckpointId, Cut]:
        """Return the versions of every recorded cut. Raises the errors of `entries`."""
        return {checkpoint: cut.versions for checkpoint, cut in self.entries().items()}

    def seen(self) -> dict[CheckpointId, Cut]:
        """Return the versions of every cut that was recorded at the last look since `look_anew`; raises as `entries`.

        If there was none, it looks now.
        """
        return {checkpoint: cut.versions for checkpoint, cut in self._seen().items()}

    def look_anew(self) -> None:
        """Let the next `seen` look at the table, because others may have recorded cuts since."""
        self._log.look_anew()

    def known(self) -> dict[CheckpointId, Cut]:
        """Return the recorded cuts as of this store's last commit or look. It asks the storage nothing.

        Raises the errors of `entries`.
        """
        return {checkpoint: cut.versions for checkpoint, cut in self._recorded(self._log.known()).items()}

    def recorded(self) -> frozenset[CheckpointId]:
        """Return the checkpoints whose cut is recorded."""
        return frozenset(self.all())

    def maintain(self) -> None:
        """Shorten the log. The caller must hold the job. Do not call it on the commit path."""
        maintenance.shorten(self._log, now_s=self._warehouse.now_ms() / 1000)

    def _change(self, change: Callable[[_Recorded], _Change | None], failed: str) -> None:
        """Durably commit what `change` makes of the recorded cuts. If it returns None, nothing is to be done.

        The first turn does not ask whether another process has recorded a cut since the last look. If one has, the
        commit fails. A commit that raises may still be in the log, so each further turn reads the cuts anew.
        """
        met: Exception | None = None
        for _ in range(TRIES):
            table = self._log.known() if met is None else self._log.current()
            wanted = change(self._recorded(table))
            if wanted is None:
                self._log.sync(table.version())
                return
            try:
                self._commit(table, wanted)
            except Exception as error:  # noqa: BLE001 - the next turn reads the cuts
                met = error
                self._log.reopen()
                continue
            self._log.sync(table.version() + 1)
            return
        raise CutsNotRecordedError(f"{failed}: {met}")

    def _commit(self, table: KnownTable, change: _Change) -> None:
        """Write a file of the new cuts. The same commit removes foreign files, and files with a cut that must go."""
        at_ms = self._warehouse.now_ms()
        found, lost = self._files.read_sound(table.paths())
        actions: list[Any] = [remove(path, at_ms) for path in lost]
        rows: list[dict[str, Any]] = [
            {"checkpoint": cut.checkpoint, "table": name, "version": version, "published_at_ms": cut.published_at_ms}
            for cut in change.written
            for name, version in cut.versions.items()
        ]
        for path, entries in found.items():
            kept = [row for row in entries if change.staying is None or row["checkpoint"] in change.staying]
            if len(kept) < len(entries) or not is_own(path):
                actions.append(remove(path, at_ms))
                rows = [*kept, *rows]
        if rows:
            name = f"{max(row['checkpoint'] for row in rows):020d}"
            both(
                self._log.folder.storage,
                lambda: self._log.must_have(table.version()),
                lambda: actions.append(self._files.write(name, rows, at_ms)),
            )
        self._log.commit(table, actions, says=change.says)

    def _seen(self) -> _Recorded:
        return self._recorded(opened(self._warehouse, self._log, self._warehouse.paths.cuts))

    def _recorded(self, table: KnownTable) -> _Recorded:
        versions: dict[CheckpointId, Cut] = {}
        at_ms: dict[CheckpointId, int] = {}
        for rows in self._files.read_sound(table.paths())[0].values():
            for row in rows:
                checkpoint, name, version, published_at_ms = self._entry(row)
                versions.setdefault(checkpoint, {})[name] = version
                at_ms[checkpoint] = max(published_at_ms, at_ms.get(checkpoint, 0))
        return {each: RecordedCut(each, at_ms[each], cut) for each, cut in versions.items()}

    def _entry(self, row: dict[str, Any]) -> tuple[CheckpointId, TableName, int, int]:
        """Return the cut in a row of the table. Raise UnreadableRowError for one that this job cannot have written."""
        try:
            name = self._warehouse.paths.known_table(str(row["table"]))
        except InvalidNameError as error:
            raise self._foreign(str(error)) from error
        numbers = (row["checkpoint"], row["version"], row["published_at_ms"])
        for number in numbers:
            if not isinstance(number, int) or not 0 <= number <= NUMBER_MAX:
                raise self._foreign(f"{number} is no checkpoint, no version and no time")
        return CheckpointId(numbers[0]), name, numbers[1], numbers[2]

    def _foreign(self, why: str) -> UnreadableRowError:
        return UnreadableRowError(
            f"an entry of {self._log.folder} is not one that Tidemark writes for {self._warehouse.paths.job}: {why}. "
            "Restore the folder from a backup"
        )
