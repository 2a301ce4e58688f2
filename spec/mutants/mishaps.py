"""Plants bugs in durability and in tables that show less than their cuts: power cuts and lost entries."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from checkpointing.commit import behind, cut_correcting, durability
from checkpointing.commit.behind import LogSeen, Standing, Wanted
from checkpointing.commit.cut_correcting import Correction
from checkpointing.commit.durability import Entries
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, Row, TableRecord
from checkpointing.tick import recovering
from checkpointing.tick.asking import Steps
from checkpointing.tick.errand import Terms
from spec.mutants import scenes
from spec.mutants.judges import MISHAPS, RELEASES_WITH_MISHAPS, directed
from spec.mutants.planting import Patch, mutant

_Cuts = Mapping[CheckpointId, Mapping[TableName, int]]

# ------------------------------------------------------------------ the order of durability


@mutant("durable", MISHAPS)
def a_cut_is_recorded_before_the_tables_entries_are_durable(patch: Patch) -> None:
    def entries_to_sync(versions: Mapping[TableName, int], cuts: _Cuts) -> tuple[Entries, ...]:
        del versions, cuts
        return ()

    patch.function(durability, "entries_to_sync", entries_to_sync)


@mutant("durable", MISHAPS)
def only_the_first_table_is_made_durable(patch: Patch) -> None:
    real = durability.entries_to_sync

    def entries_to_sync(versions: Mapping[TableName, int], cuts: _Cuts) -> tuple[Entries, ...]:
        return real(versions, cuts)[:1]

    patch.function(durability, "entries_to_sync", entries_to_sync)


@mutant("durable", directed(scenes.every_entry_since_the_last_cut_is_made_durable, "durable"))
def an_entry_of_somebody_else_before_ours_is_not_made_durable(patch: Patch) -> None:
    real = durability.entries_to_sync

    def entries_to_sync(versions: Mapping[TableName, int], cuts: _Cuts) -> tuple[Entries, ...]:
        return tuple(replace(each, first=each.last) for each in real(versions, cuts))

    patch.function(durability, "entries_to_sync", entries_to_sync)


@mutant("durable", MISHAPS)
def an_entry_is_appended_before_its_files_are_durable(patch: Patch) -> None:
    def files_to_sync(row: CheckpointRecord, retained: Iterable[CheckpointRecord]) -> tuple[str, ...]:
        del row, retained
        return ()

    patch.function(durability, "files_to_sync", files_to_sync)


# ------------------------------------------------------------------ tables behind their cuts


@mutant("cuts-hold", MISHAPS)
def no_start_looks_for_tables_that_show_less_than_their_cut(patch: Patch) -> None:
    def in_doubt(seen: Standing) -> frozenset[TableName]:
        del seen
        return frozenset()

    patch.function(behind, "in_doubt", in_doubt)


@mutant("cuts-hold", MISHAPS)
def a_log_entry_is_identified_by_its_version_number_alone(patch: Patch) -> None:
    def is_as_published(self: LogSeen, version: int, wanted: Wanted) -> bool:
        del wanted
        return self.version is not None and version <= self.version

    patch.put(LogSeen, "is_as_published", is_as_published)
    patch.function(behind, "_is_behind", lambda seen, row, table: False)


@mutant("cuts-hold", MISHAPS)
def only_the_newest_entry_is_published_again(patch: Patch) -> None:
    real = behind._missing

    def missing(seen: Standing, at: behind.Reference, table: TableName) -> list[CheckpointRecord]:
        return real(seen, at, table)[-1:]

    patch.function(behind, "_missing", missing)


@mutant("cuts-hold", MISHAPS)
def a_gap_before_the_first_retained_entry_is_ignored(patch: Patch) -> None:
    def has_no_gap(seen: Standing, tail: list[CheckpointRecord], table: TableName) -> bool:
        del seen, tail, table
        return True

    patch.function(behind, "_has_no_gap", has_no_gap)


@mutant("cuts-hold", MISHAPS)
def cuts_keep_the_versions_that_tables_have_lost(patch: Patch) -> None:
    def corrected(seen: Standing, published: Mapping[TableName, Mapping[CheckpointId, int]]) -> Correction:
        del seen, published
        return Correction({}, ())

    patch.function(cut_correcting, "corrected", corrected)


@mutant("cuts-hold", MISHAPS)
def a_second_publication_lacks_a_file(patch: Patch) -> None:
    real = behind._named

    def named(row: CheckpointRecord, table: TableName) -> TableRecord:
        whole = real(row, table)
        return whole.model_copy(update={"adds": whole.adds[1:], "files": whole.files[1:]})

    patch.function(behind, "_named", named)


@mutant("gone-back", directed(scenes.a_rollback_is_published_only_onto_what_it_was_planned_on, "gone-back"))
def an_entry_is_published_whatever_its_tables_show(patch: Patch) -> None:
    def shows_too_little(seen: Standing) -> Mapping[TableName, CheckpointId]:
        del seen
        return {}

    patch.function(behind, "_shows_too_little", shows_too_little)


@mutant("gone-back", directed(scenes.a_rollback_leaves_an_entry_behind_if_tables_are_lost, "gone-back"))
def a_rollback_publishes_what_is_pending_although_tables_are_lost(patch: Patch) -> None:
    real = recovering.rolled_forward_or_left

    def rolled_forward_or_left(
        terms: Terms, pending: CheckpointRecord, rows: Iterable[Row], *, whole: bool
    ) -> Steps[bool]:
        del whole
        return real(terms, pending, rows, whole=True)

    patch.function(recovering, "rolled_forward_or_left", rolled_forward_or_left)


@mutant("columns-of-cut", RELEASES_WITH_MISHAPS)
def a_table_that_is_brought_back_keeps_the_columns_that_it_shows(patch: Patch) -> None:
    real = behind._again

    def again(row: CheckpointRecord, table: TableRecord) -> behind.Again:
        due = real(row, table)
        return replace(due, publication=replace(due.publication, no_others=False))

    patch.function(behind, "_again", again)


@mutant("columns-of-cut", directed(scenes.a_table_that_no_cut_tells_of_gets_the_columns_of_its_row, "columns-of-cut"))
def a_table_that_is_rolled_forward_keeps_the_columns_that_it_shows(patch: Patch) -> None:
    def untold(parent: Mapping[TableName, int], record: CheckpointRecord) -> frozenset[TableName]:
        del parent, record
        return frozenset()

    patch.function(recovering, "_untold", untold)
