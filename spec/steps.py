"""A step of a door as its driver sees it: a fact, and the effects with which the door answered."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId
from checkpointing.job.setup import JobSetup
from checkpointing.messages import Effect, Fact


@dataclass(frozen=True, slots=True)
class Begun:
    """A door was started at this time."""

    setup: JobSetup
    now_ms: int


@dataclass(slots=True)
class Step:
    """A door took a fact and answered. `next_id` is the first checkpoint id that it has not used then.

    It is not frozen, because a frozen one takes three times as long to make, and a run has many. Nobody changes it.
    """

    told: Begun | Fact
    effects: tuple[Effect, ...]
    next_id: CheckpointId
