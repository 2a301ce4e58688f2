"""Reads a job for the reports: the entries of `checkpoints`, the recorded cuts, and who holds the job.

It creates and changes nothing. For a job that never ran it raises an error that says how to run it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from checkpointing.commit.fencing import newest_claim, release_of
from checkpointing.identifiers import CheckpointId, JobName, TableName
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.cli.errors import CommandError, ExitCode
from jobs.holding.job_state import must_have_run
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.holders import is_alive
from jobs.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Published:
    """A recorded cut: when the last table was published (ms since the epoch), and each table's Delta version."""

    at_ms: int
    versions: Mapping[TableName, int]


@dataclass(frozen=True, slots=True)
class History:
    """A job's history: checkpoints, newest first, their cuts, and one line about the holder."""

    job: JobName
    records: tuple[CheckpointRecord, ...]
    cuts: Mapping[CheckpointId, Published]
    holder: str

    def record(self, checkpoint: int | None) -> CheckpointRecord:
        """Return that checkpoint or savepoint, the newest checkpoint for None; raise CommandError if it is missing."""
        if not self.records:
            raise CommandError(
                f"{self.job} has completed no checkpoint yet: run 'tidemark run {self.job}' until it has one",
                ExitCode.NOT_THERE,
            )
        if checkpoint is None:
            return next((row for row in self.records if row.commits and not row.abandoned), self.records[0])
        found = [row for row in self.records if row.checkpoint == checkpoint]
        if not found:
            retained = ", ".join(str(row.checkpoint) for row in self.records)
            raise CommandError(
                f"checkpoint {checkpoint} of {self.job} is not retained: there are {retained}; "
                "the setting 'retained' says how many are kept",
                ExitCode.NOT_THERE,
            )
        return found[0]

    def newest_published(self) -> CheckpointRecord | None:
        """Return the checkpoint that all tables show; None before the first. A plain savepoint publishes nothing."""
        return next((row for row in self.records if row.commits and row.checkpoint in self.cuts), None)

    def cut(self, checkpoint: CheckpointId) -> Published:
        """Return the recorded cut of a checkpoint; raise CommandError if it is not published yet."""
        row = self.record(checkpoint)
        if not row.commits:
            raise CommandError(
                f"savepoint {checkpoint} of {self.job} publishes nothing, so it has no cut to read: copy it with "
                f"'tidemark savepoint {self.job} --to DIR' when you take one, and read the copy's tables, or read "
                f"checkpoint {row.parent}, after which it was taken"
            )
        if checkpoint not in self.cuts:
            raise CommandError(
                f"checkpoint {checkpoint} of {self.job} is committed, but its tables are not published yet: "
                f"'tidemark run {self.job}' rolls it forward"
            )
        return self.cuts[checkpoint]


def observe_history(root: Path, job: JobName) -> History:
    """Read a job's history from its warehouse; raise NeverRunError if the job never ran there."""
    warehouse = Warehouse(root, ProtocolPaths(job))
    must_have_run(warehouse)
    _, rows = CheckpointStore(warehouse).observe()
    records = sorted((row for row in rows if isinstance(row, CheckpointRecord)), key=lambda row: -row.checkpoint)
    claim = newest_claim(rows)
    if claim is None or release_of(rows, claim.generation) is not None:
        holder = "nobody holds the job: the last tick ended normally" if claim else "nobody has held the job"
    elif is_alive(claim.holder) is False:
        holder = f"{claim.holder} held the job as generation {claim.generation} and has died: the next tick takes over"
    else:
        holder = f"held by {claim.holder}, generation {claim.generation}"
    return History(job, tuple(records), _published(warehouse), holder)


def _published(warehouse: Warehouse) -> dict[CheckpointId, Published]:
    recorded = CutStore(warehouse).entries()
    return {each: Published(cut.published_at_ms, cut.versions) for each, cut in recorded.items()}
