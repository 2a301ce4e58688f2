"""Plants bugs in completions: in the positions that sources and listeners receive (F2)."""

from dataclasses import replace

from checkpointing.commit import recovery
from checkpointing.identifiers import VertexId
from checkpointing.messages import NotifyComplete
from checkpointing.metadata.record import CheckpointRecord
from spec.mutants.planting import Patch, mutant


@mutant("positions-are-true")
def a_completion_passes_over_slices_in_flight(patch: Patch) -> None:
    def before(position: str | None, starts: dict[str, str]) -> str | None:
        return position

    patch.put(recovery, "_before", before)


@mutant("positions-are-true")
def a_completion_knows_one_slice_in_flight_of_a_split(patch: Patch) -> None:
    def before(position: str | None, starts: dict[str, str]) -> str | None:
        return starts.get(position or "", position)

    patch.put(recovery, "_before", before)


@mutant("positions-are-true")
def a_completion_knows_slices_of_the_first_channel_only(patch: Patch) -> None:
    real = recovery._slices_in_flight

    def slices_in_flight(record: CheckpointRecord) -> dict[tuple[VertexId, str], dict[str, str]]:
        first = [next((v for v in record.vertices if any(s.in_flight for s in v.subtasks)), None)]
        return real(record.model_copy(update={"vertices": tuple(vertex for vertex in first if vertex)}))

    patch.put(recovery, "_slices_in_flight", slices_in_flight)


@mutant("positions-are-true")
def a_completion_mixes_up_the_splits_of_a_source(patch: Patch) -> None:
    real = recovery.completion

    def completion(record: CheckpointRecord) -> NotifyComplete:
        turned = (vertex.model_copy(update={"splits": vertex.splits[::-1]}) for vertex in record.vertices)
        return real(record.model_copy(update={"vertices": tuple(turned)}))

    patch.function(recovery, "completion", completion)


@mutant("positions-are-true")
def a_completion_tells_where_the_one_before_stood(patch: Patch) -> None:
    real, told = recovery.completion, list[NotifyComplete]()

    def completion(record: CheckpointRecord) -> NotifyComplete:
        told.append(real(record))
        return replace(told[-1], positions=told[-2].positions if len(told) > 1 else ())

    patch.function(recovery, "completion", completion)


@mutant("positions-are-true")
def a_completion_tells_the_first_split_of_each_source(patch: Patch) -> None:
    real = recovery.completion

    def completion(record: CheckpointRecord) -> NotifyComplete:
        whole = real(record)
        first = {source: (source, split, at) for source, split, at in reversed(whole.positions)}
        return replace(whole, positions=tuple(first.values()))

    patch.function(recovery, "completion", completion)
