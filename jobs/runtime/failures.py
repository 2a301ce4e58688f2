"""Why a tick does not begin, or cannot go on before its first epoch: messages for users, each with the way out."""

from pathlib import Path

from checkpointing.identifiers import Generation, JobName
from checkpointing.metadata.record import Holder


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
        super().__init__(f"job {job} could not be claimed ({error}): start again")


class RollForwardError(Exception):
    """A committed checkpoint cannot be published: names the table and the way out. Nothing is discarded."""


class NeverRunError(TickRefusedError):
    """A job that has no rows in this warehouse: says how to start it."""

    def __init__(self, job: JobName, root: Path) -> None:
        super().__init__(
            f"{job} has never run in {root}: start it with 'tidemark run {job}', or name its warehouse with --warehouse"
        )


class SavepointRefusedError(Exception):
    """A savepoint that is not taken, copied, restored or disposed of: names it, why, and the way out."""
