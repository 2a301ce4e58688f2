"""Plants bugs in users' requests: their answers, what savepoints pin, how a stop and a drain end."""

from collections.abc import Iterable, Mapping

from checkpointing.commit import leftovers
from checkpointing.commit.draft import Draft
from checkpointing.commit.leftovers import Referenced
from checkpointing.commit.recovery import completion
from checkpointing.commit.two_phase import CommitEffect, Saved, TwoPhaseCommit
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import CompletedCheckpointStore
from checkpointing.identifiers import ChannelId
from checkpointing.job import ending, restoring
from checkpointing.job.door import JobDoor
from checkpointing.job.drafts import Drafts
from checkpointing.job.ending import Cause, TickPhase
from checkpointing.job.finishing import hand_end_on
from checkpointing.job.operator_run import InputEnd, OperatorRun
from checkpointing.job.savepoints import Savepoints
from checkpointing.job.wiring import Wiring
from checkpointing.messages import (
    Effect,
    Fact,
    MicroBatchFinished,
    RecordCut,
    RowAppended,
    SavepointFailed,
    SavepointKind,
    SavepointTaken,
)
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind, Statistics
from spec.mutants import scenes
from spec.mutants.judges import HOOKS, SAVEPOINTS, directed
from spec.mutants.planting import Patch, mutant

_Effects = tuple[CommitEffect, ...]

# ------------------------------------------------------------------ no publication


@mutant("savepoint-is-silent", SAVEPOINTS)
def a_cut_is_recorded_for_a_plain_savepoint(patch: Patch) -> None:
    real = TwoPhaseCommit._appended

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> _Effects:
        record, effects = self._record, real(self, fact)
        if record is None or record.kind is RowKind.CHECKPOINT:
            return effects
        versions = tuple((table.name, self._versions.get(table.name, 0)) for table in self._graph.tables())
        return (*effects, RecordCut(record.checkpoint, versions))

    patch.put(TwoPhaseCommit, "_appended", appended)


@mutant("savepoint-is-silent", SAVEPOINTS)
def listeners_hear_that_a_plain_savepoint_is_complete(patch: Patch) -> None:
    real = Wiring.from_commit

    def from_commit(self: Wiring, effects: _Effects) -> None:
        real(self, effects)
        self.effects += [completion(effect.record) for effect in effects if isinstance(effect, Saved)]

    patch.put(Wiring, "from_commit", from_commit)


@mutant("savepoint-is-silent", SAVEPOINTS)
def a_checkpoint_builds_on_the_savepoint_before_it(patch: Patch) -> None:
    real = TwoPhaseCommit._appended

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> _Effects:
        record, effects = self._record, real(self, fact)
        if record is not None and record.kind is RowKind.SAVEPOINT:
            self._parent = record
        return effects

    patch.put(TwoPhaseCommit, "_appended", appended)


# ------------------------------------------------------------------ pinned files


@mutant("pinned-stays", SAVEPOINTS, ("FLINK-26985",))
def files_that_only_a_savepoint_uses_are_discarded(patch: Patch) -> None:
    patch.put(Savepoints, "unpinned", lambda self, paths: tuple(paths))


@mutant("pinned-stays", SAVEPOINTS)
def a_savepoint_behind_the_newest_checkpoint_pins_nothing(patch: Patch) -> None:
    real = leftovers.referenced

    def referenced(rows: Iterable[Row]) -> Referenced:
        return Referenced(real(rows).newest)

    patch.function(leftovers, "referenced", referenced)


@mutant("pinned-stays", SAVEPOINTS)
def the_savepoint_of_a_stop_is_subsumed(patch: Patch) -> None:
    real = restoring.completed_store

    def completed_store(retained: tuple[CheckpointRecord, ...], keep: int) -> CompletedCheckpointStore:
        rows = (row for row in retained if row.kind is RowKind.CHECKPOINT)
        return real(tuple(row.model_copy(update={"pinned": False}) for row in rows), keep)

    patch.function(restoring, "completed_store", completed_store)


# ------------------------------------------------------------------ answers


@mutant("requests-are-answered", SAVEPOINTS)
def a_request_that_waits_when_the_tick_ends_gets_no_answer(patch: Patch) -> None:
    patch.put(Savepoints, "give_up", lambda self, reason, message: iter(()))


@mutant("requests-are-answered", SAVEPOINTS)
def a_request_that_comes_too_late_gets_no_answer(patch: Patch) -> None:
    real = JobDoor.step

    def step(self: JobDoor, fact: Fact) -> tuple[Effect, ...]:
        return () if self._job.ending.over else real(self, fact)

    patch.put(JobDoor, "step", step)


@mutant("requests-are-answered", SAVEPOINTS)
def a_failed_request_is_answered_again_at_the_end(patch: Patch) -> None:
    real = Savepoints.answered

    def answered(
        self: Savepoints, effect: told.RequestSucceeded | told.RequestFailed
    ) -> tuple[tuple[SavepointTaken | SavepointFailed, ...], SavepointKind | None]:
        before = dict(self._asked)
        answers, kind = real(self, effect)
        self._asked = before if isinstance(effect, told.RequestFailed) else self._asked
        return answers, kind

    patch.put(Savepoints, "answered", answered)


@mutant("answers-are-true", SAVEPOINTS)
def a_plain_savepoint_becomes_a_checkpoint(patch: Patch) -> None:
    _compose_otherwise(patch, kind=RowKind.CHECKPOINT)


@mutant("answers-are-true", SAVEPOINTS)
def the_savepoint_of_a_stop_is_not_pinned(patch: Patch) -> None:
    _compose_otherwise(patch, kind=None)


def _compose_otherwise(patch: Patch, kind: RowKind | None) -> None:
    real = Drafts.compose

    def compose(self: Drafts, effect: told.CommitCheckpoint, statistics: Statistics, own: Mapping[str, str]) -> Draft:
        due = real(self, effect, statistics, own)
        pinned = due.pinned and kind is not None
        return Draft(due.checkpoint, due.vertices, due.statistics, due.subsumed, kind or due.kind, pinned)

    patch.put(Drafts, "compose", compose)


@mutant("answers-are-true", SAVEPOINTS)
def the_tick_goes_on_after_the_savepoint_of_a_stop(patch: Patch) -> None:
    _move(patch, TickPhase.SUSPENDING, Cause.SAVEPOINT_TAKEN, TickPhase.RUNNING)


def _move(patch: Patch, phase: TickPhase, cause: Cause, reached: TickPhase) -> None:
    """Let the cause lead to another phase than the one in the table."""
    patch.put(ending, "MOVES", {**ending.MOVES, (phase, cause): reached})


# ------------------------------------------------------------------ the end of a tick


@mutant("no-deadlock", SAVEPOINTS)
def a_tick_goes_on_after_a_failure(patch: Patch) -> None:
    _move(patch, TickPhase.RUNNING, Cause.FAILURE, TickPhase.RUNNING)


_AS_ASKED = directed(scenes.a_tick_ends_as_it_was_asked, "ends-as-asked")


@mutant("ends-as-asked", _AS_ASKED)
def the_savepoint_of_a_stop_is_not_waited_for(patch: Patch) -> None:
    _move(patch, TickPhase.RUNNING, Cause.SAVEPOINT_ASKED, TickPhase.STOPPING)


@mutant("ends-as-asked", _AS_ASKED)
def a_later_wish_to_stop_brings_back_the_checkpoint(patch: Patch) -> None:
    _move(patch, TickPhase.STOPPING, Cause.STOP_AFTER_CHECKPOINT, TickPhase.FINISHING)


@mutant("ends-as-asked", _AS_ASKED)
def a_stop_is_forgotten_when_a_savepoint_fails(patch: Patch) -> None:
    _move(patch, TickPhase.SUSPENDING, Cause.STOP_AFTER_CHECKPOINT, TickPhase.SUSPENDING)


@mutant("ends-as-asked", _AS_ASKED)
def a_failure_of_a_tick_that_stops_is_not_told(patch: Patch) -> None:
    _move(patch, TickPhase.STOPPING, Cause.FAILURE, TickPhase.STOPPING)


# ------------------------------------------------------------------ drains


@mutant("state-is-exact", SAVEPOINTS)
def a_drain_ends_no_key(patch: Patch) -> None:
    patch.put(OperatorRun, "data_ended", lambda self, channel: None)


@mutant("cut-is-exact", SAVEPOINTS)
def the_first_input_that_ends_ends_the_vertex(patch: Patch) -> None:
    def data_ended(self: OperatorRun, channel: ChannelId) -> None:
        if self.input_end is InputEnd.OPEN:
            self.input_end = InputEnd.REACHED

    patch.put(OperatorRun, "data_ended", data_ended)


@mutant("state-is-exact", SAVEPOINTS)
def the_end_of_the_data_overtakes_the_last_rows(patch: Patch) -> None:
    real = JobDoor._finished

    def finished(self: JobDoor, fact: MicroBatchFinished) -> None:
        run = self._job.runs[fact.vertex]
        if run.input_end is InputEnd.REACHED:
            hand_end_on(self._job, run)
        real(self, fact)

    patch.put(JobDoor, "_finished", finished)


# ------------------------------------------------------------------ a tick that has caught up


@mutant("savepoints-waited-for", HOOKS)
def a_tick_waits_for_a_savepoint_only_if_another_one_waits_too(patch: Patch) -> None:
    patch.put(Savepoints, "under_way", property(lambda self: len(self._asked) > 1))


@mutant("savepoints-waited-for", HOOKS)
def a_tick_waits_for_stops_only(patch: Patch) -> None:
    def under_way(self: Savepoints) -> bool:
        return any(kind is not SavepointKind.PLAIN for kind in self._asked.values())

    patch.put(Savepoints, "under_way", property(under_way))


@mutant("savepoints-waited-for", HOOKS)
def a_tick_without_new_rows_is_quiet(patch: Patch) -> None:
    real = JobDoor._is_quiet

    def is_quiet(self: JobDoor) -> bool:
        job = self._job
        busy = job.readers.polling or any(run.at_work for run in job.runs.values()) or job.commit.in_doubt
        return real(self) or not (busy or job.ending.uncommitted or job.bystanders.restoring or job.ending.requested)

    patch.put(JobDoor, "_is_quiet", is_quiet)
