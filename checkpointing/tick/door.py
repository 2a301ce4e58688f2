"""The tick door: holds a job from the first look at its entries to the release, `step(fact, stamp) -> effects`.

A tick uses this door, and so does all work on a job at rest: savepoint, rollback, reset, import, disposal,
cancellation, clean-up. An errand says which steps it takes. The sections of this file have them in order: up to the
claim, up to the work, up to the release. A step returns one or more effects. The last one is `Finish`, or its answer is
the fact of the next step.

Invariants, each with the rule of `spec.rules.invariants` that checks it:

1. A claim is appended as the successor of exactly the version that was observed, and only after every question about
   that version's entries was answered yes (`one-generation`, `line`).
2. Tables, cuts and files change only between an appended claim and its release (`held`).
3. If a claim was refused or is in doubt, the process that lost never releases it (`held`, `ids-rise`).
4. Tables that are behind are repaired before an entry is rolled forward. An entry is rolled forward and its cut
   recorded before leftovers are deleted. Leftovers are deleted before the first entry of the claim
   (`recovered-in-order`). So nothing is deleted while a committed entry cannot be published. Every attempt does all of
   this, also after a restart.
5. The release names the first id that was not used (`ids-rise`), and no entry of its generation follows (`held`).
6. A process that loses the race to another claim does not take the job over from the winner (`one-generation`).
"""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from zlib import crc32

from checkpointing.commit.at_rest import Recipe, Stamp, held_cut, turn_of, waits_for_approval
from checkpointing.commit.cleanup import referenced
from checkpointing.commit.columns import columns_of
from checkpointing.commit.fencing import MayClaim, Refused, newest_checkpoint, newest_claim, release_of
from checkpointing.commit.lost_publications import Correction, Doubt, Versions, corrected
from checkpointing.commit.outside_sinks import outside_publications
from checkpointing.commit.recovery import Observed, RecoveryPlan, decide_recovery, has_finished, publications
from checkpointing.commit.two_phase import UnexpectedFactError
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import (
    CutRecorded,
    EndTick,
    LookForRival,
    PublishFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
    TickOutcome,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row, RowKind
from checkpointing.tick.attempts import Attempts, Errand, Terms
from checkpointing.tick.messages import (
    TOLD,
    AppendClaim,
    AppendEntry,
    AppendRelease,
    Broke,
    CleanUp,
    CorrectCuts,
    CutRead,
    DiscardLeftovers,
    Done,
    EnsureTables,
    Examine,
    Failed,
    Finish,
    GiveLease,
    LeftoversDiscarded,
    LetGo,
    LogsSeen,
    LookAtLogs,
    LookAtTables,
    Objected,
    Observe,
    Outcome,
    PublishAgain,
    Question,
    ReadCut,
    Recovered,
    RollBackPreCommitted,
    RolledForward,
    RowChosen,
    TablesSeen,
    TakeHold,
    TickEffect,
    TickFact,
    Unsettled,
    Wait,
    Waited,
    Work,
    Worked,
    WorkEnded,
)
from checkpointing.tick.transitions import MOVES

# ------------------------------------------------------------------
# How the steps of the tick door ask: a step yields an effect, and gets the fact that answers it.
#
# If an effect fails, the steps that yielded it end.


TRIES: Final = 5
"""How often a process tries an append whose outcome is unknown, or a claim while other processes are faster.

It also reads the list of entries at most this often if the list lags behind.
"""

_T = TypeVar("_T")
_Fact = TypeVar("_Fact", bound=TickFact)
Steps = Generator[TickEffect, TickFact, _T]


class StepFailedError(Exception):
    """Ends all steps up to the attempt. `outcome` says how the attempt ends. `is_refusal`: nothing was changed."""

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
    """Return the outcome of an append. While it is unknown, append again. If the entry is in, this finds its nonce."""
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
    """Return the outcome of an attempt that cannot publish a committed entry. Nothing is deleted."""
    said = "could not be published again" if isinstance(effect, PublishAgain) else "is committed, but not published"
    message = f"checkpoint {fact.checkpoint} {said}: {fact.error}"
    return EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, message)


# ------------------------------------------------------------------
# The steps up to the claim: observe, decide, ask the questions, append the claim.
#
# If another process was first, or if the list of entries lags behind, the process looks again.


@dataclass(frozen=True, slots=True)
class Held:
    """This process holds the job. The claim is in at `at_version`, as the successor of the version that was `seen`."""

    claim: Claim
    at_version: int
    seen: Observed
    plan: RecoveryPlan


class Claiming:
    """The claims that an attempt has seen. With `take_over` it takes the job over once, but not from a newer claim."""

    def __init__(self, errand: Errand, terms: Terms, own: Held | None, now: Callable[[], Stamp]) -> None:
        """Begin an attempt. `own` is what the attempt before, of the same tick, has held, or None."""
        self._errand = errand
        self._terms = terms
        self._take_over = terms.take_over or own is not None
        self._met = own.claim.generation if own is not None else None
        self._known = own.at_version if own is not None else 0
        """The newest version of `checkpoints` that this process knows of."""
        self._now = now

    def claimed(self) -> Steps[Held]:
        """Claim the job.

        Raise StepFailedError if another process holds the job, a question was answered no, the claim's outcome is
        unknown, lists of the entries lag behind, the job has finished, or a cut waits for approval.
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
        look like another process's. Raise StepFailedError if TRIES lists in a row lag behind.
        """
        for _ in range(TRIES):
            seen = yield from asked(Observe(), Observed)
            if seen.version >= self._known:
                self._known = seen.version
                return seen
        lags = f"the list of its entries ends at version {seen.version}, and this process knows version {self._known}"
        raise StepFailedError(Unsettled(lags), is_refusal=True)

    def _seen_again(self, seen: Observed, objection: StepFailedError) -> Steps[Observed]:
        """Look at the entries again. If nobody has appended an entry in the meantime, raise the objection.

        Files and tables are read after the entries. If other processes appended entries in between, the entries that
        were seen are older than the files and tables. Then a table may already show a newer entry, and a file that an
        older entry names may be deleted.
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
        """Return whether the job has finished, and the last holder left nothing undone by dying (B4).

        Then a tick has nothing to do, unless a table has lost log entries since.
        """
        settled = plan.roll_forward is None and release_of(seen.rows, newest_generation(seen)) is not None
        return self._errand.runs and settled and has_finished(plan.restore, self._terms.sources)

    def _above(self, claim: MayClaim) -> MayClaim:
        """Return the claim with numbers above all those of the warehouse from which an entry is imported."""
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


# ------------------------------------------------------------------
# The steps between a claim and its work: repair tables that are behind, roll forward, discard leftovers.
#
# Every start takes these steps. If a process crashes here, the next start takes them again.


def recovered(errand: Errand, terms: Terms, held: Held) -> Steps[Recovered]:
    """Do everything that dead holders left unfinished, in this order."""
    pending = held.plan.roll_forward if errand.rolls_forward else None
    whole = (yield from repaired(errand, terms, held)) if errand.repairs else True
    settled = pending is None or (yield from rolled_forward_or_left(terms, pending, held.seen.rows, whole=whole))
    leftovers = 0
    if errand.discards and settled:
        leftovers = yield from discarded(held.claim, held.seen)
    return Recovered(held.plan, leftovers)


def repaired(errand: Errand, terms: Terms, held: Held) -> Steps[bool]:
    """Repair tables that show less than a recorded cut, and correct the cuts.

    Return False if a table cannot be repaired and the process is a rollback, which goes on all the same.
    """
    looked = yield from asked(LookAtTables(held.seen.rows), TablesSeen)
    doubt, pending = looked.doubt, held.plan.roll_forward
    if errand.ensures:
        unsettled = {table.table for table in pending.tables} if pending is not None else set()
        unsettled |= doubt.repairs.tables if doubt is not None else set()
        yield from asked(EnsureTables(held.plan, frozenset(unsettled)), Done)
    if doubt is None or doubt.is_none:
        return doubt is not None
    for again in doubt.repairs.again:
        yield from asked(PublishAgain(again), TablePublished)
    yield from given_to_sinks(terms, held, doubt)
    yield from asked(CorrectCuts(doubt, (yield from _correction(doubt))), Done)
    return True


def given_to_sinks(terms: Terms, held: Held, doubt: Doubt) -> Steps[None]:
    """Publish the newest entry to outside sinks once more if its cut was lost. No log says whether sinks have its rows.

    A rollback that abandons this entry does not publish it, since it takes these rows back.
    """
    newest = newest_checkpoint(held.seen.rows)
    if newest is not None and newest.checkpoint in doubt.rebuilt and not _may_leave(terms, newest):
        for publication in outside_publications(newest, _parent_of(newest, held.seen.rows)):
            yield from asked(PublishTable(newest.checkpoint, publication), TablePublished)


def _correction(doubt: Doubt) -> Steps[Correction]:
    if not doubt.repairs.tables:
        return Correction(doubt.rebuilt, ())
    logs = yield from asked(LookAtLogs(doubt), LogsSeen)
    correction = corrected(doubt.seen, logs.published)
    return replace(correction, changed={**doubt.rebuilt, **correction.changed})


def rolled_forward_or_left(terms: Terms, pending: CheckpointRecord, rows: Iterable[Row], *, whole: bool) -> Steps[bool]:
    """Roll forward an entry that a dead holder left unpublished. Return whether that was done.

    If the entry cannot be published, a rollback abandons it, unless the rollback goes back to this very entry. If
    tables are lost (not `whole`), a rollback does not even try: the entry's cut would show other rows than the entry
    says.
    """
    may_leave = _may_leave(terms, pending)
    if may_leave and not whole:
        return False
    try:
        yield from rolled_forward(pending, rows)
    except StepFailedError as failed:
        if not isinstance(failed.outcome, EndTick) or not may_leave:
            raise
        return False
    return True


def _may_leave(terms: Terms, record: CheckpointRecord) -> bool:
    """Return whether the errand is a rollback to an entry other than this one."""
    return terms.leaves_behind not in (None, record.checkpoint)


def rolled_forward(record: CheckpointRecord, rows: Iterable[Row]) -> Steps[None]:
    """Publish a committed entry into its tables, then to outside sinks, and record its cut. `rows` are all entries.

    The cut has all tables whose columns the entry lists: those of the pipeline that wrote it. Tables that the entry
    does not change have the version of its parent's cut. An entry that no tick wrote, or that lists no columns, keeps
    all tables of its parent's cut.

    If an upsert or state table lost log entries, and no retained entry has its version at the parent's cut, the table
    is missing in that cut (`lost_publications.corrected`). The table's present columns are unknown then, so it gets
    only this entry's columns.

    The former holder may still be running. It may record this cut, and drop the parent's cut. So this cut is read after
    the parent's, and used if it exists.
    """
    parent = (yield from asked(ReadCut(record.parent), CutRead)).versions
    own = (yield from asked(ReadCut(record.checkpoint), CutRead)).versions
    if own:
        yield RolledForward(record, tuple(own.items()), ())
        return
    versions, notes = _versions_at(parent, record), []
    untold = _untold(parent, record)
    for publication in (*publications(record), *outside_publications(record, _parent_of(record, rows))):
        due = replace(publication, no_others=publication.table in untold)
        published = yield from asked(PublishTable(record.checkpoint, due), TablePublished)
        if not published.outside:
            versions[publication.table] = published.version
        if published.note:
            notes.append(f"{publication.table}: {published.note}")
    yield from asked(RecordCut(record.checkpoint, tuple(versions.items())), CutRecorded)
    yield RolledForward(record, tuple(versions.items()), tuple(notes))


def _parent_of(record: CheckpointRecord, rows: Iterable[Row]) -> CheckpointRecord | None:
    found = (row for row in rows if isinstance(row, CheckpointRecord) and row.checkpoint == record.parent)
    return next(found, None)


def _untold(parent: Versions, record: CheckpointRecord) -> frozenset[TableName]:
    """Return the upsert and state tables that were removed from the parent's cut."""
    were = (table for table in record.tables if parent and table.parent_version and table.table not in parent)
    return frozenset(table.table for table in were if table.mode is not TableMode.APPEND)


def _versions_at(parent: Versions, record: CheckpointRecord) -> dict[TableName, int]:
    touched = {table.table: table.parent_version for table in record.tables}
    said = columns_of(record)
    kept = () if said and record.kind is RowKind.CHECKPOINT else parent
    names = (*said, *kept, *touched)
    return {table: parent.get(table, touched.get(table, 0)) for table in names}


def discarded(claim: Claim, seen: Observed) -> Steps[int]:
    """Delete unreferenced staged files of older generations. Return the number of deleted files.

    Transactions that outside sinks have pre-committed for older checkpoints are rolled back with them.

    If an entry cannot be read, delete nothing, because it can name some of the files.
    """
    if seen.damaged:
        return 0
    gone = yield from asked(
        DiscardLeftovers(claim.generation, referenced(seen.rows), claim.first_id), LeftoversDiscarded
    )
    return gone.files


# ------------------------------------------------------------------
# The steps from a claim to its release: recover, do the work, append its entry, release the job.


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
        """The entries that the release drops."""
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
        """Return how an attempt ended. If another process has claimed the job, the reason of a failure is FENCED.

        The process that took the job has deleted the staged files of this attempt. So micro-batches fail before the
        refusal of an entry can show the reason.
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
        """Append the release. Without it, the next start has to check whether this process lives, and nothing else.

        If the release was not appended, or nobody knows, look at the entries again. An entry of this process whose
        outcome was unknown may have come before it. This may be the release itself, whose reply was lost.
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


HELD_POLL_MS: Final = 250
"""How often a tick that goes on in another trace checks whether the job is free again."""


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
        """What this process held last: its newest appended claim."""
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
        """Make attempts until none follows."""
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

        In between, the job is free for a moment. If another process takes the job then, this tick waits for the job.
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
    """Return the outcome of a later attempt that was refused: failed, unless another process holds the job.

    Outcomes that are no refusals stay as they are.
    """
    outcome = refused.outcome
    if not refused.is_refusal or isinstance(outcome, Refused):
        return outcome
    message = str(outcome)
    if isinstance(outcome, Unsettled):
        message = f"the job could not be claimed ({' '.join(outcome.error.split())}): start again"
    return EndTick(TickOutcome.FAILED, CheckpointFailureReason.TASK_FAILURE, message)
