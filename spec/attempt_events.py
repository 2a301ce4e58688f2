"""What one process tells of its attempts at the job, one after the other (G4)."""

from collections.abc import Iterator
from dataclasses import dataclass

from checkpointing.identifiers import Generation
from checkpointing.job.setup import TickLimits
from checkpointing.messages import EndTick, TickOutcome
from checkpointing.tick.attempts import RestartStrategy, Terms
from checkpointing.tick.messages import Finish, RestartDue, TickEffect, Work


@dataclass(frozen=True, slots=True)
class ProcessBegan:
    """A process begins a tick, with the limits of all its attempts together; all times are by its own clock."""

    process: int
    limits: TickLimits
    strategy: RestartStrategy
    at_ms: int


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """An attempt begins to work, with what is left of the limits."""

    process: int
    generation: Generation
    limits: TickLimits
    at_ms: int


@dataclass(frozen=True, slots=True)
class RestartTold:
    """Another attempt is to follow on one that failed."""

    process: int
    restart: int
    after: EndTick
    delay_ms: int


@dataclass(frozen=True, slots=True)
class ProcessOver:
    """The process says that it is over, and how often it has restarted the job."""

    process: int
    restarts: int
    is_finished: bool = False
    """True if its last attempt found that the job has finished, or that a cut waits for approval."""


AttemptEvent = ProcessBegan | AttemptBegan | RestartTold | ProcessOver


def process_began(terms: Terms, at_ms: int) -> ProcessBegan:
    """Return how a process begins."""
    return ProcessBegan(terms.holder.pid, terms.limits, terms.strategy, at_ms)


def attempts_told(process: int, effect: TickEffect, at_ms: int) -> Iterator[AttemptEvent]:
    """Yield what an effect of the tick door tells of the attempts."""
    match effect:
        case Work():
            yield AttemptBegan(process, effect.claim.generation, effect.limits, at_ms)
        case RestartDue():
            yield RestartTold(process, effect.restart, effect.end, effect.delay_ms)
        case Finish():
            outcome = effect.outcome
            is_finished = isinstance(outcome, EndTick) and outcome.outcome in (TickOutcome.FINISHED, TickOutcome.HELD)
            yield ProcessOver(process, effect.restarts, is_finished)
        case _:
            pass
