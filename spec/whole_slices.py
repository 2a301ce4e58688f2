"""Checks that no door cuts a slice in two: a source may have given it out whole because a transaction is in it.

A position belongs to its source. So a position in an entry is one that the source gave out: the end of a slice, or
where the tick began. And a micro-batch runs slices as the source offered them.
"""

from checkpointing.channel_items import SourceSlice
from checkpointing.messages import Effect, Fact, RunMicroBatch, SliceOffered
from checkpointing.metadata.record import CheckpointRecord
from spec.cut_contents import in_flight
from spec.pacing import positions_of
from spec.steps import Begun
from spec.watching import DoorJudge, Split, Watched, drafted


class WholeSlices(DoorJudge):
    """Judges the positions of entries, and the slices of micro-batches."""

    def __init__(self, door: Watched) -> None:
        """Know the positions and the slices in flight of the restored entry."""
        super().__init__(door)
        restored = door.setup.restored
        self._places: dict[Split, set[str | None]] = {
            split: {position, None} for split, position in positions_of(restored).items()
        }
        self._slices = {*_flying(restored)} if restored is not None else set[SourceSlice]()

    def told(self, fact: Begun | Fact) -> None:
        """Take a slice that a source gives out."""
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            split = (fact.slice.source, fact.slice.split)
            self._places.setdefault(split, {None}).add(fact.slice.end)
            self._slices.add(fact.slice)

    def asked(self, effect: Effect) -> None:
        """Judge the slices of a micro-batch, and the positions of an entry."""
        if isinstance(effect, RunMicroBatch):
            for taken in (segment for entry in effect.inputs for segment in entry.segments):
                if isinstance(taken, SourceSlice) and taken not in self._slices:
                    self.wrong(
                        f"micro-batch {effect.micro_batch} reads {taken.split} from {taken.start} to {taken.end}"
                    )
            return
        for split, position in positions_of(drafted(effect)).items():
            known = self._places.get(split, {None})
            if position not in known:
                self.wrong(f"an entry has {split[1]} at {position}, no slice ends there")


def _flying(record: CheckpointRecord) -> list[SourceSlice]:
    held = (segment for state in in_flight(record) for segment in state.segments)
    return [segment for segment in held if isinstance(segment, SourceSlice)]
