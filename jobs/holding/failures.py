"""Why a tick does not begin, or cannot go on before its first epoch: messages for users, each with the way out."""

from pathlib import Path

from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName
from checkpointing.metadata.record import Holder
from jobs.accidents import explained
from jobs.engine_paths import typed
from jobs.suggestions import NotThereError


class TickRefusedError(Exception):
    """A tick that may not begin. Nothing was changed."""


class JobHeldError(TickRefusedError):
    """Somebody else holds the job: names him and why he still counts."""

    def __init__(self, job: JobName, holder: Holder, generation: Generation, why: str) -> None:
        super().__init__(
            f"job {job} is held by {holder} (generation {generation}): {why}. "
            "Wait until it ends, or take the job from it with --take-over"
        )
        self.holder = holder
        self.generation = generation


class ClaimUnsettledError(TickRefusedError):
    """Whether the claim is in cannot be told: the next start finds out."""

    def __init__(self, job: JobName, error: str) -> None:
        super().__init__(explained(f"job {job} could not be claimed ({' '.join(error.split())}): start again"))


class UnusableWarehouseError(TickRefusedError):
    """A warehouse that cannot be read or written as a tick must: names the place and the way out."""


class RollForwardError(Exception):
    """A committed checkpoint cannot be published: names the table and the way out. Nothing is discarded."""


class NeverRunError(TickRefusedError, NotThereError):
    """A job that has no rows in this warehouse: says how to start it."""

    def __init__(self, job: JobName, root: Path) -> None:
        super().__init__(
            f"{job} has never run in {root}: start it with 'tidemark run {job}', or name its warehouse with --warehouse"
        )


class TablesAheadError(TickRefusedError):
    """An output table that shows a checkpoint after the one that the tick would begin from: it would be filled twice.

    Says where to begin instead. So a job whose checkpoints were deleted does not start over by itself (G3).
    """

    def __init__(
        self,
        job: JobName,
        root: Path,
        table: TableName,
        shows: CheckpointId,
        newest: CheckpointId | None,
        restore: CheckpointId | None,
    ) -> None:
        begins = f"begins from {newest}, the newest that is left" if newest else "has no checkpoint to begin from"
        self.what = (
            f"table {table} in {root} shows checkpoint {shows} of {job}, and a tick {begins}, so the table's rows "
            "would be written twice"
        )
        afresh = f"begin anew in an empty warehouse with 'tidemark run {job} --warehouse EMPTY_FOLDER'"
        fork = f"tidemark run {job} --from {typed(f'{root}@{restore}')} --warehouse EMPTY_FOLDER"
        restored = f"restore {restore} into an empty warehouse with '{fork}'"
        emptied = f"delete the folders of its tables in {root} and run it again"
        self.way_out = f"{restored}, or {afresh}" if restore else f"{afresh}, or {emptied}"
        super().__init__(f"{self.what}: {self.way_out}")
        self.table = table
        self.shows = shows


class TablesBehindError(TickRefusedError):
    """A table that shows less than a recorded cut says, and cannot be brought back: `what` names it."""

    def __init__(self, table: TableName, what: str, way_out: str) -> None:
        super().__init__(f"{what}: {way_out}")
        self.table = table
        self.what = what
        self.way_out = way_out


class NotCancelledError(Exception):
    """A job that could not be cancelled: says why, and the way out."""


class SavepointRefusedError(Exception):
    """A savepoint that is not taken, copied, restored or disposed of: names it, why, and the way out."""


class NoSuchSavepointError(SavepointRefusedError, NotThereError):
    """A savepoint, checkpoint or folder of one that a command names and that does not exist."""
