"""Plants bugs in the clean-up's choice of unneeded files (K4)."""

from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import replace

from checkpointing.commit import cleanup, recovery
from checkpointing.commit.cleanup import (
    CleanupDecision,
    CleanupFacts,
    CleanUpLook,
    ListedFile,
    Reason,
    TableSeen,
    Unneeded,
)
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.record import CheckpointRecord, Row
from spec.machines.keeping import LOG_GOES, LOG_STAYS, LOOKS_ARE_FEW, NEEDED_STAYS, UNNEEDED_GOES
from spec.mutants.judges import CLEAN_UPS, KEEPING
from spec.mutants.planting import Patch, mutant


def _see_otherwise(patch: Patch, otherwise: Callable[[CleanupFacts], CleanupFacts]) -> None:
    real = cleanup.decide_cleanup

    def decide_cleanup(facts: CleanupFacts) -> CleanupDecision:
        return real(otherwise(facts))

    patch.function(cleanup, "decide_cleanup", decide_cleanup)


# ------------------------------------------------------------------ files that stay


@mutant(NEEDED_STAYS, KEEPING)
def a_clean_up_does_not_notice_that_the_newest_cut_is_missing(patch: Patch) -> None:
    patch.put(cleanup, "unpublished", lambda rows, cuts: None)


@mutant(NEEDED_STAYS, KEEPING)
def the_cut_of_the_parent_stands_for_the_newest_one(patch: Patch) -> None:
    real = recovery.unpublished

    def unpublished(rows: Iterable[Row], cuts: Container[CheckpointId]) -> CheckpointRecord | None:
        pending = real(rows, cuts)
        return None if pending is None or pending.parent in cuts else pending

    patch.put(cleanup, "unpublished", unpublished)


@mutant(NEEDED_STAYS, KEEPING)
def a_clean_up_of_a_job_at_rest_expects_no_newer_cut(patch: Patch) -> None:
    def all_recorded(facts: CleanupFacts) -> CleanupFacts:
        ids = (row.checkpoint for row in facts.rows if isinstance(row, CheckpointRecord))
        return facts if facts.others_hold else replace(facts, recorded=facts.recorded.union(ids))

    _see_otherwise(patch, all_recorded)


@mutant(NEEDED_STAYS, KEEPING)
def an_abandoned_savepoint_needs_nothing(patch: Patch) -> None:
    def on_the_line(facts: CleanupFacts) -> CleanupFacts:
        return replace(facts, rows=tuple(row for row in facts.rows if not getattr(row, "abandoned", False)))

    _see_otherwise(patch, on_the_line)


@mutant(NEEDED_STAYS, KEEPING)
def a_file_is_unneeded_since_it_was_removed_from_the_log(patch: Patch) -> None:
    """The cuts showed the file until now, so readers may have read it until now."""
    real = cleanup._judged

    def judged(file: ListedFile, facts: CleanupFacts) -> Unneeded:
        if not file.shown:
            return real(file, facts)
        return Unneeded(file, Reason.REMOVED, max(shown.removed_ms for shown in file.shown))

    patch.put(cleanup, "_judged", judged)


@mutant(NEEDED_STAYS, KEEPING)
def files_that_a_rename_is_about_to_show_are_leftovers(patch: Patch) -> None:
    def being_renamed(records: Iterable[CheckpointRecord], recorded: Collection[CheckpointId]) -> frozenset[object]:
        return frozenset()

    patch.put(cleanup, "_being_renamed", being_renamed)


@mutant(UNNEEDED_GOES, KEEPING)
def a_rename_keeps_its_generation_for_good(patch: Patch) -> None:
    real = cleanup._being_renamed
    patch.put(cleanup, "_being_renamed", lambda records, recorded: real(records, ()))


@mutant(NEEDED_STAYS, KEEPING)
def only_the_cut_of_the_newest_entry_stays(patch: Patch) -> None:
    def readable_cuts(rows: Iterable[Row], recorded: Collection[CheckpointId]) -> frozenset[CheckpointId]:
        newest = max(row.checkpoint for row in rows if isinstance(row, CheckpointRecord))
        return frozenset(recorded) & {newest}

    patch.function(cleanup, "readable_cuts", readable_cuts)


# ------------------------------------------------------------------ files that go


@mutant(UNNEEDED_GOES, KEEPING)
def a_file_is_unneeded_since_the_last_look_only(patch: Patch) -> None:
    _see_otherwise(patch, lambda facts: replace(facts, looks=facts.looks[-1:]))


@mutant(UNNEEDED_GOES, KEEPING)
def a_neighbours_file_stays_for_ever(patch: Patch) -> None:
    def is_past(file: ListedFile, current: Generation) -> bool:
        return file.generation is not None and file.generation < current

    patch.put(cleanup, "_is_past", is_past)


@mutant(LOG_GOES, KEEPING)
def each_clean_up_forgets_earlier_observations(patch: Patch) -> None:
    def noted(_looks: Iterable[CleanUpLook], now: CleanUpLook, _grace_ms: int) -> tuple[CleanUpLook, ...]:
        return (now,)

    patch.function(cleanup, "noted", noted)


@mutant(LOG_GOES, KEEPING)
def a_look_gives_way_to_each_look_that_follows_soon(patch: Patch) -> None:
    real = cleanup.noted

    def noted(looks: Iterable[CleanUpLook], now: CleanUpLook, grace_ms: int) -> tuple[CleanUpLook, ...]:
        kept = real(looks, now, grace_ms)
        soon = [each for each in kept[1:-1] if now.at_ms - each.at_ms < grace_ms // cleanup.LOOKS_PER_GRACE]
        return (*(each for each in kept[:-1] if each not in soon), now)

    patch.function(cleanup, "noted", noted)


@mutant(LOOKS_ARE_FEW, KEEPING)
def every_look_within_the_grace_is_kept(patch: Patch) -> None:
    patch.put(cleanup, "LOOKS_PER_GRACE", 10**9)


@mutant(LOOKS_ARE_FEW, KEEPING)
def a_look_from_before_the_clock_was_set_back_is_kept(patch: Patch) -> None:
    real = cleanup.noted

    def noted(looks: Iterable[CleanUpLook], now: CleanUpLook, grace_ms: int) -> tuple[CleanUpLook, ...]:
        later = [each for each in looks if each.at_ms > now.at_ms]
        return (*real(looks, now, grace_ms), *later)

    patch.function(cleanup, "noted", noted)


@mutant(LOOKS_ARE_FEW, KEEPING)
def the_first_clean_up_waits_for_another_one(patch: Patch) -> None:
    real = cleanup.is_due

    def is_due(looks: Iterable[CleanUpLook], now_ms: int, grace_ms: int) -> bool:
        return bool(looks) and real(looks, now_ms, grace_ms)

    patch.function(cleanup, "is_due", is_due)


@mutant(UNNEEDED_GOES, KEEPING)
def a_file_that_no_log_ever_showed_waits_for_a_look(patch: Patch) -> None:
    real = cleanup._judged

    def judged(file: ListedFile, facts: CleanupFacts) -> Unneeded:
        return real(file, facts) if file.shown else Unneeded(file, Reason.UNNAMED, facts.now_ms)

    patch.put(cleanup, "_judged", judged)


@mutant(NEEDED_STAYS, KEEPING)
def a_clean_up_beside_an_import_deletes_what_the_oldest_generations_staged(patch: Patch) -> None:
    real = cleanup.decide_cleanup

    def decide_cleanup(facts: CleanupFacts) -> CleanupDecision:
        beside = facts.others_hold and not facts.rows
        return real(replace(facts, others_hold=False, current=Generation(facts.current - 1)) if beside else facts)

    patch.function(cleanup, "decide_cleanup", decide_cleanup)


# ------------------------------------------------------------------ entries of the table's log

_Looks = tuple[CleanUpLook, ...]
_Floor = Callable[[_Looks, TableName, int, int], int]


@mutant(LOG_STAYS, KEEPING)
def a_log_keeps_nothing_for_older_cuts(patch: Patch) -> None:
    patch.put(TableSeen, "oldest", property(lambda seen: seen.newest))


@mutant(LOG_STAYS, KEEPING)
def the_log_of_a_look_within_the_grace_goes(patch: Patch) -> None:
    _floor_otherwise(patch, lambda real, looks, table, now_ms, _: real(looks, table, now_ms, 0))


@mutant(LOG_STAYS, KEEPING)
def only_the_newest_look_says_what_readers_need(patch: Patch) -> None:
    def newest(real: _Floor, looks: _Looks, table: TableName, now_ms: int, grace_ms: int) -> int:
        return looks[-1].tables[table].oldest if real(looks, table, now_ms, grace_ms) else 0

    _floor_otherwise(patch, newest)


@mutant(LOG_GOES, KEEPING)
def a_log_waits_for_twice_the_grace(patch: Patch) -> None:
    _floor_otherwise(patch, lambda real, looks, table, now_ms, grace_ms: real(looks, table, now_ms, 2 * grace_ms))


@mutant(LOG_GOES, KEEPING)
def a_log_stays_whole_as_if_a_cut_lacked_the_table(patch: Patch) -> None:
    patch.put(TableSeen, "oldest", property(lambda _: 0))


def _floor_otherwise(patch: Patch, otherwise: Callable[[_Floor, _Looks, TableName, int, int], int]) -> None:
    real = cleanup.log_floor

    def log_floor(looks: _Looks, table: TableName, now_ms: int, grace_ms: int) -> int:
        return otherwise(real, looks, table, now_ms, grace_ms)

    patch.function(cleanup, "log_floor", log_floor)


# ------------------------------------------------------------------ files that are left when the job rests


def _past_otherwise(patch: Patch, stays: Callable[[ListedFile], bool]) -> None:
    real = cleanup._is_past

    def is_past(file: ListedFile, current: Generation) -> bool:
        return not stays(file) and real(file, current)

    patch.put(cleanup, "_is_past", is_past)


@mutant("files-go", CLEAN_UPS)
def a_file_that_a_table_showed_once_stays_for_ever(patch: Patch) -> None:
    _past_otherwise(patch, lambda file: bool(file.shown))


@mutant("files-go", CLEAN_UPS)
def a_file_that_no_table_showed_stays_for_ever(patch: Patch) -> None:
    _past_otherwise(patch, lambda file: not file.shown)


@mutant("files-go", CLEAN_UPS)
def a_clean_up_leaves_tables_of_state_alone(patch: Patch) -> None:
    _past_otherwise(patch, lambda file: "/state/" in file.table)
