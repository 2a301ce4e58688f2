"""Plants bugs in what an entry waits for: checked tables, judged files, an aligned barrier (J3, C5)."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from checkpointing.channel_items import Barrier
from checkpointing.commit import at_rest
from checkpointing.commit.two_phase import CommitEffect, TwoPhaseCommit
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties
from checkpointing.handles import FileHandle, StagedFile
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.job import barriers
from checkpointing.job.judgements import Judgements, Snapshots
from checkpointing.job.operator_run import OperatorRun
from checkpointing.messages import CheckTables, JudgeSuites, TablesChecked
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.snapshots import SubtaskSnapshot
from spec.mutants.judges import CLEAN_UPS, COUNTS, RELEASES, SAVEPOINTS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ tables


@mutant("tables-are-checked")
def a_problem_of_one_table_is_ignored(patch: Patch) -> None:
    real = TwoPhaseCommit._checked

    def checked(self: TwoPhaseCommit, fact: TablesChecked) -> tuple[CommitEffect, ...]:
        return real(self, replace(fact, problems=fact.problems[1:]))

    patch.put(TwoPhaseCommit, "_checked", checked)


def _checking(patch: Patch, less: Callable[[CheckTables], CheckTables]) -> None:
    """Let a commit ask for less than it must."""
    real = TwoPhaseCommit._start

    def start(self: TwoPhaseCommit) -> tuple[CommitEffect, ...]:
        return tuple(less(effect) if isinstance(effect, CheckTables) else effect for effect in real(self))

    patch.put(TwoPhaseCommit, "_start", start)


@mutant("tables-are-checked")
def the_last_table_is_not_checked(patch: Patch) -> None:
    _checking(patch, lambda check: replace(check, tables=check.tables[:-1]))


@mutant("tables-are-checked", RELEASES)
def nobody_looks_for_the_files_that_leave_a_table(patch: Patch) -> None:
    _checking(patch, lambda check: replace(check, leaving=()))


@mutant("tables-are-checked", RELEASES)
def only_one_of_the_files_that_leave_a_table_is_looked_for(patch: Patch) -> None:
    _checking(patch, lambda check: replace(check, leaving=check.leaving[:1]))


@mutant("tables-are-checked", SAVEPOINTS)
def the_checkpoint_of_a_stop_is_not_checked(patch: Patch) -> None:
    real = TwoPhaseCommit._start

    def start(self: TwoPhaseCommit) -> tuple[CommitEffect, ...]:
        effects = real(self)
        if self._waiting and self._waiting[0].pinned and any(isinstance(each, CheckTables) for each in effects):
            return self._finalise(self._waiting.popleft())
        return effects

    patch.put(TwoPhaseCommit, "_start", start)


# ------------------------------------------------------------------ suites

_Judged = tuple[tuple[TableName, tuple[FileHandle, ...]], ...]


@mutant("files-are-judged")
def only_the_files_of_the_last_epoch_are_judged(patch: Patch) -> None:
    """Files of a failed checkpoint belong to the next one, and nobody judges them."""
    real = OperatorRun.to_judge

    def to_judge(self: OperatorRun, staged: Iterable[StagedFile], parent: CheckpointRecord | None) -> _Judged:
        files = tuple(staged)
        newest = max((file.after for file in files), default=CheckpointId(0))
        return real(self, (file for file in files if file.after == newest), parent)

    patch.put(OperatorRun, "to_judge", to_judge)


@mutant("files-are-judged")
def only_one_file_of_a_table_is_judged(patch: Patch) -> None:
    real = OperatorRun.to_judge

    def to_judge(self: OperatorRun, staged: Iterable[StagedFile], parent: CheckpointRecord | None) -> _Judged:
        return tuple((table, files[:1]) for table, files in real(self, staged, parent))

    patch.put(OperatorRun, "to_judge", to_judge)


@mutant("files-are-judged")
def the_first_checkpoint_is_not_judged(patch: Patch) -> None:
    real = OperatorRun.to_judge

    def to_judge(self: OperatorRun, staged: Iterable[StagedFile], parent: CheckpointRecord | None) -> _Judged:
        return real(self, staged, parent) if parent is not None else ()

    patch.put(OperatorRun, "to_judge", to_judge)


@mutant("empty-is-judged", COUNTS)
def a_table_without_files_is_not_judged(patch: Patch) -> None:
    """A suite that wants a row lets an epoch in whose rows all went elsewhere."""
    real = Judgements.begin

    def begin(
        self: Judgements, vertex: VertexId, checkpoint: CheckpointId, files: _Judged, snapshots: Snapshots
    ) -> tuple[JudgeSuites, ...]:
        return real(self, vertex, checkpoint, tuple(each for each in files if each[1]), snapshots)

    patch.put(Judgements, "begin", begin)


@mutant("empty-is-judged", COUNTS)
def rows_before_a_failed_checkpoint_have_not_come(patch: Patch) -> None:
    """They belong to the next checkpoint, which forgets that they came."""
    real = OperatorRun.take_snapshot

    def take_snapshot(self: OperatorRun, checkpoint: CheckpointId) -> tuple[SubtaskSnapshot, ...]:
        self.worked = {after: went for after, went in self.worked.items() if after == self.passed}
        return real(self, checkpoint)

    patch.put(OperatorRun, "take_snapshot", take_snapshot)


# ------------------------------------------------------------------ barriers


def _barrier_otherwise(patch: Patch, *, plain: bool, of_stops: bool) -> None:
    """Give savepoints the barrier of a checkpoint: plain savepoints, the savepoints of stops, or both."""
    real = barriers._barrier

    def barrier(
        checkpoint: CheckpointId, properties: CheckpointProperties, config: CheckpointConfig, now_ms: int
    ) -> Barrier:
        changed = of_stops if properties.is_synchronous else plain
        return real(checkpoint, CHECKPOINT if changed else properties, config, now_ms)

    patch.put(barriers, "_barrier", barrier)


@mutant("savepoint-is-aligned", SAVEPOINTS)
def a_savepoint_overtakes_rows(patch: Patch) -> None:
    _barrier_otherwise(patch, plain=True, of_stops=True)


@mutant("savepoint-is-aligned", SAVEPOINTS)
def the_savepoint_of_a_stop_overtakes_rows(patch: Patch) -> None:
    _barrier_otherwise(patch, plain=False, of_stops=True)


@mutant("savepoint-is-aligned", SAVEPOINTS)
def a_plain_savepoint_overtakes_rows(patch: Patch) -> None:
    _barrier_otherwise(patch, plain=True, of_stops=False)


@mutant("savepoint-is-aligned", CLEAN_UPS)
def a_savepoint_at_rest_is_made_of_any_checkpoint(patch: Patch) -> None:
    def is_savable(cut: CheckpointRecord) -> bool:
        del cut
        return True

    patch.function(at_rest, "is_savable", is_savable)
