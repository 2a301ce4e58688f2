"""The tick door: holds a job from the first look at its entries to the release, `step(fact, stamp) -> effects`.

A tick goes through it, and so does all work on a job at rest: savepoint, rollback, reset, import, disposal,
cancellation, clean-up. An errand says which steps it takes. Their order is that of `claiming`, `recovering` and
`holding`. The last effect of a step is the one that must be answered next, or `Finish`.

Invariants, each with the rule of `spec.invariants` that watches it:

1. A claim is appended as the successor of exactly the version that was observed, after every question about the entries
   of that version was answered yes (`one-generation`, `line`).
2. Tables, cuts and files change only between a claim that is in and its release (`held`).
3. If a claim was refused or is in doubt, the process that lost never releases it (`held`, `ids-rise`).
4. Tables that are behind are repaired before an entry is rolled forward. An entry is rolled forward and its cut
   recorded before leftovers are deleted. Leftovers are deleted before the first entry of the claim
   (`recovered-in-order`). So nothing is deleted while a committed entry cannot be published. Every attempt does all of
   this, also after a restart.
5. The release names the first id that was not used (`ids-rise`), and no entry of its generation follows (`held`).
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
from checkpointing.tick.claiming import Claiming, Held
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.holding import Holding
from checkpointing.tick.messages import TOLD, Done, Finish, Outcome, TickEffect, TickFact, Unsettled, Wait, Waited
from checkpointing.tick.moves import MOVES

HELD_POLL_MS: Final = 250
"""A tick that goes on in another trace checks this often whether the job is free again."""


def seed_of(claim: Claim) -> int:
    """Derive a random seed from the claim's nonce. It differs for each generation and can be replayed."""
    return crc32(claim.nonce.encode())


class TickDoor:
    """One process that works on the job, from its first look to its end."""

    def __init__(self, errand: Errand, terms: Terms) -> None:
        """Begin before the first look."""
        self._errand = errand
        self._terms = terms
        self._attempts = Attempts(terms.strategy, terms.limits)
        self._now = Stamp(0, "")
        self._own: Held | None = None
        """What this process held last: its newest claim that is in."""
        self._steps = self._all_attempts()
        self.awaits: TickEffect | None = None
        """The effect that must be answered next."""

    def start(self, at: Stamp) -> tuple[TickEffect, ...]:
        """Begin by observing the entries."""
        self._now = at
        self._attempts.began(at)
        return self._until_asked(next(self._steps))

    def step(self, fact: TickFact, at: Stamp) -> tuple[TickEffect, ...]:
        """Take the answer to the last effect. Return what to do next. Raises UnexpectedFactError."""
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
            follows = self._attempts.follows(outcome, self._now, seed_of(self._own.claim))
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
        """Claim the job, and hold it until it is released. When the trace is full, do so again.

        In between, the job is free for a moment. If another process takes it then, this tick waits for it.
        """
        wait_until_ms = 0
        while True:
            own = self._own
            try:
                held = yield from Claiming(self._errand, self._terms, own, self._at).claimed()
            except StepFailedError as refused:
                waits = self._now.now_ms < wait_until_ms and not self._now.stopping
                if not waits or not isinstance(refused.outcome, Refused):
                    return refused.outcome if own is None else _as_failed(refused)
                yield from asked(Wait(HELD_POLL_MS), Waited)
                continue
            self._own = held
            holding = Holding(self._errand, self._terms, held, self._at, self._attempts)
            outcome = yield from holding.ended()
            if not holding.renews or not self._attempts.renews(self._now):
                return outcome
            wait_until_ms = self._now.now_ms + self._terms.waits_ms

    def _at(self) -> Stamp:
        return self._now


def _as_failed(refused: StepFailedError) -> Outcome:
    """Return how a refused later attempt ends: failed, unless another process holds the job.

    Errors stay as they are.
    """
    outcome = refused.outcome
    if not refused.is_refusal or isinstance(outcome, Refused):
        return outcome
    message = str(outcome)
    if isinstance(outcome, Unsettled):
        message = f"the job could not be claimed ({' '.join(outcome.error.split())}): start again"
    return EndTick(TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE, message)
