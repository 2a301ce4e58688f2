"""Mutants of sources that are read in parts, one after the other."""

from checkpointing.graph import JobGraph
from checkpointing.identifiers import SplitId, SubtaskId, VertexId
from checkpointing.job import finishing, first_part, restoring
from checkpointing.job.first_part import Parts
from checkpointing.job.readers import SourceReaders
from checkpointing.job.wiring import Wiring
from checkpointing.messages import SourceEnded
from checkpointing.metadata.record import CheckpointRecord
from spec.machines.parting import PARTED
from spec.mutants.judges import FIRST_PARTS, PARTS
from spec.mutants.planting import Patch, mutant


@mutant("inputs-end", PARTS)
def all_parts_are_read_at_once(patch: Patch) -> None:
    patch.put(SourceReaders, "_is_held", lambda _self, _split: False)


@mutant("inputs-end", PARTS)
def the_first_split_that_ends_ends_its_part(patch: Patch) -> None:
    def part_now(self: SourceReaders, source: VertexId) -> int:
        ended = [split.part for split in self._of(source) if split.ended]
        return max(ended, default=-1) + 1

    patch.put(SourceReaders, "_part_now", part_now)


@mutant("inputs-end", PARTS)
def the_next_part_is_read_while_a_poll_is_not_answered(patch: Patch) -> None:
    def part_now(self: SourceReaders, source: VertexId) -> int:
        return min((split.part for split in self._of(source) if not split.ended and not split.granted), default=0)

    patch.put(SourceReaders, "_part_now", part_now)


@mutant("caught-up-is-committed", PARTS)
def the_next_part_is_never_read(patch: Patch) -> None:
    real = SourceReaders.found_ended

    def found_ended(self: SourceReaders, source: VertexId, name: SplitId) -> SubtaskId:
        now = dict(self._parts)
        subtask = real(self, source, name)
        self._parts = now
        return subtask

    patch.put(SourceReaders, "found_ended", found_ended)


@mutant("inputs-end", PARTS)
def a_restore_forgets_which_parts_have_ended(patch: Patch) -> None:
    real = restoring.ended_splits

    def ended_splits(graph: JobGraph, record: CheckpointRecord | None) -> frozenset[SubtaskId]:
        bounded = {source.id for source in graph.sources() if source.bounded}
        return frozenset(each for each in real(graph, record) if each.vertex in bounded)

    patch.function(restoring, "ended_splits", ended_splits)


@mutant("inputs-end", PARTS)
def a_part_that_has_ended_reads_a_split_that_it_finds_later(patch: Patch) -> None:
    real = restoring.ended_splits

    def ended_splits(graph: JobGraph, record: CheckpointRecord | None) -> frozenset[SubtaskId]:
        known = {(each.vertex, split) for each in (record.vertices if record else ()) for split in each.splits}
        return frozenset(each for each in real(graph, record) if (each.vertex, _name(graph, each)) in known)

    patch.function(restoring, "ended_splits", ended_splits)


@mutant("inputs-end", PARTS)
def an_entry_does_not_say_that_a_part_has_ended(patch: Patch) -> None:
    real = finishing.split_ended

    def split_ended(job: Wiring, fact: SourceEnded) -> None:
        if job.readers.ended or job.setup.graph.vertex(fact.source).bounded:
            real(job, fact)
        else:
            job.readers.found_ended(fact.source, fact.split)

    patch.function(finishing, "split_ended", split_ended)


def _name(graph: JobGraph, subtask: SubtaskId) -> SplitId:
    return graph.vertex(subtask.vertex).splits[subtask.index]


# ------------------------------------------------------------------ first parts


@mutant(PARTED, FIRST_PARTS)
def rows_in_flight_keep_the_old_names_of_their_splits(patch: Patch) -> None:
    patch.function(first_part, "_segment", lambda segment, _begins: segment)


@mutant(PARTED, FIRST_PARTS)
def a_source_that_has_parts_already_is_renamed_again(patch: Patch) -> None:
    def read_alone(record: CheckpointRecord, parts: Parts) -> tuple[VertexId, ...]:
        return tuple(was.vertex for was in record.vertices if was.splits and parts.get(was.vertex))

    patch.function(first_part, "read_alone", read_alone)


@mutant(PARTED, FIRST_PARTS)
def the_last_part_goes_on_instead_of_the_first(patch: Patch) -> None:
    def in_first_part(record: CheckpointRecord, parts: Parts) -> CheckpointRecord:
        begins = {vertex: parts[vertex][-1] for vertex in first_part.read_alone(record, parts)}
        return record.model_copy(update={"vertices": tuple(first_part._vertex(was, begins) for was in record.vertices)})

    patch.function(first_part, "in_first_part", in_first_part)
