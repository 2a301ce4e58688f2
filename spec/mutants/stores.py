"""Plants bugs in what a process does after a lost write, a lost reply, a late answer, or a stale list (G5, H1)."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from checkpointing.commit import recovery
from checkpointing.commit.fencing import Refused
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.commit.two_phase import CommitState, TwoPhaseCommit
from checkpointing.coordinator.completion import Completion
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.pending import PendingCheckpoint
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import (
    CutRecorded,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
)
from checkpointing.metadata.record import CheckpointRecord, Release, Row
from checkpointing.tick import asking, recovering
from checkpointing.tick.asking import Steps
from checkpointing.tick.messages import AppendClaim, AppendEntry, CutRead, Failed, ReadCut, TickEffect, TickFact
from spec.mutants.judges import STORES
from spec.mutants.planting import Patch, mutant

_Answer = RowAppended | RowRefused | RowUnknown


def _mistaken(patch: Patch, takes_for: Callable[[CheckpointRecord, TickEffect, TickFact], TickFact]) -> None:
    """Let a process that rolls an entry forward take some answers for others."""
    real = recovering.rolled_forward

    def rolled_forward(record: CheckpointRecord, rows: Iterable[Row]) -> Steps[None]:
        steps = real(record, rows)
        effect = next(steps)
        while True:
            answer = takes_for(record, effect, (yield effect))
            try:
                effect = steps.send(answer)
            except StopIteration:
                return

    patch.function(recovering, "rolled_forward", rolled_forward)


# ------------------------------------------------------------------ a write or its reply is lost


@mutant("recovered-in-order", STORES)
def a_claim_whose_outcome_is_unknown_counts_as_appended(patch: Patch) -> None:
    real = asking.appended

    def appended(effect: AppendClaim | AppendEntry) -> Steps[_Answer]:
        steps = real(effect)
        fact = yield next(steps)
        if isinstance(effect, AppendClaim) and isinstance(fact, RowUnknown):
            return RowAppended(fact.nonce, effect.at_version + 1)
        try:
            while True:
                fact = yield steps.send(fact)
        except StopIteration as over:
            answer: _Answer = over.value
            return answer

    patch.function(asking, "appended", appended)


@mutant("ids-rise", STORES)
def an_entry_whose_outcome_is_unknown_is_appended_again_as_another_one(patch: Patch) -> None:
    real = asking.appended

    def appended(effect: AppendClaim | AppendEntry) -> Steps[_Answer]:
        fact = yield effect
        if isinstance(effect, AppendEntry) and isinstance(fact, RowUnknown):
            row = effect.row.model_copy(update={"nonce": f"{effect.row.nonce} again"})
            answer = yield from real(replace(effect, row=row))
            if isinstance(answer, RowRefused):
                answer = yield from real(replace(effect, row=row, at_version=effect.at_version + 1))
            return answer
        if isinstance(fact, RowAppended | RowRefused):
            return fact
        return (yield from real(effect))

    patch.function(asking, "appended", appended)


@mutant("cut-is-exact", STORES)
def a_table_whose_publication_got_no_answer_keeps_its_version(patch: Patch) -> None:
    def takes_for(record: CheckpointRecord, effect: TickEffect, fact: TickFact) -> TickFact:
        if not isinstance(effect, PublishTable) or not isinstance(fact, PublishFailed):
            return fact
        name = effect.publication.table
        before = next(table.parent_version for table in record.tables if table.table == name)
        return TablePublished(record.checkpoint, name, before)

    _mistaken(patch, takes_for)


@mutant("published-in-order", STORES)
def a_process_goes_on_although_it_could_not_record_a_cut(patch: Patch) -> None:
    def takes_for(record: CheckpointRecord, effect: TickEffect, fact: TickFact) -> TickFact:
        failed = isinstance(effect, RecordCut) and isinstance(fact, Failed)
        return CutRecorded(record.checkpoint) if failed else fact

    _mistaken(patch, takes_for)


# ------------------------------------------------------------------ an answer comes late


@mutant("triggers-end", STORES)
def a_tick_ends_while_it_waits_for_the_answer_to_an_append(patch: Patch) -> None:
    settled = (CommitState.IDLE, CommitState.CHECKING, CommitState.FINALISING, CommitState.ENDED)
    patch.put(TwoPhaseCommit, "in_doubt", property(lambda self: self._state not in settled))


@mutant("told-truly", STORES)
def a_checkpoint_expires_although_its_entry_is_being_appended(patch: Patch) -> None:
    def timed(self: CheckpointCoordinator) -> list[PendingCheckpoint]:
        return [p for p in self._books.pending.values() if p.expires_ms is not None]

    def expire(self: Completion, checkpoint: CheckpointId) -> None:
        pending = self._books.pending.pop(checkpoint, None)
        if pending is not None:
            self._end(pending, Reason.CHECKPOINT_EXPIRED, "", by_task=False)

    patch.put(CheckpointCoordinator, "_timed", timed)
    patch.put(Completion, "expire", expire)


# ------------------------------------------------------------------ a list is stale


@mutant("cut-is-one", STORES)
def a_cut_that_a_list_did_not_show_is_composed_again(patch: Patch) -> None:
    """The process does not read the cut before it publishes. Its parent's cut may be gone by then."""

    def takes_for(record: CheckpointRecord, effect: TickEffect, fact: TickFact) -> TickFact:
        is_own = isinstance(effect, ReadCut) and effect.checkpoint == record.checkpoint
        return CutRead({}) if is_own else fact

    _mistaken(patch, takes_for)


@mutant("parent-line", STORES)
def after_a_release_an_entry_whose_cut_a_list_did_not_show_is_passed_over(patch: Patch) -> None:
    real = recovery.decide_recovery

    def decide_recovery(seen: Observed, *, take_over: bool) -> RecoveryPlan | Refused:
        plan = real(seen, take_over=take_over)
        orderly = isinstance(seen.rows[-1], Release) if seen.rows else False
        if isinstance(plan, Refused) or plan.roll_forward is None or not orderly:
            return plan
        shown = [row for row in seen.rows if isinstance(row, CheckpointRecord) and row.checkpoint in seen.cuts]
        return replace(plan, roll_forward=None, restore=shown[-1] if shown else None)

    patch.function(recovery, "decide_recovery", decide_recovery)
