"""Finds the newest cut of an upstream job, checks that an older cut still exists, and reserves a cut.

An upstream job is another Tidemark job whose cuts a pipeline reads. Nothing here needs Spark.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Final

from checkpointing.commit.cleanup import JOB_RESERVATION_MS_MAX
from checkpointing.commit.net_files import keyed_tables
from checkpointing.identifiers import TableName, job_name
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, RowKind
from jobs.sources.port import SourceError
from jobs.storage.address import Root, parsed
from jobs.warehouse.checkpoints import CheckpointStore, UpstreamCut, cuts_at, rests_on
from jobs.warehouse.cuts_table import CutStore, RecordedCut, ReservationStore
from jobs.warehouse.job_stores import has_run
from jobs.warehouse.warehouse import Warehouse

_FOUND_MAX: Final = 16
"""The number of cuts whose names are remembered. The tables of one job are read up to one cut at a time."""


@dataclass(frozen=True, slots=True)
class FoundCut:
    """An upstream cut, and the Delta version of each of its tables."""

    cut: UpstreamCut
    recorded: RecordedCut

    @property
    def name(self) -> str:
        """Return the name that the job door uses for this cut."""
        return f"{self.cut.checkpoint}.{self.cut.nonce}"


class Upstream:
    """An upstream job, and the cuts that were found in it. All sources of one job in a process share this object."""

    def __init__(self, warehouse: Root, job: str) -> None:
        """Store the names. Nothing is read yet. All methods that read raise StoreError if an object store fails."""
        self._warehouse = Warehouse(warehouse, ProtocolPaths(job_name(job)))
        self._found: dict[str, FoundCut] = {}
        self._stores: tuple[CutStore, CheckpointStore] | None = None
        self._lock = Lock()

    def newest(self) -> FoundCut | None:
        """Return the newest published cut, or None if there is none yet. Raise SourceError for a job that never ran."""
        with self._lock:
            recorded = self._opened()[0].entries()
            if not recorded:
                return None
            newest = recorded[max(recorded)]
            nonce = next((row.nonce for row in self._records() if row.checkpoint == newest.checkpoint), "")
            job = self._warehouse.paths.job
            found = FoundCut(UpstreamCut(str(self._warehouse.root), job, newest.checkpoint, nonce), newest)
            self._found[found.name] = found
            for old in list(self._found)[:-_FOUND_MAX]:
                del self._found[old]
            return found

    def named(self, name: str) -> FoundCut:
        """Return a cut that a source of this process has found. Raise SourceError for a cut that is not remembered."""
        found = self._found.get(name)
        if found is None:
            raise SourceError(f"cut {name} of {self._warehouse.paths.job} is not known any more: run the tick again")
        return found

    def keyed_tables(self) -> frozenset[TableName]:
        """Return the tables with one row per key in the newest entry, state tables included."""
        job = self._warehouse.paths.job
        return frozenset(name for record in self._records()[-1:] for name, _ in keyed_tables(record, job))

    def hold(self, cut: UpstreamCut, reader: str) -> None:
        """Reserve a cut for the job that reads it, for at most 30 days, or until that job reserves a newer one.

        If the cut is no longer recorded, nothing is reserved. Raises OSError if the upstream warehouse cannot be
        written.
        """
        cuts, store = self._opened()[0], ReservationStore(self._warehouse)
        recorded = cuts.entries().get(cut.checkpoint)
        if recorded is None:
            return
        name = hashlib.sha256(reader.encode()).hexdigest()[:32]
        store.reserve(name, recorded, JOB_RESERVATION_MS_MAX, kept=False, reader=reader)
        if cut.checkpoint in cuts.recorded():  # after writing: see jobs/warehouse/cuts_table.py
            store.reserve(name, recorded, JOB_RESERVATION_MS_MAX, kept=True, reader=reader)

    def must_stand(self, cut: UpstreamCut) -> None:
        """Raise SourceError if the upstream job was rolled back behind the cut, or never took it."""
        records = self._records()
        there = next((row for row in records if row.checkpoint == cut.checkpoint), None)
        gone = there is not None and (there.abandoned or cut.nonce not in ("", there.nonce))
        back = any(row.parent < cut.checkpoint < row.checkpoint for row in records if row.kind is RowKind.ROLLBACK)
        if gone or (back and there is None) or (records and records[-1].checkpoint < cut.checkpoint):
            raise SourceError(f"{cut} was read, and does not exist any more: {cut.job} was rolled back behind it")

    @property
    def has_run(self) -> bool:
        """Return True if the job has run in its warehouse."""
        return has_run(self._warehouse)

    def must_have_run(self) -> None:
        """Raise SourceError unless the job has run in its warehouse."""
        if not self.has_run:
            root, job = self._warehouse.root, self._warehouse.paths.job
            raise SourceError(f"{job} has never run in {root}: run it first, or correct the source's warehouse or job")

    def _records(self) -> tuple[CheckpointRecord, ...]:
        rows = self._opened()[1].observe()[1]
        found = (row for row in rows if isinstance(row, CheckpointRecord))
        return tuple(sorted(found, key=lambda row: row.checkpoint))

    def _opened(self) -> tuple[CutStore, CheckpointStore]:
        if self._stores is None:
            self.must_have_run()  # a store would create what is missing
            self._stores = CutStore(self._warehouse), CheckpointStore(self._warehouse)
        return self._stores


@cache
def upstream_job(warehouse: Root, job: str) -> Upstream:
    """Return the job of that name. All callers in a process get the same object."""
    return Upstream(warehouse, job)


class UpstreamHolds:
    """Reserves the upstream cuts at which a job stands, so that clean-ups of the upstream jobs keep them."""

    def __init__(self, reader: str) -> None:
        """Reserve for this job. `reader` names the job and its warehouse. `tidemark doctor` shows this text."""
        self._reader = reader

    def rest_on(self, positions: Iterable[str | None]) -> None:
        """Reserve the cuts at these positions, in place of earlier ones. Ignore positions of other sources.

        Raises OSError if an upstream warehouse cannot be written.
        """
        for cut in cuts_at(positions):
            upstream = upstream_job(parsed(cut.warehouse), cut.job)
            if upstream.has_run:
                upstream.hold(cut, self._reader)


def newest_that_stands(records: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
    """Return the newest of a job's own checkpoints whose upstream cuts all still exist, or None."""
    older = sorted((each for each in records if not each.abandoned), key=lambda each: each.checkpoint, reverse=True)
    return next((record for record in older if not taken_back(record)), None)


def taken_back(record: CheckpointRecord) -> str:
    """Return a sentence on the checkpoint's first upstream cut that no longer exists, or an empty text.

    A warehouse that is not found is not an error here, because it may have been moved. The source's poll uses its
    present place. Raises StoreError if an object store does not answer.
    """
    for cut in rests_on(record):
        upstream = upstream_job(parsed(cut.warehouse), cut.job)
        try:
            if upstream.has_run:
                upstream.must_stand(cut)
        except SourceError as error:
            return str(error)
    return ""
