"""The steps up to the claim: observe, decide, ask the questions, append the claim.

If another process was first, or if the list of entries lags behind, the process looks again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from checkpointing.commit.approval import held_cut, waits_for_approval
from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import MayClaim, Refused, newest_claim, release_of
from checkpointing.commit.recovery import Observed, RecoveryPlan, decide_recovery, has_finished
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import EndTick, RowAppended, RowUnknown, TickOutcome
from checkpointing.metadata.record import Claim
from checkpointing.tick.asking import TRIES, StepFailedError, Steps, appended, asked
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.messages import AppendClaim, Done, Examine, GiveLease, Observe, Question, Unsettled


@dataclass(frozen=True, slots=True)
class Held:
    """This process holds the job. The claim is in at `at_version`, as the successor of the version that was `seen`."""

    claim: Claim
    at_version: int
    seen: Observed
    plan: RecoveryPlan


class Claiming:
    """The claims that an attempt has met. With `take_over` it takes the job over once, but not from a newer claim."""

    def __init__(self, errand: Errand, terms: Terms, own: Held | None, now: Callable[[], Stamp]) -> None:
        """Begin an attempt. `own` is what this tick's attempt before has held, or None."""
        self._errand = errand
        self._terms = terms
        self._take_over = terms.take_over or own is not None
        self._met = own.claim.generation if own is not None else None
        self._known = own.at_version if own is not None else 0
        """The newest version of `checkpoints` that this process knows of."""
        self._now = now

    def claimed(self) -> Steps[Held]:
        """Claim the job.

        Raise StepFailedError: another process holds it, a question was answered no, the outcome is open, lists of the
        entries lag behind, the job has finished, or a cut waits for approval.
        """
        seen: Observed | None = None
        for _ in range(TRIES):
            if seen is None:
                seen = yield from self._looked()
            plan = yield from self._decided(seen)
            held = held_cut(seen.rows) if self._errand.moves_on else None
            if held is not None:
                waits = StepFailedError(EndTick(TickOutcome.HELD, message=waits_for_approval(held)))
                seen = yield from self._seen_again(seen, waits)
                continue
            if self._may_be_over(seen, plan) and (yield from examined((Question.WHOLE,), seen, plan)) is None:
                raise StepFailedError(EndTick(TickOutcome.FINISHED))
            objection = yield from examined(self._errand.questions, seen, plan)
            if objection is not None:
                seen = yield from self._seen_again(seen, objection)
                continue
            at = self._now()
            claim = plan.claim.claim(self._terms.holder, at.now_ms, at.nonce, self._terms.ids)
            answer = yield from appended(AppendClaim(claim, seen.version))
            if isinstance(answer, RowAppended):
                return Held(claim, answer.version, seen, plan)
            if isinstance(answer, RowUnknown):
                raise StepFailedError(Unsettled(answer.error), is_refusal=True)
            self._known, seen = seen.version + 1, None
        raise StepFailedError(Unsettled(f"others wrote first {TRIES} times"), is_refusal=True)

    def _looked(self) -> Steps[Observed]:
        """Look at the entries. If the list ends before an entry that this process knows of, look again.

        Such a list may lack this process's newest claim. It then ends with an older claim of this process, which would
        look like another process's. Raise StepFailedError if so many lists in a row lag behind.
        """
        for _ in range(TRIES):
            seen = yield from asked(Observe(), Observed)
            if seen.version >= self._known:
                self._known = seen.version
                return seen
        lags = f"the list of its entries ends at version {seen.version}, and this process knows version {self._known}"
        raise StepFailedError(Unsettled(lags), is_refusal=True)

    def _seen_again(self, seen: Observed, objection: StepFailedError) -> Steps[Observed]:
        """Look again. If nobody has appended an entry meanwhile, raise the objection.

        Files and tables are read after the entries. If others wrote entries in between, the entries that were seen are
        older than the files and tables. A table may show what a newer entry says. A file that an older entry names may
        be gone.
        """
        now = yield from self._looked()
        if now.version == seen.version:
            raise objection
        return now

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

    def _may_be_over(self, seen: Observed, plan: RecoveryPlan) -> bool:
        """Return whether the job has finished, and no holder has died and left something undone (B4).

        Then a tick has nothing to do, unless a table has lost log entries since.
        """
        settled = plan.roll_forward is None and release_of(seen.rows, newest_generation(seen)) is not None
        return self._errand.runs and settled and has_finished(plan.restore, self._terms.sources)

    def _above(self, claim: MayClaim) -> MayClaim:
        """Return the claim above all generations and ids of the warehouse from which an entry is imported."""
        generation, last_id = self._terms.above
        return replace(
            claim,
            generation=Generation(max(claim.generation, generation + 1)),
            first_id=CheckpointId(max(claim.first_id, last_id + 1)),
        )


def examined(questions: tuple[Question, ...], seen: Observed, plan: RecoveryPlan) -> Steps[StepFailedError | None]:
    """Ask all questions in order. Return the first objection, or None."""
    for question in questions:
        try:
            yield from asked(Examine(question, seen, plan), Done)
        except StepFailedError as objection:
            return objection
    return None


def newest_generation(seen: Observed) -> Generation:
    """Return the generation of the newest claim, or 0."""
    newest = newest_claim(seen.rows)
    return newest.generation if newest is not None else Generation(0)
