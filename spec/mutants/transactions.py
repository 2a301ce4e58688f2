"""Plants bugs in slices that must stay whole, because their source gave them out whole."""

from collections.abc import Iterator
from dataclasses import replace

from checkpointing.channel_items import Segment, SourceSlice
from checkpointing.identifiers import SubtaskId
from checkpointing.job.door import JobDoor
from checkpointing.job.readers import SourceReaders
from checkpointing.messages import Effect, Fact, RunMicroBatch
from spec.mutants.judges import TRANSACTIONS
from spec.mutants.planting import Patch, mutant
from spec.pipeline import position_before, rows_before


@mutant("slices-whole", TRANSACTIONS)
def a_slice_is_read_as_far_as_it_was_asked_for(patch: Patch) -> None:
    real = SourceReaders.offered

    def offered(self: SourceReaders, slice_: SourceSlice) -> SubtaskId | None:
        granted = self._splits[slice_.source, slice_.split].granted
        if slice_.rows > granted > 0:
            slice_ = replace(slice_, end=_moved(slice_.start, granted), rows=granted)
        return real(self, slice_)

    patch.put(SourceReaders, "offered", offered)


@mutant("slices-whole", TRANSACTIONS)
def a_barrier_is_sent_a_row_before_the_end_of_a_slice(patch: Patch) -> None:
    real = SourceReaders.position

    def position(self: SourceReaders, subtask: SubtaskId) -> str | None:
        at = real(self, subtask)
        return _moved(at, -1) if rows_before(at) else at

    patch.put(SourceReaders, "position", position)


@mutant("slices-whole", TRANSACTIONS)
def a_micro_batch_leaves_the_last_row_of_a_slice_for_later(patch: Patch) -> None:
    real = JobDoor.step

    def step(self: JobDoor, fact: Fact) -> tuple[Effect, ...]:
        return tuple(_cut(effect) if isinstance(effect, RunMicroBatch) else effect for effect in real(self, fact))

    patch.put(JobDoor, "step", step)


def _cut(effect: RunMicroBatch) -> RunMicroBatch:
    inputs = (replace(entry, segments=tuple(_shorter(entry.segments))) for entry in effect.inputs)
    return replace(effect, inputs=tuple(inputs))


def _shorter(segments: tuple[Segment, ...]) -> Iterator[Segment]:
    for segment in segments:
        if isinstance(segment, SourceSlice) and segment.rows > 1:
            yield replace(segment, end=_moved(segment.end, -1), rows=segment.rows - 1)
        else:
            yield segment


def _moved(position: str | None, rows: int) -> str:
    return position_before(rows_before(position) + rows)
