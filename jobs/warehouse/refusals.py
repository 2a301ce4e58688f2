"""The errors by which a tick or a command is refused. Each message says what happened, and what to type next."""

from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName
from checkpointing.metadata.record import Holder
from jobs.disk_errors import explained
from jobs.engine_paths import typed
from jobs.storage.address import Root
from jobs.suggestions import NotThereError


class TickRefusedError(Exception):
    """A tick may not begin. Nothing was changed."""


class JobHeldError(TickRefusedError):
    """Another process holds the job. The message names the process, and says why it is regarded as alive."""

    def __init__(self, job: JobName, holder: Holder, generation: Generation, why: str) -> None:
        super().__init__(
            f"job {job} is held by {holder} (generation {generation}): {why}. "
            "Wait until it ends, or take the job from it with --take-over"
        )
        self.holder = holder
        self.generation = generation


class ClaimUnsettledError(TickRefusedError):
    """It is not known whether the claim is among the job's entries. The next tick or command finds out."""

    def __init__(self, job: JobName, error: str) -> None:
        super().__init__(explained(f"job {job} could not be claimed ({' '.join(error.split())}): start again"))


class UnusableWarehouseError(TickRefusedError):
    """A tick cannot read or write the warehouse. The message names the place."""


class CutAwaitsApprovalError(TickRefusedError):
    """A cut waits for approval, so the job must not be moved. The message names the cut, and how to settle it."""


class RollForwardError(Exception):
    """A committed checkpoint cannot be published. The message names the table. Nothing is discarded."""


class NeverRunError(TickRefusedError, NotThereError):
    """The job has no entries in this warehouse. The message says how to start it."""

    def __init__(self, job: JobName, root: Root) -> None:
        super().__init__(
            f"{job} has never run in {root}: start it with 'tidemark run {job}', or name its warehouse with --warehouse"
        )


class TablesAheadError(TickRefusedError):
    """An output table shows a newer checkpoint than the one from which the tick would begin.

    The tick would write the table's rows twice. So a job whose checkpoints were deleted does not start over by itself
    (G3). The message says where to begin instead.
    """

    def __init__(
        self,
        job: JobName,
        root: Root,
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
    """A table shows less than a recorded cut says, and cannot be repaired. `what` names the table."""

    def __init__(self, table: TableName, what: str, way_out: str) -> None:
        super().__init__(f"{what}: {way_out}")
        self.table = table
        self.what = what
        self.way_out = way_out


class NotCancelledError(Exception):
    """A job could not be cancelled. The message says why."""


class SavepointRefusedError(Exception):
    """A savepoint is not taken, copied, restored or disposed of. The message says why."""


class NoSuchSavepointError(SavepointRefusedError, NotThereError):
    """A command names a savepoint, a checkpoint or a copy's folder that does not exist."""
