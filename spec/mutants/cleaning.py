"""Plants bugs in clean-ups and in dropped cuts. They show when ticks and clean-ups interleave (K1, K4)."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from checkpointing.commit import cleanup
from checkpointing.commit.cleanup import CleanupDecision, CleanupFacts, ListedFile
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.record import CheckpointRecord, Row
from spec.mutants.judges import CLEAN_UPS, LINES
from spec.mutants.planting import Patch, mutant
from spec.world import World


@mutant("cuts-stay", CLEAN_UPS)
def the_cut_goes_that_a_savepoint_follows_on(patch: Patch) -> None:
    def readable_cuts(rows: Iterable[Row], recorded: Collection[CheckpointId]) -> frozenset[CheckpointId]:
        records = [row for row in rows if isinstance(row, CheckpointRecord)]
        parents = {row.parent for row in records if row.commits and row.checkpoint not in recorded}
        followed = {row.parent for row in records if not row.commits} - parents
        return frozenset(recorded).intersection({row.checkpoint for row in records} | parents) - followed

    patch.function(cleanup, "readable_cuts", readable_cuts)


@mutant("cuts-stay", LINES)
def the_cut_goes_on_which_an_abandoned_entry_without_a_cut_rests(patch: Patch) -> None:
    def needed_cuts(rows: Iterable[Row], recorded: Collection[CheckpointId]) -> frozenset[CheckpointId]:
        records = [row for row in rows if isinstance(row, CheckpointRecord)]
        unpublished = (row for row in records if row.checkpoint not in recorded and not row.abandoned)
        parents = {row.parent for row in (*unpublished, *(row for row in records if not row.commits))}
        return frozenset({row.checkpoint for row in records} | parents)

    patch.function(cleanup, "needed_cuts", needed_cuts)


@mutant("cuts-stay", CLEAN_UPS)
def a_tick_that_was_taken_over_drops_the_cuts_of_the_other_one(patch: Patch) -> None:
    """The tick looks at the entries before the other tick records a cut, and records its own cut afterwards."""

    def record_cut(
        self: World,
        checkpoint: CheckpointId,
        versions: tuple[tuple[TableName, int], ...],
        retained: Collection[CheckpointId],
    ) -> None:
        self.drop_cuts({known for known in self.cuts if known > checkpoint and known not in retained})
        real(self, checkpoint, versions, retained)

    real = World.record_cut
    patch.put(World, "record_cut", record_cut)


@mutant("no-file-is-missed", CLEAN_UPS)
def a_clean_up_beside_a_tick_deletes_files_that_the_tick_stages(patch: Patch) -> None:
    def is_past(file: ListedFile, current: Generation) -> bool:
        return bool(file.shown) if file.generation is None else file.generation <= current

    patch.function(cleanup, "_is_past", is_past)


@mutant("discarded-is-unreferenced", CLEAN_UPS)
def a_clean_up_needs_no_table(patch: Patch) -> None:
    _seeing(patch, active=frozenset[str]())


@mutant("discarded-is-unreferenced", CLEAN_UPS)
def a_clean_up_needs_no_entry(patch: Patch) -> None:
    _seeing(patch, rows=())


def _seeing(patch: Patch, **what: object) -> None:
    """Replace what clean-ups observe."""
    real = cleanup.decide_cleanup

    def decide_cleanup(facts: CleanupFacts) -> CleanupDecision:
        return real(replace(facts, **what))  # type: ignore[arg-type]

    patch.function(cleanup, "decide_cleanup", decide_cleanup)
