"""Plants bugs in the commit: the order in which tables show it, the owner of entries, and recovery."""

from dataclasses import replace

from checkpointing.commit import fencing, recovery
from checkpointing.commit.draft import Draft
from checkpointing.commit.fencing import HolderObserved, MayClaim, Refused
from checkpointing.commit.recovery import Observed, RecoveryPlan, publications
from checkpointing.commit.two_phase import (
    CheckpointCommitted,
    CommitEffect,
    CommitFact,
    CommitState,
    Declined,
    TwoPhaseCommit,
)
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.job.ids import CheckpointIds
from checkpointing.messages import (
    AppendRow,
    CutRecorded,
    Publication,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
    TablesChecked,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Release, Row
from spec.mutants.judges import COMMIT
from spec.mutants.planting import Patch, mutant

_Effects = tuple[CommitEffect, ...]

# ------------------------------------------------------------------ visibility


@mutant("visible-after-commit")
def tables_are_published_before_the_entry_is_appended(patch: Patch) -> None:
    real = TwoPhaseCommit._checked

    def checked(self: TwoPhaseCommit, fact: TablesChecked) -> _Effects:
        effects = real(self, fact)
        record = self._record
        if record is None:
            return effects
        early = tuple(PublishTable(record.checkpoint, each) for each in publications(record))
        return (*early, *effects)

    patch.put(TwoPhaseCommit, "_checked", checked)


def _is_in(self: TwoPhaseCommit, fact: RowRefused | RowUnknown) -> RowAppended:
    return RowAppended(fact.nonce, self._at_version + 1)


@mutant("visible-after-commit")
def a_refused_entry_is_taken_for_an_appended_one(patch: Patch) -> None:
    real = TwoPhaseCommit.step

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> _Effects:
        return real(self, _is_in(self, fact) if isinstance(fact, RowRefused) else fact, now_ms)

    patch.put(TwoPhaseCommit, "step", step)


@mutant("visible-after-commit")
def an_entry_of_unknown_outcome_is_taken_for_an_appended_one(patch: Patch) -> None:
    real = TwoPhaseCommit.step

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> _Effects:
        return real(self, _is_in(self, fact) if isinstance(fact, RowUnknown) else fact, now_ms)

    patch.put(TwoPhaseCommit, "step", step)


@mutant("visible-after-commit")
def other_files_are_published_than_the_entry_names(patch: Patch) -> None:
    real = recovery.publications

    def fewer(record: CheckpointRecord) -> tuple[Publication, ...]:
        return tuple(replace(each, adds=each.adds[1:], files=each.files[1:]) for each in real(record))

    patch.function(recovery, "publications", fewer)


# ------------------------------------------------------------------ the order of entries, tables and cuts


@mutant("published-in-order")
def the_next_entry_is_sent_before_the_cut_is_recorded(patch: Patch) -> None:
    real_cut, real_step = TwoPhaseCommit._record_cut, TwoPhaseCommit.step

    def record_cut(self: TwoPhaseCommit) -> _Effects:
        return (*real_cut(self), *self._recorded())

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> _Effects:
        return () if isinstance(fact, CutRecorded) else real_step(self, fact, now_ms)

    patch.put(TwoPhaseCommit, "_record_cut", record_cut)
    patch.put(TwoPhaseCommit, "step", step)


@mutant("published-in-order")
def a_cut_is_recorded_only_if_a_table_changes(patch: Patch) -> None:
    real = TwoPhaseCommit._appended

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> _Effects:
        effects = real(self, fact)
        unchanged = self._record is not None and not publications(self._record)
        return self._recorded() if unchanged and isinstance(effects[0], RecordCut) else effects

    patch.put(TwoPhaseCommit, "_appended", appended)


@mutant("published-in-order")
def recovery_ignores_an_entry_that_is_not_published(patch: Patch) -> None:
    real = recovery.decide_recovery

    def decide_recovery(seen: Observed, *, take_over: bool) -> RecoveryPlan | Refused:
        plan = real(seen, take_over=take_over)
        if isinstance(plan, Refused) or plan.roll_forward is None:
            return plan
        published = tuple(row for row in seen.rows if isinstance(row, CheckpointRecord) and row.checkpoint in seen.cuts)
        return replace(plan, roll_forward=None, restore=fencing.newest_checkpoint(published))

    patch.function(recovery, "decide_recovery", decide_recovery)


@mutant("published-completely")
def a_cut_is_recorded_after_the_first_table(patch: Patch) -> None:
    real_published, real_step = TwoPhaseCommit._published, TwoPhaseCommit.step

    def published(self: TwoPhaseCommit, fact: TablePublished) -> _Effects:
        self._unpublished = frozenset({fact.table})
        return real_published(self, fact)

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> _Effects:
        late = isinstance(fact, TablePublished) and self._state is not CommitState.PUBLISHING
        return () if late else real_step(self, fact, now_ms)

    patch.put(TwoPhaseCommit, "_published", published)
    patch.put(TwoPhaseCommit, "step", step)


@mutant("published-completely")
def the_last_table_is_not_published(patch: Patch) -> None:
    real = recovery.publications

    def fewer(record: CheckpointRecord) -> tuple[Publication, ...]:
        return real(record)[:-1]

    patch.function(recovery, "publications", fewer)


@mutant("published-completely")
def a_failed_publication_is_taken_for_a_success(patch: Patch) -> None:
    real = TwoPhaseCommit.step

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> _Effects:
        if isinstance(fact, PublishFailed):
            return real(self, TablePublished(fact.checkpoint, fact.table, self._versions.get(fact.table, 0)), now_ms)
        return real(self, fact, now_ms)

    patch.put(TwoPhaseCommit, "step", step)


@mutant("doors-hold")
def every_table_is_published_twice(patch: Patch) -> None:
    real = TwoPhaseCommit._appended

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> _Effects:
        effects = real(self, fact)
        return (*effects, *(effect for effect in effects if isinstance(effect, PublishTable)))

    patch.put(TwoPhaseCommit, "_appended", appended)


# ------------------------------------------------------------------ the line of entries


@mutant("parent-line")
def the_parent_is_never_moved_on(patch: Patch) -> None:
    real = TwoPhaseCommit._appended

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> _Effects:
        parent = self._parent
        effects = real(self, fact)
        self._parent = parent
        return effects

    patch.put(TwoPhaseCommit, "_appended", appended)


@mutant("parent-line")
def an_entry_names_no_parent(patch: Patch) -> None:
    real = TwoPhaseCommit._compose

    def compose(self: TwoPhaseCommit, draft: Draft) -> CheckpointRecord:
        return real(self, draft).model_copy(update={"parent": NO_CHECKPOINT})

    patch.put(TwoPhaseCommit, "_compose", compose)


@mutant("parent-line", flink=("FLINK-10354", "FLINK-25191"))
def recovery_goes_back_behind_the_newest_checkpoint(patch: Patch) -> None:
    real = recovery.decide_recovery

    def decide_recovery(seen: Observed, *, take_over: bool) -> RecoveryPlan | Refused:
        plan = real(seen, take_over=take_over)
        rows = sorted(
            (row for row in seen.rows if isinstance(row, CheckpointRecord)), key=lambda record: record.checkpoint
        )
        if isinstance(plan, Refused) or len(rows) < 2:  # noqa: PLR2004 - there is nothing to go back to
            return plan
        return replace(plan, restore=rows[-2])

    patch.function(recovery, "decide_recovery", decide_recovery)


# ------------------------------------------------------------------ generations and ids


@mutant("one-generation")
def a_claim_takes_the_generation_of_the_one_before(patch: Patch) -> None:
    real = fencing.decide_claim

    def decide_claim(
        rows: tuple[Row, ...], seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        decision = real(rows, seen, now_ms, take_over=take_over)
        if isinstance(decision, Refused):
            return decision
        return replace(decision, generation=Generation(max(1, decision.generation - 1)))

    patch.function(fencing, "decide_claim", decide_claim)


@mutant("one-generation")
def a_take_over_claims_an_older_generation(patch: Patch) -> None:
    real = fencing._after_silence

    def after_silence(
        held: Claim, generation: Generation, seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        decision = real(held, generation, seen, now_ms, take_over=take_over)
        if isinstance(decision, Refused):
            return decision
        return replace(decision, generation=Generation(max(1, held.generation - 1)))

    patch.put(fencing, "_after_silence", after_silence)


@mutant("one-generation")
def a_refused_entry_is_sent_again_at_the_next_version(patch: Patch) -> None:
    real = TwoPhaseCommit.step

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> _Effects:
        if isinstance(fact, RowRefused) and self._record is not None and fact.nonce == self._record.nonce:
            self._at_version += 1
            return (AppendRow(self._record, self._at_version),)
        return real(self, fact, now_ms)

    patch.put(TwoPhaseCommit, "step", step)


@mutant("doors-hold")
def the_job_of_a_dead_holder_is_never_free(patch: Patch) -> None:
    def after_silence(
        held: Claim, generation: Generation, seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        return Refused(held.holder, held.generation, "it may still be alive")

    patch.put(fencing, "_after_silence", after_silence)


@mutant("ids-rise")
def an_id_is_used_again(patch: Patch) -> None:
    real = CheckpointIds.take

    def take(self: CheckpointIds) -> CheckpointId | None:
        taken = real(self)
        if self.next_id > self._claim.first_id + 1:
            self.next_id = self._claim.first_id
        return taken

    patch.put(CheckpointIds, "take", take)


@mutant("ids-rise")
def ids_begin_again_after_a_crash(patch: Patch) -> None:
    real = fencing._after_silence

    def after_silence(
        held: Claim, generation: Generation, seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        unused = held.model_copy(update={"last_id": held.first_id - 1})
        return real(unused, generation, seen, now_ms, take_over=take_over)

    patch.put(fencing, "_after_silence", after_silence)


@mutant("ids-rise")
def the_next_block_begins_with_the_last_id_of_the_one_before(patch: Patch) -> None:
    real = CheckpointIds.further

    def further(self: CheckpointIds, now_ms: int) -> Claim:
        claim = real(self, now_ms)
        self.next_id = CheckpointId(self.next_id - 1)
        return claim

    patch.put(CheckpointIds, "further", further)


@mutant("ids-rise")
def a_release_gives_its_last_id_away_again(patch: Patch) -> None:
    real = fencing.release_of

    def release_of(rows: tuple[Row, ...], generation: Generation) -> Release | None:
        release = real(rows, generation)
        if release is None or release.next_id == NO_CHECKPOINT + 1:
            return release
        return release.model_copy(update={"next_id": CheckpointId(release.next_id - 1)})

    patch.function(fencing, "release_of", release_of)


# ------------------------------------------------------------------ notifications


@mutant("told-truly")
def listeners_hear_of_a_completion_at_the_commit_point(patch: Patch) -> None:
    real_appended, real_recorded = TwoPhaseCommit._appended, TwoPhaseCommit._recorded

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> _Effects:
        effects = real_appended(self, fact)
        on_its_way = self._state in (CommitState.PUBLISHING, CommitState.RECORDING)
        return (CheckpointCommitted(self._committing(), ()), *effects) if on_its_way else effects

    def recorded(self: TwoPhaseCommit) -> _Effects:
        return real_recorded(self)[1:]

    patch.put(TwoPhaseCommit, "_appended", appended)
    patch.put(TwoPhaseCommit, "_recorded", recorded)


@mutant("told-truly", COMMIT)
def what_was_found_in_the_last_table_is_not_told(patch: Patch) -> None:
    real = TwoPhaseCommit._published

    def published(self: TwoPhaseCommit, fact: TablePublished) -> _Effects:
        last = self._unpublished == {fact.table}
        return real(self, replace(fact, note="") if last else fact)

    patch.put(TwoPhaseCommit, "_published", published)


@mutant("told-truly")
def a_declined_checkpoint_is_committed_nevertheless(patch: Patch) -> None:
    real = TwoPhaseCommit._checked

    def checked(self: TwoPhaseCommit, fact: TablesChecked) -> _Effects:
        draft = self._waiting[0]
        effects = real(self, fact)
        if isinstance(effects[0], Declined) and self._state is CommitState.IDLE:
            return (*effects, *self._finalise(draft))
        return effects

    patch.put(TwoPhaseCommit, "_checked", checked)
