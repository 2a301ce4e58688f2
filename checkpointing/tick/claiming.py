"""The steps before and at the claim: observe, decide, ask what must be true, append the claim; look again if beaten."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import MayClaim, Refused, newest_claim
from checkpointing.commit.recovery import Observed, RecoveryPlan, decide_recovery
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import RowAppended, RowUnknown
from checkpointing.metadata.record import Claim
from checkpointing.tick.asking import TRIES, StepFailedError, Steps, appended, asked
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.messages import AppendClaim, Done, Examine, GiveLease, Observe, Unsettled


@dataclass(frozen=True, slots=True)
class Held:
    """The job is held: by this claim, which lies at that version behind what was seen."""

    claim: Claim
    at_version: int
    seen: Observed
    plan: RecoveryPlan


class Claiming:
    """What an attempt knows of those who hold the job. It takes nothing over from a claim that came meanwhile."""

    def __init__(self, errand: Errand, terms: Terms, own: Generation | None, now: Callable[[], Stamp]) -> None:
        """Begin an attempt; `own` is the generation of this tick's attempt before."""
        self._errand = errand
        self._terms = terms
        self._take_over = terms.take_over or own is not None
        self._met = own
        self._now = now

    def claimed(self) -> Steps[Held]:
        """Claim the job. Raises StepFailedError with who holds it, what is in the way, or that the outcome is open."""
        seen: Observed | None = None
        for _ in range(TRIES):
            if seen is None:
                seen = yield from asked(Observe(), Observed)
            plan = yield from self._decided(seen)
            objection = yield from examined(self._errand, seen, plan)
            if objection is not None:
                seen = yield from seen_again(seen, objection)
                continue
            at = self._now()
            claim = plan.claim.claim(self._terms.holder, at.now_ms, at.nonce, self._terms.ids)
            answer = yield from appended(AppendClaim(claim, seen.version))
            if isinstance(answer, RowAppended):
                return Held(claim, answer.version, seen, plan)
            if isinstance(answer, RowUnknown):
                raise StepFailedError(Unsettled(answer.error), is_refusal=True)
            seen = None
        raise StepFailedError(Unsettled(f"others wrote first {TRIES} times"), is_refusal=True)

    def _decided(self, seen: Observed) -> Steps[RecoveryPlan]:
        newest = newest_generation(seen)
        self._take_over = self._take_over and self._met in (None, newest)
        self._met = newest
        decision = decide_recovery(seen, take_over=self._take_over)
        if not isinstance(decision, Refused):
            return replace(decision, claim=self._above(decision.claim))
        if decision.give_lease_ms is not None:
            yield GiveLease(decision, decision.give_lease_ms)
        raise StepFailedError(decision, is_refusal=True)

    def _above(self, claim: MayClaim) -> MayClaim:
        """Return the claim above every generation and id of the warehouse that an import comes from."""
        generation, last_id = self._terms.above
        return replace(
            claim,
            generation=Generation(max(claim.generation, generation + 1)),
            first_id=CheckpointId(max(claim.first_id, last_id + 1)),
        )


def examined(errand: Errand, seen: Observed, plan: RecoveryPlan) -> Steps[StepFailedError | None]:
    """Ask what must be true, one question after the other; return the first objection, None if there is none."""
    for question in errand.questions:
        try:
            yield from asked(Examine(question, seen, plan), Done)
        except StepFailedError as objection:
            return objection
    return None


def seen_again(seen: Observed, objection: StepFailedError) -> Steps[Observed]:
    """Look again whether others have appended entries meanwhile; raise the objection if nobody has.

    Files and tables are looked at after the entries. If others wrote entries in between, the two are of different
    moments: a table may show what only a newer entry says, and a file be gone that only an older one names.
    """
    now = yield from asked(Observe(), Observed)
    if now.version == seen.version:
        raise objection
    return now


def newest_generation(seen: Observed) -> Generation:
    """Return the generation of the newest claim, 0 if there is none."""
    newest = newest_claim(seen.rows)
    return newest.generation if newest is not None else Generation(0)
