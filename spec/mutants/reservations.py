"""Plants bugs in reservations: which files a reader's reservation keeps from clean-ups, and for how long."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from checkpointing.channel_items import Segment, StagedSegment
from checkpointing.commit import cleanup
from checkpointing.commit.cleanup import ListedFile, Reservation
from checkpointing.handles import FileHandle
from checkpointing.metadata import files
from checkpointing.snapshots import SubtaskSnapshot
from spec.machines.cleanup import HOUR_MS, LAPSED_GOES, RESERVED_STAYS
from spec.mutants.judges import CLEANUP
from spec.mutants.planting import Patch, mutant


@mutant(RESERVED_STAYS, CLEANUP)
def a_reservation_keeps_only_files_that_tables_show(patch: Patch) -> None:
    def reserved_files(_reservations: Iterable[Reservation], _now_ms: int) -> frozenset[str]:
        return frozenset()

    patch.function(cleanup, "reserved_files", reserved_files)


@mutant(RESERVED_STAYS, CLEANUP)
def a_tick_deletes_state_although_it_is_reserved(patch: Patch) -> None:
    def discardable(paths: Iterable[str], _reservations: Iterable[Reservation], _now_ms: int) -> tuple[str, ...]:
        return tuple(paths)

    patch.function(cleanup, "discardable", discardable)


@mutant(RESERVED_STAYS, CLEANUP)
def only_the_newest_reservation_counts(patch: Patch) -> None:
    real = cleanup.standing

    def standing(reservations: Iterable[Reservation], now_ms: int) -> tuple[Reservation, ...]:
        return real(reservations, now_ms)[-1:]

    patch.function(cleanup, "standing", standing)


@mutant(RESERVED_STAYS, CLEANUP)
def a_reservation_counts_for_an_hour_whatever_its_lease(patch: Patch) -> None:
    real = cleanup.standing

    def standing(reservations: Iterable[Reservation], now_ms: int) -> tuple[Reservation, ...]:
        return tuple(each for each in real(reservations, now_ms) if now_ms - each.given_ms < HOUR_MS)

    patch.function(cleanup, "standing", standing)


@mutant(RESERVED_STAYS, CLEANUP)
def an_entry_names_only_the_first_file_of_a_segment_in_flight(patch: Patch) -> None:
    """A clean-up deletes the other file, so the next reader reserves a cut that is no longer whole."""
    real = files.handles_of_snapshot

    def handles_of_snapshot(snapshot: SubtaskSnapshot) -> Iterator[FileHandle]:
        held = (replace(each, segments=tuple(map(_with_one_file, each.segments))) for each in snapshot.in_flight)
        return real(replace(snapshot, in_flight=tuple(held)))

    patch.function(files, "handles_of_snapshot", handles_of_snapshot)


@mutant(RESERVED_STAYS, CLEANUP)
def a_job_that_reads_on_keeps_only_what_its_cut_showed(patch: Patch) -> None:
    def reads_on(file: ListedFile, reservations: Iterable[Reservation], now_ms: int) -> bool:
        since = [each.versions.get(file.table, -1) for each in cleanup.standing(reservations, now_ms) if each.by_job]
        return any(shown.first <= version < shown.until for version in since for shown in file.shown)

    patch.function(cleanup, "reads_on", reads_on)


@mutant(RESERVED_STAYS, CLEANUP)
def the_reservation_of_a_job_lasts_a_day(patch: Patch) -> None:
    patch.put(cleanup, "JOB_RESERVATION_MS_MAX", cleanup.RESERVATION_MS_MAX)


@mutant(LAPSED_GOES, CLEANUP)
def a_reservation_is_forgotten_as_soon_as_it_ends(patch: Patch) -> None:
    patch.function(cleanup, "is_forgotten", lambda reservation, now_ms: not cleanup.standing((reservation,), now_ms))


@mutant(LAPSED_GOES, CLEANUP)
def a_reader_that_was_killed_keeps_its_cut_for_ever(patch: Patch) -> None:
    def standing(reservations: Iterable[Reservation], _now_ms: int) -> tuple[Reservation, ...]:
        return tuple(reservations)

    patch.function(cleanup, "standing", standing)


@mutant(LAPSED_GOES, CLEANUP)
def a_lease_of_forty_hours_counts_for_forty(patch: Patch) -> None:
    def standing(reservations: Iterable[Reservation], now_ms: int) -> tuple[Reservation, ...]:
        return tuple(each for each in reservations if now_ms < each.lapses_ms)

    patch.function(cleanup, "standing", standing)


def _with_one_file(segment: Segment) -> Segment:
    return StagedSegment(segment.files[:1]) if isinstance(segment, StagedSegment) else segment


@mutant(LAPSED_GOES, CLEANUP)
def a_reservation_from_the_far_future_counts(patch: Patch) -> None:
    """A clock that is years ahead would keep files for years."""

    def standing(reservations: Iterable[Reservation], now_ms: int) -> tuple[Reservation, ...]:
        return tuple(each for each in reservations if now_ms < each.ends_ms)

    patch.function(cleanup, "standing", standing)


@mutant(RESERVED_STAYS, CLEANUP)
def a_reservation_of_a_clock_that_is_ahead_does_not_count(patch: Patch) -> None:
    def standing(reservations: Iterable[Reservation], now_ms: int) -> tuple[Reservation, ...]:
        return tuple(each for each in reservations if each.given_ms <= now_ms < each.ends_ms)

    patch.function(cleanup, "standing", standing)
