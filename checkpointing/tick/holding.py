"""The steps from a claim to its release: recover, do the work, append its entry, release the job."""

from collections.abc import Callable
from dataclasses import replace

from checkpointing.commit.at_rest import Recipe, Stamp, turn_of
from checkpointing.commit.fencing import release_of
from checkpointing.commit.recovery import Observed
from checkpointing.commit.two_phase import UnexpectedFactError
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import EndTick, LookForRival, RivalSeen, RowAppended, RowRefused, TickOutcome
from checkpointing.metadata.record import CheckpointRecord, Release
from checkpointing.tick.asking import StepFailedError, Steps, appended, asked
from checkpointing.tick.attempts import Attempts
from checkpointing.tick.claiming import Held, newest_generation
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.messages import (
    AppendEntry,
    AppendRelease,
    CleanUp,
    Done,
    LetGo,
    Observe,
    Outcome,
    RollBackPreCommitted,
    RowChosen,
    TakeHold,
    Unsettled,
    Work,
    Worked,
    WorkEnded,
)
from checkpointing.tick.recovering import recovered, rolled_forward

_WORK_DONE = (WorkEnded, RowChosen, Worked)


class Holding:
    """One claim, from its append to its release."""

    def __init__(self, errand: Errand, terms: Terms, held: Held, now: Callable[[], Stamp], attempts: Attempts) -> None:
        """Begin at the claim."""
        self._errand = errand
        self._terms = terms
        self._held = held
        self._now = now
        self._attempts = attempts
        self._next_id = held.claim.first_id
        """The first id that was not used."""
        self._at_version = held.at_version
        """The version of `checkpoints` with the newest entry of this process."""
        self._dropped: tuple[CheckpointId, ...] = ()
        """Entries that the release drops."""
        self.renews = False
        """True if the work ended only because its trace was full."""

    def ended(self) -> Steps[Outcome]:
        """Take all steps from the claim to the release. Return the outcome."""
        yield TakeHold(self._held.claim, self._held.plan)
        try:
            outcome = yield from self._worked()
        except StepFailedError as failed:
            outcome = failed.outcome
        if isinstance(outcome, EndTick) and outcome.outcome is TickOutcome.FAILED and self._errand.runs:
            outcome = yield from self._with_cause(outcome)
        yield from self._released()
        yield LetGo()
        return outcome

    # -------------------------------------------------------------- the work

    def _worked(self) -> Steps[Outcome]:
        held = self._held
        done = yield from recovered(self._errand, self._terms, held)
        self._attempts.recovered(done, held.claim.generation)
        yield done
        limits = self._attempts.limits(self._now())
        work = yield from asked(Work(held.claim, held.at_version, held.seen, held.plan, limits), _WORK_DONE)
        match work:
            case WorkEnded():
                return (yield from self._job_ended(work))
            case RowChosen():
                return (yield from self._own_entry(work.recipe))
            case Worked():
                self._dropped = work.dropped
                return None
            case _:
                raise UnexpectedFactError(f"{work} as the answer to the work")

    def _job_ended(self, work: WorkEnded) -> Steps[Outcome]:
        self._next_id, self._at_version = work.next_id, work.at_version
        self.renews = work.renews
        self._attempts.completed += work.completed
        ended = isinstance(work.end, EndTick) and work.end.outcome is not TickOutcome.FAILED
        if ended and work.votes:  # a checkpoint that nobody waited for may have been voted on, and never committed
            yield from asked(RollBackPreCommitted(self._next_id), Done)
        if ended and not self._now().stopping:
            yield from asked(CleanUp(self._held.claim.generation), Done)
        return work.end

    def _own_entry(self, recipe: Recipe) -> Steps[CheckpointRecord]:
        """Append the entry of this recipe. Publish it if the errand says so."""
        held = self._held
        row = recipe.row(held.claim, self._now())
        records = (each for each in held.seen.rows if isinstance(each, CheckpointRecord))
        self._next_id = CheckpointId(row.checkpoint + 1)
        answer = yield from appended(AppendEntry(row, held.at_version, turn_of(recipe, records)))
        if not isinstance(answer, RowAppended):
            taken = f"taken over by {answer.holder}" if isinstance(answer, RowRefused) else answer.error
            raise StepFailedError(Unsettled(taken))
        self._at_version = answer.version
        if self._errand.publishes:
            yield from rolled_forward(row, self._held.seen.rows)
        return row

    # -------------------------------------------------------------- the end

    def _with_cause(self, end: EndTick) -> Steps[EndTick]:
        """Return how an attempt ended. If it failed because another process has the job, the reason is FENCED.

        The process that took the job has deleted the staged files of this attempt. So micro-batches fail before a
        refused entry can tell the reason.
        """
        if end.reason is CheckpointFailureReason.FENCED:
            return end
        seen = yield LookForRival(self._held.claim.generation)
        rival = seen.claim if isinstance(seen, RivalSeen) else None
        if rival is None:
            return end
        said = f"the job was claimed by {rival.holder}, generation {rival.generation}; before this tick knew: "
        return replace(end, reason=CheckpointFailureReason.FENCED, message=f"{said}{end.message}")

    def _released(self) -> Steps[None]:
        """Append the release. If it is missing, the next start only has to check whether this process lives.

        If it was not appended, or nobody knows, look again. An own entry whose outcome was unknown may lie in between.
        It may be the release itself, whose reply was lost.
        """
        own = self._held.claim.generation
        if isinstance((yield self._release(self._at_version)), RowAppended):
            return
        seen = yield Observe()
        if isinstance(seen, Observed) and newest_generation(seen) == own and release_of(seen.rows, own) is None:
            yield self._release(seen.version)

    def _release(self, at_version: int) -> AppendRelease:
        at, generation = self._now(), self._held.claim.generation
        release = Release(generation=generation, next_id=self._next_id, at_ms=at.now_ms, nonce=at.nonce)
        return AppendRelease(release, at_version, self._dropped)
