"""Plants bugs in compaction: it must change no row of a table at any cut, and its files stay as long as needed."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from checkpointing.commit import compaction, durability
from checkpointing.commit.compaction import ActiveFile
from checkpointing.commit.draft import Draft
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId
from checkpointing.job.compacting import Compacting
from checkpointing.messages import FilesCompacted
from checkpointing.metadata import files
from checkpointing.metadata.record import CheckpointRecord, FileCompaction, RowKind
from spec.machines.compacting_asks import COMPACTS
from spec.machines.compactions import GROUPS
from spec.mutants.judges import (
    COMPACTIONS,
    COMPACTS_IN_TURN,
    SMALL_FILES,
    with_long_runs,
)
from spec.mutants.planting import Patch, mutant


@mutant("cut-is-exact", COMPACTIONS)
def a_compaction_is_published_although_another_program_has_merged_a_file(patch: Patch) -> None:
    def still_possible(
        compactions: Iterable[FileCompaction], active: Collection[str], marked: Collection[str] = ()
    ) -> tuple[FileCompaction, ...]:
        del marked
        return tuple(each for each in compactions if each.into.path not in active)

    patch.function(compaction, "still_possible", still_possible)


@mutant("compaction-keeps-rows", COMPACTIONS)
def one_of_the_compacted_files_stays(patch: Patch) -> None:
    real = compaction.still_possible

    def still_possible(
        compactions: Iterable[FileCompaction], active: Collection[str], marked: Collection[str] = ()
    ) -> tuple[FileCompaction, ...]:
        found = real(compactions, active, marked)
        return tuple(each.model_copy(update={"of": each.of[:-1]}) for each in found)

    patch.function(compaction, "still_possible", still_possible)


@mutant("compaction-keeps-rows", COMPACTIONS)
def a_savepoint_takes_what_was_compacted(patch: Patch) -> None:
    real = Compacting.onto

    def onto(self: Compacting, draft: Draft) -> Draft:
        if draft.kind is RowKind.SAVEPOINT and self._ready and self._taken is None:
            return Draft(
                draft.checkpoint,
                draft.vertices,
                draft.statistics,
                draft.subsumed,
                draft.kind,
                draft.pinned,
                draft.hooks,
                self._ready,
            )
        return real(self, draft)

    patch.put(Compacting, "onto", onto)


@mutant("compaction-keeps-rows", COMPACTIONS)
def what_was_committed_is_committed_again(patch: Patch) -> None:
    real = Compacting.committed

    def committed(self: Compacting, record: CheckpointRecord) -> None:
        ready = self._ready
        real(self, record)
        self._ready = ready

    patch.put(Compacting, "committed", committed)


@mutant("compaction-is-committed", COMPACTIONS)
def a_checkpoint_takes_what_was_compacted_and_does_not_name_it(patch: Patch) -> None:
    real = Compacting.onto

    def onto(self: Compacting, draft: Draft) -> Draft:
        real(self, draft)
        return draft

    patch.put(Compacting, "onto", onto)


@mutant("compaction-is-committed", COMPACTIONS)
def what_was_compacted_before_the_next_publication_is_lost(patch: Patch) -> None:
    real = Compacting.told

    def told(self: Compacting, fact: FilesCompacted) -> None:
        real(self, fact)
        if fact.found and self._added and not any(self._added.values()):
            self._ready = ()

    patch.put(Compacting, "told", told)


@mutant("compaction-is-committed", with_long_runs(COMPACTIONS))
def what_a_declined_checkpoint_had_is_lost(patch: Patch) -> None:
    def declined(self: Compacting, checkpoint: CheckpointId) -> None:
        del self, checkpoint

    patch.put(Compacting, "declined", declined)


@mutant("discarded-is-unreferenced", COMPACTIONS)
def an_entry_does_not_need_the_file_that_it_compacts_into(patch: Patch) -> None:
    real = files.handles_of

    def handles_of(record: CheckpointRecord) -> Iterator[FileHandle]:
        into = {each.into.path for table in record.tables for each in table.compactions}
        return (file for file in real(record) if file.path not in into)

    patch.function(files, "handles_of", handles_of)


@mutant("synced-first", COMPACTIONS)
def a_compacted_file_is_not_synced(patch: Patch) -> None:
    real = durability._appended

    def appended(row: CheckpointRecord) -> Iterator[FileHandle]:
        into = {each.into.path for table in row.tables for each in table.compactions}
        return (file for file in real(row) if file.path not in into)

    patch.function(durability, "_appended", appended)


@mutant("compaction-keeps-rows", SMALL_FILES)
def rows_that_another_program_has_deleted_come_back(patch: Patch) -> None:
    real = compaction.still_possible

    def still_possible(
        compactions: Iterable[FileCompaction], active: Collection[str], marked: Collection[str] = ()
    ) -> tuple[FileCompaction, ...]:
        return real(compactions, active)

    patch.function(compaction, "still_possible", still_possible)


@mutant(GROUPS, SMALL_FILES)
def files_of_two_partitions_are_written_into_one(patch: Patch) -> None:
    patch.put(compaction, "_partition", lambda file: "")


@mutant(GROUPS, SMALL_FILES)
def small_files_are_compacted_however_large_the_next_one_is(patch: Patch) -> None:
    real = compaction._groups

    def groups(files: Iterable[tuple[int, str]], files_min: int, bytes_max: int) -> Iterator[tuple[str, ...]]:
        there = {path: size for size, path in files}
        for group in real(((1, path) for path in there), files_min, len(there)):
            if sum(there[path] for path in group) <= bytes_max:
                yield group

    patch.put(compaction, "_groups", groups)


@mutant(GROUPS, SMALL_FILES)
def files_are_compacted_when_one_more_is_there_than_is_needed(patch: Patch) -> None:
    real = compaction.groups_to_compact

    def later(files: Iterable[ActiveFile], files_min: int, bytes_max: int) -> Iterator[tuple[str, ...]]:
        return real(files, files_min + 1, bytes_max)

    patch.function(compaction, "groups_to_compact", later)


# ------------------------------------------------------------------ turns


@mutant(COMPACTS, COMPACTS_IN_TURN)
def a_savepoint_has_the_turn_of_a_compaction(patch: Patch) -> None:
    def onto(self: Compacting, draft: Draft) -> Draft:
        if self._taken is not None or not self._ready:
            return draft
        self._taken = draft.checkpoint
        return replace(draft, compacted=self._ready)

    patch.put(Compacting, "onto", onto)


@mutant(COMPACTS, COMPACTS_IN_TURN)
def a_table_with_more_small_files_waits_for_new_ones(patch: Patch) -> None:
    real = Compacting.told
    patch.put(Compacting, "told", lambda self, fact: real(self, FilesCompacted(fact.found, error=fact.error)))


@mutant(COMPACTS, COMPACTS_IN_TURN)
def what_a_declined_checkpoint_had_is_never_committed(patch: Patch) -> None:
    patch.put(Compacting, "declined", lambda self, checkpoint: None)
