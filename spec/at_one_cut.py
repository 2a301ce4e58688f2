"""Judges a job that reads another job's cuts: at each entry it must stand at one of them (A10)."""

from collections.abc import Iterator, Mapping

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.job.tick_end import FIRST_MS, LONGEST_MS
from checkpointing.messages import Effect, Fact, NotifyAborted, NotifyComplete, PollSource, SliceOffered
from checkpointing.metadata.record import CheckpointRecord
from spec.history import DoorStarted, History, RowCommitted
from spec.steps import Begun
from spec.upstream import CutReached
from spec.watching import DoorJudge, Watched
from spec.watching import Split as WatchedSplit

Split = tuple[str, str]


def mixed_cuts(history: History) -> Iterator[str]:
    """Yield every entry whose splits of one upstream job do not all stand at the same cut.

    Only a source understands its positions. So a cut is recognized by the slices that reached it, and the restored
    entry's positions count as one cut. Splits without a read row stand at the cut before the first.
    """
    reached: dict[tuple[Split, str | None], set[str]] = {}
    groups: dict[Generation, Mapping[VertexId, str]] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, _, restored):
                groups[generation] = event.cut_groups
                for split, position in _positions(restored, event.cut_groups):
                    reached.setdefault((split, position), set()).add(
                        f"restored {restored.checkpoint if restored is not None else 0}"
                    )
            case CutReached():
                split = (str(event.source), str(event.split))
                reached.setdefault((split, event.position), set()).add(event.cut)
            case RowCommitted(record) if record.generation in groups:
                yield from _mixed(record, groups[record.generation], reached)
            case _:
                pass


def _mixed(
    record: CheckpointRecord, groups: Mapping[VertexId, str], reached: Mapping[tuple[Split, str | None], set[str]]
) -> Iterator[str]:
    for name in sorted(set(groups.values())):
        members = {source: group for source, group in groups.items() if group == name}
        places = dict(_positions(record, members))
        if all(position is None for position in places.values()):
            continue
        cuts = [reached.get((split, position), set()) for split, position in places.items()]
        if not set.intersection(*cuts):
            said = ", ".join(f"{split[1]} at {position}" for split, position in sorted(places.items()))
            yield f"entry {record.checkpoint} stands at no one cut of {name}: {said}"


def _positions(record: CheckpointRecord | None, groups: Mapping[VertexId, str]) -> Iterator[tuple[Split, str | None]]:
    for vertex in record.vertices if record is not None else ():
        if vertex.vertex in groups:
            for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False):
                yield (str(vertex.vertex), split), subtask.position


class Announced(DoorJudge):
    """Judges sources of cuts: they read on to a cut that a barrier waits for, and ask for one there (A10).

    The judge takes the group's next poll as the sign that a barrier was sent. After checkpoints have failed, a pause
    comes before the next one, or the interval brings it.
    """

    def __init__(self, door: Watched) -> None:
        """Begin without a group on its way to a cut."""
        super().__init__(door)
        self._on_the_way: dict[str, set[WatchedSplit]] = {}
        """By group, who has reached the cut that somebody of it has rows of; no entry if nobody has yet."""
        self._since: dict[str, CheckpointId] = {}
        """The next id when the first of a group had rows of its cut."""
        self._failures = 0
        """How many checkpoints in a row have failed."""
        self._again_ms = 0
        """When the pause after them is over."""

    def told(self, fact: Begun | Fact) -> None:
        """Record who reads a cut, and who has reached it."""
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice) and fact.slice.cut is not None:
            group = self.door.setup.cut_groups[fact.slice.source]
            arrived = self._on_the_way.setdefault(group, set())
            self._since.setdefault(group, self.door.next_id)
            if fact.slice.at_cut:
                arrived.add((fact.slice.source, fact.slice.split))

    def asked(self, effect: Effect) -> None:
        """Judge a poll: a split that has reached its cut waits for the others and for a barrier."""
        if isinstance(effect, NotifyComplete):
            self._failures = 0
        if isinstance(effect, NotifyAborted):
            self._again_ms = self.door.now_ms + min(LONGEST_MS, FIRST_MS * 2**self._failures)
            self._failures += 1
        if not isinstance(effect, PollSource) or effect.source not in self.door.setup.cut_groups:
            return
        group = self.door.setup.cut_groups[effect.source]
        if (effect.source, effect.split) in self._on_the_way.get(group, ()):
            if self._on_the_way.pop(group) != self._members(group):
                self.wrong(f"split {effect.split} reads beyond a cut that others of its group have not reached")
            self._since.pop(group)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:  # noqa: ARG002 - the form of a judge
        """Judge who has reached a cut, and who has not."""
        for group, since in self._since.items():
            behind = self._members(group) - self._on_the_way[group]
            if not behind:
                self._announces(group, since)
            elif self._barrier_waits(since):
                for split in sorted(behind - self.door.polls.keys()):
                    if not self.door.is_idle(split):
                        self.wrong(f"a barrier waits for split {split[1]} of {split[0]}, which is not read")

    def _announces(self, group: str, since: CheckpointId) -> None:
        door = self.door
        asked = door.next_id > since or door.pending or door.requests or door.asked_hooks or door.reserving
        pauses = door.now_ms < self._again_ms or (self._failures and door.setup.config.interval_ms is not None)
        if not asked and not pauses and door.reads:
            self.wrong(f"all tables of {group} are at a cut, and no checkpoint is asked for")

    def _barrier_waits(self, since: CheckpointId) -> bool:
        """Return whether a checkpoint that was begun after the first rows of a cut has told the sources."""
        door = self.door
        told = any(checkpoint >= since for checkpoint in door.pending) and not door.asked_hooks
        return told and not (door.is_troubled or door.restoring or door.is_over)

    def _members(self, group: str) -> set[WatchedSplit]:
        setup = self.door.setup
        sources = (source for source in setup.graph.sources() if setup.cut_groups.get(source.id) == group)
        return {(source.id, split) for source in sources for split in source.splits}
