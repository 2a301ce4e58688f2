"""The invariants of held cuts: nobody sees one before it is approved, nothing of it is lost, a rejected one is gone.

They share nothing with the core's own decision of what a held cut stops.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.attempt_events import AttemptBegan
from spec.history import (
    CheckpointEnded,
    CutWritten,
    DoorStarted,
    Event,
    FilesDiscarded,
    History,
    JobClaimed,
    RowCommitted,
    SavepointDisposed,
    TableChanged,
)
from spec.named_files import named_files
from spec.outside_events import OutsidePublished
from spec.rest_events import CameToRest


@dataclass(slots=True)
class _Cuts:
    """The held cuts so far, each with the files that no other entry named when it was held."""

    waiting: dict[CheckpointId, CheckpointRecord] = field(default_factory=dict)
    hidden: dict[CheckpointId, frozenset[str]] = field(default_factory=dict)
    """The own files of the cuts that wait, or were rejected."""
    rejected: set[CheckpointId] = field(default_factory=set)
    ever: set[CheckpointId] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    there: dict[CheckpointId, frozenset[str]] = field(default_factory=dict)
    """What each entry names that is there now."""
    newest: int = 0
    """The generation of the newest claim. An older one that wakes up is fenced."""
    holders: set[Generation] = field(default_factory=set)
    """The generations that are to hold their checkpoint."""

    def note(self, event: Event) -> None:
        """Take an event, after it was judged."""
        match event:
            case JobClaimed(claim):
                self.newest = max(self.newest, claim.generation)
            case AttemptBegan(_, generation, limits) if limits.hold:
                self.holders.add(generation)
            case RowCommitted(record, kept):
                for gone in [each for each in self.waiting if each not in kept]:
                    del self.waiting[gone], self.hidden[gone]
                files = named_files(record)
                if record.kind is RowKind.HELD:
                    self.waiting[record.checkpoint] = record
                    self.ever.add(record.checkpoint)
                    self.hidden[record.checkpoint] = files - self.named
                self.named |= files
                self.there = {each: self.there[each] for each in kept if each in self.there}
                self.there[record.checkpoint] = files
            case SavepointDisposed(checkpoint):
                self.there.pop(checkpoint, None)
                if self.waiting.pop(checkpoint, None) is not None:
                    self.rejected.add(checkpoint)
            case _:
                pass


def seen_too_early(history: History) -> Iterator[str]:
    """Yield what showed, told or continued from a held cut. Only its approval makes its content visible."""
    cuts = _Cuts()
    for event in history.without_flow:
        match event:
            case TableChanged(checkpoint, publication, _, active):
                if checkpoint in cuts.ever:
                    yield f"{publication.table} shows held cut {checkpoint}"
                for held, files in cuts.hidden.items():
                    if files & active:
                        yield f"{publication.table} shows {min(files & active)} of held cut {held}"
            case CutWritten(checkpoint) if checkpoint in cuts.ever:
                yield f"a cut was recorded for held cut {checkpoint}"
            case CheckpointEnded(_, checkpoint, None) if checkpoint in cuts.ever:
                yield f"held cut {checkpoint} was told complete"
            case OutsidePublished(checkpoint) if checkpoint in cuts.ever:
                yield f"an outside sink got rows of held cut {checkpoint}"
            case DoorStarted(generation, _, restored) if restored is not None and restored.checkpoint in cuts.ever:
                yield f"generation {generation} began from held cut {restored.checkpoint}"
            case RowCommitted(record, _) if record.parent in cuts.ever:
                yield f"row {record.checkpoint} continues from held cut {record.parent}"
            case RowCommitted(record, _) if record.commits and record.generation in cuts.holders:
                yield f"generation {record.generation} committed {record.checkpoint}, and was to hold it"
            case _:
                pass
        cuts.note(event)


def not_kept(history: History) -> Iterator[str]:
    """Yield every held cut that went otherwise than by approval or rejection, and every file of one that was deleted.

    The job must not move on while a cut waits. Its approval is the same cut as a checkpoint, after the same parent,
    with what was measured. It has no counts, since they are those of the generation that held the cut.
    """
    cuts = _Cuts()
    for event in history.without_flow:
        match event:
            case RowCommitted(record, kept):
                gone = [each for each in cuts.waiting if each not in kept]
                for each in gone:
                    if not _approves(record, cuts.waiting[each]):
                        yield f"held cut {each} is gone after row {record.checkpoint}, which does not approve it"
                if (record.commits or record.kind is RowKind.HELD) and len(gone) < len(cuts.waiting):
                    yield f"row {record.checkpoint} was committed while held cut {min(cuts.waiting)} waits"
            case DoorStarted(generation) if cuts.waiting and generation == cuts.newest:
                yield f"generation {generation} runs the job while held cut {min(cuts.waiting)} waits"
            case FilesDiscarded(paths):
                for held in cuts.waiting:
                    lost = cuts.hidden[held].intersection(paths)
                    if lost:
                        yield f"{min(lost)} of held cut {held} was deleted"
            case _:
                pass
        cuts.note(event)


def _approves(record: CheckpointRecord, held: CheckpointRecord) -> bool:
    same = ("parent", "vertices", "tables", "columns", "renames", "hooks", "outside", "max_parallelism")
    equal = all(getattr(record, name) == getattr(held, name) for name in same)
    measured = record.statistics.model_copy(update={"committed_ms": held.statistics.committed_ms})
    due = held.statistics.model_copy(update={"counts": None})
    return record.kind is RowKind.CHECKPOINT and equal and measured == due


def left_by_rejected(history: History) -> Iterator[str]:
    """Yield every file of a rejected cut that is still there when the job has come to rest, and that no entry names.

    A savepoint that was taken while the cut waited may share a manifest with it.
    """
    cuts = _Cuts()
    for event in history.without_flow:
        if isinstance(event, CameToRest):
            needed = frozenset[str]().union(*cuts.there.values())
            for held in sorted(cuts.rejected):
                left = (cuts.hidden[held] & event.files) - needed
                if left:
                    yield f"{min(left)} of rejected cut {held} is left"
        cuts.note(event)
