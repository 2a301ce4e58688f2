"""Plants bugs in the decision who may claim the job, and in what a cut tells about how far its rows are read."""

from dataclasses import replace

from checkpointing.channel_items import SourceSlice
from checkpointing.commit import fencing, recovery
from checkpointing.commit.fencing import HolderObserved, Lease, MayClaim, Refused
from checkpointing.graph import Vertex
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.messages import NotifyComplete
from checkpointing.metadata.record import CheckpointRecord, Claim, Row
from spec.mutants.judges import CLAIMS, NOTIFICATIONS
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ who may claim


@mutant("claims-are-polite", CLAIMS)
def an_older_lease_ends_the_time_to_write_the_first_one(patch: Patch) -> None:
    real = fencing._after_silence

    def decide(
        held: Claim, generation: Generation, seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        is_older = seen.lease is not None and seen.lease.generation != held.generation
        if is_older and seen.alive is True:
            seen = replace(seen, lease=Lease(held.generation, now_ms))
        return real(held, generation, seen, now_ms, take_over=take_over)

    patch.put(fencing, "_after_silence", decide)


@mutant("claims-are-polite", CLAIMS)
def a_claim_after_a_release_skips_the_ids_that_were_not_used(patch: Patch) -> None:
    real = fencing.decide_claim

    def decide(rows: tuple[Row, ...], seen: HolderObserved, now_ms: int, *, take_over: bool) -> MayClaim | Refused:
        made, newest = real(rows, seen, now_ms, take_over=take_over), fencing.newest_claim(rows)
        if isinstance(made, MayClaim) and newest is not None:
            return replace(made, first_id=CheckpointId(newest.last_id + 1))
        return made

    patch.function(fencing, "decide_claim", decide)


@mutant("claims-are-polite", CLAIMS)
def the_newest_claim_is_the_last_one_in_the_list(patch: Patch) -> None:
    def newest(rows: tuple[Row, ...]) -> Claim | None:
        return next((row for row in reversed(rows) if isinstance(row, Claim)), None)

    patch.function(fencing, "newest_claim", newest)


@mutant("claims-are-polite", CLAIMS)
def a_holder_that_died_keeps_its_lease(patch: Patch) -> None:
    real = fencing._after_silence

    def decide(
        held: Claim, generation: Generation, seen: HolderObserved, now_ms: int, *, take_over: bool
    ) -> MayClaim | Refused:
        alive = None if seen.lease is not None and seen.alive is False else seen.alive
        return real(held, generation, replace(seen, alive=alive), now_ms, take_over=take_over)

    patch.put(fencing, "_after_silence", decide)


# ------------------------------------------------------------------ what a cut tells


@mutant("told-positions", NOTIFICATIONS)
def slices_that_end_in_one_place_are_taken_for_one(patch: Patch) -> None:
    def slices(record: CheckpointRecord) -> dict[tuple[VertexId, str], dict[str, str]]:
        found: dict[tuple[VertexId, str], dict[str, str]] = {}
        for each in (held for vertex in record.vertices for own in vertex.subtasks for held in own.in_flight):
            for segment in each.segments:
                if isinstance(segment, SourceSlice):
                    found.setdefault((segment.source, segment.split), {})[segment.end] = segment.start
        return found

    patch.put(recovery, "_slices_in_flight", slices)


@mutant("told-positions", NOTIFICATIONS)
def a_gap_between_slices_is_passed_over(patch: Patch) -> None:
    def before(position: str | None, starts: dict[str, str]) -> str | None:
        while position in starts:
            position = starts.pop(position)
        return position or None

    patch.put(recovery, "_before", before)


@mutant("told-positions", NOTIFICATIONS)
def a_split_without_a_position_ends_the_list(patch: Patch) -> None:
    real = recovery.completion

    def completion(record: CheckpointRecord) -> NotifyComplete:
        whole = real(record)
        splits = [
            (vertex.vertex, split)
            for vertex in record.vertices
            for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
            if subtask.position is None
        ]
        told = [each for each in whole.positions if not splits or each[:2] < splits[0]]
        return replace(whole, positions=tuple(told))

    patch.function(recovery, "completion", completion)


@mutant("nothing-is-left", NOTIFICATIONS)
def a_source_under_a_new_name_is_a_new_source(patch: Patch) -> None:
    real = recovery._knows_parts

    def knows(source: Vertex, splits: dict[VertexId, tuple[str, ...]]) -> bool:
        return real(replace(source, renamed_from=None), splits)

    patch.put(recovery, "_knows_parts", knows)


@mutant("nothing-is-left", NOTIFICATIONS)
def the_first_part_of_a_source_counts_for_all(patch: Patch) -> None:
    real = recovery._knows_parts

    def knows(source: Vertex, splits: dict[VertexId, tuple[str, ...]]) -> bool:
        return real(replace(source, parts=source.parts[:1]), splits)

    patch.put(recovery, "_knows_parts", knows)


@mutant("nothing-is-left", NOTIFICATIONS)
def a_source_without_an_end_is_left_out(patch: Patch) -> None:
    real = recovery.has_finished

    def finished(restore: CheckpointRecord | None, sources: tuple[Vertex, ...]) -> bool:
        return real(restore, [each for each in sources if each.bounded])

    patch.function(recovery, "has_finished", finished)
