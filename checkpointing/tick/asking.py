"""How the steps of the tick door ask for something: they yield an effect, and are given the fact that answers it.

What goes wrong with an effect ends the steps that asked for it.
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
"""How often an append is asked for while its outcome is unknown; as often a claim is tried against others."""

_T = TypeVar("_T")
_Fact = TypeVar("_Fact", bound=TickFact)
Steps = Generator[TickEffect, TickFact, _T]


class StepFailedError(Exception):
    """A step that ends what it is a part of: `outcome` says how. `is_refusal`: it has changed nothing."""

    def __init__(self, outcome: Outcome, *, is_refusal: bool = False) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome
        self.is_refusal = is_refusal


def asked(effect: TickEffect, kind: type[_Fact] | tuple[type[_Fact], ...]) -> Steps[_Fact]:
    """Return the fact that answers the effect; raise StepFailedError if the effect could not be carried out."""
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
    """Return what became of an entry; while that is unknown it is asked for again, which finds a nonce that is in."""
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
    """Return how an attempt ends that cannot publish a committed entry. It deletes nothing."""
    said = "could not be published again" if isinstance(effect, PublishAgain) else "is committed, but not published"
    message = f"checkpoint {fact.checkpoint} {said}: {fact.error}"
    return EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, message)
