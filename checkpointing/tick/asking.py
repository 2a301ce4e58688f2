"""Lets the steps of the tick door ask: a step yields an effect, and gets the fact that answers it.

If an effect fails, the steps that asked for it end.
"""

from collections.abc import Generator
from typing import Final, TypeVar

from checkpointing.commit.two_phase import UnexpectedFactError
from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import EndTick, PublishFailed, RowAppended, RowRefused, RowUnknown, TickOutcome
from checkpointing.tick.messages import (
    AppendClaim,
    AppendEntry,
    Broke,
    Failed,
    Objected,
    Outcome,
    PublishAgain,
    TickEffect,
    TickFact,
)

TRIES: Final = 5
"""How often a process tries an append whose outcome is unknown, and how often a claim while others are faster.

It also reads so many lists of entries that lag behind.
"""

_T = TypeVar("_T")
_Fact = TypeVar("_Fact", bound=TickFact)
Steps = Generator[TickEffect, TickFact, _T]


class StepFailedError(Exception):
    """Ends the steps around it. `outcome` says how the attempt ends. `is_refusal`: nothing was changed."""

    def __init__(self, outcome: Outcome, *, is_refusal: bool = False) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome
        self.is_refusal = is_refusal


def asked(effect: TickEffect, kind: type[_Fact] | tuple[type[_Fact], ...]) -> Steps[_Fact]:
    """Return the fact that answers the effect. Raise StepFailedError if the effect could not be carried out."""
    fact = yield effect
    match fact:
        case Objected():
            raise StepFailedError(fact.why, is_refusal=True)
        case Broke():
            raise StepFailedError(fact.why)
        case Failed():
            raise StepFailedError(fact.end)
        case PublishFailed():
            raise StepFailedError(_not_published(effect, fact))
        case _ if isinstance(fact, kind):
            return fact
        case _:
            raise UnexpectedFactError(f"{fact} as the answer to {effect}")


def appended(effect: AppendClaim | AppendEntry) -> Steps[RowAppended | RowRefused | RowUnknown]:
    """Return the outcome of an append. While it is unknown, append again: that finds the nonce if the entry is in."""
    for _ in range(TRIES):
        fact = yield effect
        match fact:
            case RowAppended() | RowRefused():
                return fact
            case RowUnknown():
                unknown = fact
            case Broke() | Objected():
                raise StepFailedError(fact.why)
            case _:
                raise UnexpectedFactError(f"{fact} as the answer to {effect}")
    return unknown


def _not_published(effect: TickEffect, fact: PublishFailed) -> EndTick:
    """Return how an attempt ends that cannot publish a committed entry. Nothing is deleted."""
    said = "could not be published again" if isinstance(effect, PublishAgain) else "is committed, but not published"
    message = f"checkpoint {fact.checkpoint} {said}: {fact.error}"
    return EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, message)
