"""The tick door: holds a job from the look at its entries to the release, `step(fact, stamp) -> effects`.

A tick goes through it, and so does everything that is done to a job at rest: savepoint, rollback, reset, import,
disposal, cancellation, clean-up. An errand says which steps it takes; their order is that of `claiming`, `recovering`
and `holding`. The effects of a step end with the one that is answered next, or with `Finish`.

Invariants, with the rule of `spec.invariants` that watches each:

1. A claim is appended as the successor of just the version that was observed, after every question was answered well
   about the entries of that version (`one-generation`, `line`).
2. Nothing changes tables, cuts or files but between a claim that is in and its release (`held`).
3. A claim that was refused or is in doubt is never released by its loser (`held`, `ids-rise`).
4. Tables that are behind come back before an entry is rolled forward. An entry is rolled forward and its cut recorded
   before leftovers go. Leftovers go before the first entry of the claim (`recovered-in-order`). So nothing is deleted
   while a committed entry cannot be published. Every attempt does all of it, a restart too.
5. The release names the first id that was not handed out (`ids-rise`), and nothing of its generation follows (`held`).
6. A process that loses the race to another claim takes nothing over from the winner (`one-generation`).
"""

from typing import Final
from zlib import crc32

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import Refused
from checkpointing.commit.two_phase import UnexpectedFactError
from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import EndTick, TickOutcome
from checkpointing.metadata.record import Claim
from checkpointing.tick.asking import StepFailedError, Steps, asked
from checkpointing.tick.attempts import Attempts
from checkpointing.tick.claiming import Claiming
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.holding import Holding
from checkpointing.tick.messages import TOLD, Done, Finish, Outcome, TickEffect, TickFact, Unsettled, Wait, Waited
from checkpointing.tick.moves import MOVES

HELD_POLL_MS: Final = 250
"""How often a tick that goes on in another trace looks whether the job is free again."""


def seed_of(claim: Claim) -> int:
    """Derive a random seed from the claim's nonce. It differs for each generation and can be replayed."""
    return crc32(claim.nonce.encode())


class TickDoor:
    """One process at the job, from its first look until it is over."""

    def __init__(self, errand: Errand, terms: Terms) -> None:
        """Nothing was looked at yet."""
        self._errand = errand
        self._terms = terms
        self._attempts = Attempts(terms.strategy, terms.limits)
        self._now = Stamp(0, "")
        self._own: Claim | None = None
        """The newest claim of this process that was in."""
        self._steps = self._all_attempts()
        self.awaits: TickEffect | None = None
        """The effect that is to be answered next."""

    def start(self, at: Stamp) -> tuple[TickEffect, ...]:
        """Begin with a look at the entries."""
        self._now = at
        self._attempts.began(at)
        return self._until_asked(next(self._steps))

    def step(self, fact: TickFact, at: Stamp) -> tuple[TickEffect, ...]:
        """Take the answer to the last effect; return what is to be done. Raises UnexpectedFactError."""
        if (type(self.awaits), type(fact)) not in MOVES:
            raise UnexpectedFactError(f"{type(fact).__name__} as the answer to {type(self.awaits).__name__}")
        self._now = at
        return self._until_asked(self._steps.send(fact))

    def _until_asked(self, effect: TickEffect) -> tuple[TickEffect, ...]:
        effects = [effect]
        while isinstance(effect, TOLD):
            effect = self._steps.send(Done())
            effects.append(effect)
        self.awaits = effect
        return tuple(effects)

    def _all_attempts(self) -> Steps[None]:
        """Make attempts until the restart strategy stops."""
        outcome = yield from self._attempt()
        while isinstance(outcome, EndTick) and self._own is not None:
            follows = self._attempts.follows(outcome, self._now, seed_of(self._own))
            if isinstance(follows, EndTick):
                outcome = follows
                break
            yield follows
            yield from asked(Wait(follows.delay_ms), Waited)
            if self._now.stopping:
                outcome = self._attempts.stopped(outcome)
                break
            outcome = yield from self._attempt()
        yield Finish(outcome, self._attempts.restarts)

    def _attempt(self) -> Steps[Outcome]:
        """Claim the job and hold it until it is released. When the trace is full, do so again.

        In between the job is free for a moment. The tick waits for a process that took that moment.
        """
        wait_until_ms = 0
        while True:
            own = self._own.generation if self._own is not None else None
            try:
                held = yield from Claiming(self._errand, self._terms, own, self._at).claimed()
            except StepFailedError as refused:
                waits = self._now.now_ms < wait_until_ms and not self._now.stopping
                if not waits or not isinstance(refused.outcome, Refused):
                    return refused.outcome if own is None else _as_failed(refused)
                yield from asked(Wait(HELD_POLL_MS), Waited)
                continue
            self._own = held.claim
            holding = Holding(self._errand, self._terms, held, self._at, self._attempts)
            outcome = yield from holding.ended()
            if not holding.renews or not self._attempts.renews(self._now):
                return outcome
            wait_until_ms = self._now.now_ms + self._terms.waits_ms

    def _at(self) -> Stamp:
        return self._now


def _as_failed(refused: StepFailedError) -> Outcome:
    """Return how a later attempt ends that is refused: it has failed, unless the job is another's. Errors stay."""
    outcome = refused.outcome
    if not refused.is_refusal or isinstance(outcome, Refused):
        return outcome
    message = str(outcome)
    if isinstance(outcome, Unsettled):
        message = f"the job could not be claimed ({' '.join(outcome.error.split())}): start again"
    return EndTick(TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE, message)
