"""Plants bugs in the repair of damaged tables: what is published again, what is lost, and which cuts come back."""

from collections.abc import Collection
from dataclasses import replace

from checkpointing.commit import behind, cut_correcting, cut_rebuilding
from checkpointing.commit.behind import Again, LogSeen, Reference, Repairs, Standing, Versions, Wanted
from checkpointing.commit.cut_correcting import Correction
from checkpointing.commit.cut_rebuilding import Rebuilt
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.mutants.judges import REPAIRS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ what is published again


@mutant("repaired", REPAIRS)
def entries_are_published_again_newest_first(patch: Patch) -> None:
    real = behind.decide_repairs

    def decide_repairs(seen: Standing) -> Repairs:
        decided = real(seen)
        return replace(decided, again=decided.again[::-1])

    patch.function(behind, "decide_repairs", decide_repairs)


@mutant("repaired", REPAIRS)
def the_oldest_of_several_missing_entries_is_left_out(patch: Patch) -> None:
    real = behind._due

    def due(seen: Standing, at: Reference, table: TableName) -> list[Again] | None:
        found = real(seen, at, table)
        return found[1:] if found and len(found) > 1 else found

    patch.function(behind, "_due", due)


@mutant("repaired", REPAIRS)
def a_cut_keeps_the_versions_that_were_lost(patch: Patch) -> None:
    patch.function(cut_correcting, "corrected", lambda seen, published: Correction({}, ()))


@mutant("repaired", REPAIRS)
def every_corrected_cut_names_the_newest_version(patch: Patch) -> None:
    patch.function(
        cut_correcting,
        "_version_now",
        lambda seen, at, checkpoint, table, published: max(published.values(), default=None),
    )


@mutant("repaired", REPAIRS)
def a_pending_entry_brings_nothing_back_that_it_does_not_change(patch: Patch) -> None:
    real = behind._due_whole

    def due_whole(
        seen: Standing, at: Reference, table: TableName, naming: list[CheckpointRecord], tail: list[CheckpointRecord]
    ) -> list[Again] | None:
        return real(seen, at, table, naming, tail) if at.line else []

    patch.function(behind, "_due_whole", due_whole)


@mutant("repaired", REPAIRS)
def a_hole_in_a_log_hides_behind_a_lost_cut(patch: Patch) -> None:
    real = cut_rebuilding._parents_cut

    def parents_cut(
        seen: Standing, row: CheckpointRecord, parent: CheckpointRecord, cut: Versions
    ) -> dict[TableName, int] | None:
        has_holes = any(behind.holes(seen, table) for table in cut)
        return None if has_holes else real(seen, row, parent, cut)

    patch.function(cut_rebuilding, "_parents_cut", parents_cut)


@mutant("repaired", REPAIRS)
def a_hole_in_a_log_hides_behind_the_damage_of_another(patch: Patch) -> None:
    real = cut_rebuilding._parents_cut

    def parents_cut(
        seen: Standing, row: CheckpointRecord, parent: CheckpointRecord, cut: Versions
    ) -> dict[TableName, int] | None:
        is_short = any(log.version is not None and log.version < cut.get(table, 0) for table, log in seen.logs.items())
        return None if is_short else real(seen, row, parent, cut)

    patch.function(cut_rebuilding, "_parents_cut", parents_cut)


# ------------------------------------------------------------------ what is not damaged


@mutant("undamaged-left-alone", REPAIRS)
def a_table_at_its_newest_entry_is_behind(patch: Patch) -> None:
    def is_behind(seen: Standing, row: CheckpointRecord, table: TableName) -> bool:
        return row.commits and seen.logs[table].shows <= row.checkpoint

    patch.function(behind, "_is_behind", is_behind)


@mutant("undamaged-left-alone", REPAIRS)
def a_log_entry_that_was_dropped_in_order_is_taken_for_lost(patch: Patch) -> None:
    real = LogSeen.is_as_published

    def is_as_published(self: LogSeen, version: int, wanted: Wanted) -> bool:
        return real(replace(self, oldest=0), version, wanted)

    patch.put(LogSeen, "is_as_published", is_as_published)


@mutant("undamaged-left-alone", REPAIRS)
def a_cut_is_rebuilt_for_an_entry_that_is_not_published(patch: Patch) -> None:
    patch.function(cut_rebuilding, "_builds_on_a_known_cut", lambda seen, row: False)


# ------------------------------------------------------------------ what is lost


@mutant("not-lost", REPAIRS)
def two_missing_entries_are_too_many(patch: Patch) -> None:
    real = behind._has_no_gap

    def has_no_gap(seen: Standing, tail: list[CheckpointRecord], table: TableName) -> bool:
        return len(tail) == 1 and real(seen, tail, table)

    patch.function(behind, "_has_no_gap", has_no_gap)


@mutant("not-lost", REPAIRS)
def a_whole_table_that_no_retained_entry_changes_is_lost(patch: Patch) -> None:
    real = behind._due_whole

    def due_whole(
        seen: Standing, at: Reference, table: TableName, naming: list[CheckpointRecord], tail: list[CheckpointRecord]
    ) -> list[Again] | None:
        found = real(seen, at, table, naming, tail)
        return found if naming or not found else None

    patch.function(behind, "_due_whole", due_whole)


@mutant("not-lost", REPAIRS)
def a_table_is_lost_if_it_shows_its_newest_entry_at_another_version(patch: Patch) -> None:
    real = behind._due

    def due(seen: Standing, at: Reference, table: TableName) -> list[Again] | None:
        found = real(seen, at, table)
        return found if found or behind._is_right(seen, at, table) else None

    patch.function(behind, "_due", due)


@mutant("not-lost", REPAIRS)
def a_log_that_has_lost_every_entry_is_lost(patch: Patch) -> None:
    real = behind._has_no_gap

    def has_no_gap(seen: Standing, tail: list[CheckpointRecord], table: TableName) -> bool:
        return bool(seen.logs[table].version) and real(seen, tail, table)

    patch.function(behind, "_has_no_gap", has_no_gap)


# ------------------------------------------------------------------ cuts


@mutant("cuts-come-back", REPAIRS)
def only_one_lost_cut_is_rebuilt(patch: Patch) -> None:
    real = cut_rebuilding.rebuilt

    def rebuilt(seen: Standing, tables: Collection[TableName]) -> Rebuilt:
        found = real(seen, tables)
        return replace(found, cuts=dict(sorted(found.cuts.items())[-1:]))

    patch.function(cut_rebuilding, "rebuilt", rebuilt)


@mutant("cuts-come-back", REPAIRS)
def a_rebuilt_cut_has_only_the_tables_that_changed(patch: Patch) -> None:
    real = cut_rebuilding._parents_cut

    def parents_cut(
        seen: Standing, row: CheckpointRecord, parent: CheckpointRecord, cut: behind.Versions
    ) -> dict[TableName, int] | None:
        found = real(seen, row, parent, cut)
        named = {each.table for each in row.tables}
        return None if found is None else {table: at for table, at in found.items() if table in named}

    patch.function(cut_rebuilding, "_parents_cut", parents_cut)


@mutant("cuts-come-back", REPAIRS)
def the_newest_entry_never_gets_its_cut_back(patch: Patch) -> None:
    def published(seen: Standing, table: TableName) -> dict[CheckpointId, int]:
        log = seen.logs[table]
        entries = sorted(log.published.items())
        return {entry.checkpoint: version for version, entry in entries if version != log.version}

    patch.function(cut_rebuilding, "_published", published)


@mutant("repaired", REPAIRS)
def the_cut_of_a_rollbacks_parent_is_that_of_the_line_it_left(patch: Patch) -> None:
    real = cut_rebuilding._parents_cut

    def parents_cut(
        seen: Standing, row: CheckpointRecord, parent: CheckpointRecord, cut: behind.Versions
    ) -> dict[TableName, int] | None:
        return real(seen, row.model_copy(update={"kind": RowKind.CHECKPOINT}), parent, cut)

    patch.function(cut_rebuilding, "_parents_cut", parents_cut)
