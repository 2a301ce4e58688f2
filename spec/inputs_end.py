"""Checks the ends of bounded sources on any run: what a door does with a split that has ended, and when it finishes."""

from typing import TYPE_CHECKING

from checkpointing.channel_items import SourceSlice
from checkpointing.graph import VertexKind
from checkpointing.messages import (
    Effect,
    EndTick,
    Fact,
    MicroBatchFinished,
    NotifyComplete,
    PollSource,
    RunMicroBatch,
    SavepointKind,
    SliceOffered,
    TickOutcome,
)
from checkpointing.metadata.record import CheckpointRecord
from spec.entries_say import ended_at, says_finished
from spec.pacing import positions_of
from spec.steps import Begun
from spec.watching import DoorJudge, Watched, drafted

if TYPE_CHECKING:
    from checkpointing.identifiers import CheckpointId, VertexId


class InputsEnd(DoorJudge):
    """Judges polls, entries and the end of the tick (B4).

    A split that has ended is never polled again, and an entry says where it ended. Nothing of a part is polled before
    all splits of the earlier parts have ended, and an entry with rows of the part says that they have. No key ends
    before all splits have ended, unless somebody drains the job. An entry is finished only if all keys have ended. A
    tick finishes exactly if all splits have ended and its newest cut is that of a finished entry.
    """

    def __init__(self, door: Watched) -> None:
        """Begin at the restored entry."""
        super().__init__(door)
        restored = door.setup.restored
        self._at = positions_of(restored)
        self._restored_at = dict(self._at)
        self._is_shown = restored is not None and says_finished(restored)
        """True if the newest cut is that of a finished entry."""
        keyed = (each.id for each in door.setup.graph.operators() if each.kind is VertexKind.KEYED)
        self._holding = set() if self._is_shown else set(keyed)
        """The vertices that may hold rows back."""
        self._ending: set[VertexId] = set()
        """The vertices that end their keys now."""
        self._drafts: dict[CheckpointId, bool] = {}

    def told(self, fact: Begun | Fact) -> None:
        """Note where splits stand, and which vertices have ended their keys."""
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            split = (fact.slice.source, fact.slice.split)
            self._at[split] = fact.slice.end
            if split in self.door.ended:
                self.wrong(f"split {fact.slice.split} has ended, and gives {fact.slice.rows} rows")
        if isinstance(fact, MicroBatchFinished) and fact.vertex in self._ending:
            self._holding.discard(fact.vertex)

    def asked(self, effect: Effect) -> None:
        """Judge an effect."""
        match effect:
            case PollSource() if (effect.source, effect.split) in self.door.ended:
                self.wrong(f"split {effect.split} of {effect.source} has ended, and is polled again")
            case PollSource() if self.door.is_held((effect.source, effect.split)):
                self.wrong(f"split {effect.split} is polled, and not every split of an earlier part has ended")
            case RunMicroBatch():
                self._ran(effect)
            case NotifyComplete():
                self._is_shown = self._drafts.get(effect.checkpoint, self._is_shown)
            case EndTick():
                self._ends(effect)
            case _:
                record = drafted(effect)
                if record is not None:
                    self._entry(record)

    def _ran(self, effect: RunMicroBatch) -> None:
        self._ending.discard(effect.vertex)
        holds_rows = self.door.setup.graph.vertex(effect.vertex).kind is VertexKind.KEYED
        if not any(each.segments for each in effect.inputs) and not (effect.end_of_input and holds_rows):
            self.wrong(f"{effect.vertex} runs a micro-batch without rows, and it is not the last one of a keyed vertex")
        # A drain that fails behind its barrier fails the tick, which commits nothing more.
        drains = SavepointKind.DRAIN in self.door.requests.values() or self.door.is_troubled
        if effect.end_of_input:
            self._ending.add(effect.vertex)
            if not drains and not self.door.inputs_ended:
                self.wrong(f"{effect.vertex} ends its keys, and not every split has ended")

    def _entry(self, record: CheckpointRecord) -> None:
        positions = positions_of(record)
        for split in ended_at(record):
            if split not in self.door.ended:
                self.wrong(f"entry {record.checkpoint} says that {split[1]} has ended, it has not")
            elif positions[split] != self._at.get(split):
                self.wrong(
                    f"{split[1]} ended at {self._at.get(split)}, entry {record.checkpoint} says {positions[split]}"
                )
        for split, earlier in self.door.before.items():
            moved = positions.get(split) != self._restored_at.get(split)
            if moved and not ended_at(record).issuperset(earlier):
                self.wrong(f"entry {record.checkpoint} has rows of {split[1]}, and an earlier part has not ended")
        finished = self._drafts[record.checkpoint] = says_finished(record)
        if finished and self._holding:
            self.wrong(f"entry {record.checkpoint} is finished, {sorted(self._holding)} may hold rows back")
        if finished and not self.door.inputs_ended:
            self.wrong(f"entry {record.checkpoint} is finished, and not every split has ended")

    def _ends(self, end: EndTick) -> None:
        if end.outcome is TickOutcome.FINISHED and not (self._is_shown and self.door.inputs_ended):
            self.wrong("the tick says that the job has finished, its newest cut does not show that")
        if end.outcome is TickOutcome.CAUGHT_UP and self.door.inputs_ended:
            self.wrong("the tick says that it has caught up, and every split has ended")
