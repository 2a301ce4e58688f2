"""Checks pacing on any run: how many rows a door asks for in each poll, and between two barriers (A11).

The rows between the barriers of two entries are counted from the positions in them. A failed checkpoint may have sent a
barrier too. So every used id between two entries may have begun an epoch.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from checkpointing.channel_items import AlignmentType, SourceSlice
from checkpointing.coordinator.messages import AskHook, ResetHook, RestoreHook
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import VertexKind
from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import (
    Effect,
    EndTick,
    Fact,
    MicroBatchFinished,
    MicroBatchNotStaged,
    NotifyAborted,
    NotifyComplete,
    PollFailed,
    PollSource,
    RunMicroBatch,
    SavepointKind,
    SavepointRequested,
    SliceOffered,
    TickOutcome,
    TimeAdvanced,
)
from checkpointing.metadata.record import CheckpointRecord, RowKind, VertexStatistics
from spec.history import Begun
from spec.reference.contents import ended_at, in_flight, says_finished
from spec.rules import rule
from spec.rules.watching import FLINKS_LIST, DoorJudge, Split, Watched, begins_commit, drafted

ALL = VertexId("the counted sources")
"""Stands for all sources that `every_rows` counts."""


@rule("paced")
class Pacing(DoorJudge):
    """Judges the rows of polls, micro-batches and epochs. At a barrier, polls in progress count too (A11)."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._at = positions_of(door.setup.restored)
        self._read: Counter[Split] = Counter()
        self._granted: Counter[Split] = Counter()
        """The rows sent, without the rows of a slice beyond what its poll asked for. Such a slice could not be cut."""
        self._reached: dict[tuple[Split, str | None], int] = dict.fromkeys(self._at.items(), 0)
        """How many granted rows a split had sent when it was at this position."""
        self._asked: dict[Split, int] = {}
        """How many rows the newest poll of a split asked for."""
        self._newest = CheckpointId(door.next_id - 1)
        self._before: Counter[VertexId] = Counter()
        """How many rows each source had sent before the barrier of the newest entry."""
        self._limits = _limits(door)
        self._polled_more = False
        """True if the judged step polls a split."""
        self._by_slice = False
        """True if the judged step began with a slice of rows."""
        self._counted_at: dict[CheckpointId, int] = {CheckpointId(0): 0}
        """How many rows the counted sources had sent at each trigger.

        Aborted checkpoints are removed: they may have had no barrier.
        """

    def told(self, fact: Begun | Fact) -> None:
        if isinstance(fact, Begun):
            self._reached |= {(split, None): 0 for split in _splits(self.door) if split not in self._at}
        self._by_slice = isinstance(fact, SliceOffered)
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            split = (fact.slice.source, fact.slice.split)
            self._at[split] = fact.slice.end
            self._read[split] += fact.slice.rows
            self._granted[split] += min(fact.slice.rows, self._asked[split])
            self._reached[split, fact.slice.end] = self._granted[split]

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, PollSource):
            self._polled_more = True
            self._polled(effect)
        elif isinstance(effect, RunMicroBatch):
            self._ran(effect)
        elif isinstance(effect, NotifyAborted):
            self._counted_at.pop(effect.checkpoint, None)
        else:
            record = drafted(effect)
            if record is not None and self._limits:
                self._polled_more = True
                self._between(record)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        if given:
            self._triggered(given[-1])
        polled, self._polled_more = self._polled_more, False
        if not self._limits or not polled:
            return
        granted: Counter[VertexId] = Counter()
        for (source, _), rows in self.door.polls.items():
            granted[source] += rows
        epochs = self.door.next_id - self._newest
        for (name, limit), now in zip(self._limits.items(), self._sums(granted), strict=True):
            if now - self._before[name] > limit * epochs:
                self.wrong(f"{name}: {now - self._before[name]} rows since {self._newest}, {limit} are its epoch's")

    def _triggered(self, checkpoint: CheckpointId) -> None:
        """Judge a trigger. A slice causes one only if the counted sources have sent enough rows since the last barrier.

        A source of another job's cuts may ask for checkpoints itself (A10).
        """
        every = self.door.setup.config.every_rows
        read: Counter[VertexId] = Counter()
        for (source, _), rows in self._read.items():
            read[source] += rows
        counted = self._of(ALL, read)
        since = counted - max(self._counted_at.values())
        announced = bool(self.door.setup.cut_groups)
        if self._by_slice and not announced and (every is None or since < every):
            self.wrong(f"checkpoint {checkpoint} is triggered after {since} rows, it is due after {every}")
        self._counted_at[checkpoint] = counted

    # -------------------------------------------------------------- polls

    def _polled(self, poll: PollSource) -> None:
        split, most = (poll.source, poll.split), self.door.setup.config.slice_rows_max
        if not 0 < poll.max_rows <= most:
            self.wrong(f"split {poll.split} is to bring {poll.max_rows} rows, a slice may have {most}")
        self._asked[split] = poll.max_rows
        if split in self.door.polls:
            self.wrong(f"split {poll.split} is read twice at a time")
        if poll.position != self._at.get(split):
            self.wrong(f"split {poll.split} is read on from {poll.position}, it stands at {self._at.get(split)}")

    def _ran(self, effect: RunMicroBatch) -> None:
        """Note a micro-batch.

        A vertex stops collecting rows once it has enough. Its first micro-batch also takes what was in flight.
        """
        most = self.door.setup.config.micro_batch_rows_max
        rows = [segment.rows for entry in effect.inputs for segment in entry.segments]
        if effect.micro_batch > 1 and rows and sum(rows) - max(rows) >= most:
            self.wrong(f"micro-batch {effect.micro_batch} of {effect.vertex} has {sum(rows)} rows, {most} are enough")

    # -------------------------------------------------------------- epochs

    def _between(self, record: CheckpointRecord) -> None:
        at = {split: self._reached.get((split, at)) for split, at in positions_of(record).items()}
        if record.checkpoint < self._newest or None in at.values():
            return
        sent: Counter[VertexId] = Counter()
        for (source, _), rows in at.items():
            sent[source] += rows or 0
        sums = Counter({name: self._of(name, sent) for name in self._limits})
        for name, limit in self._limits.items():
            rows = sums[name] - self._before[name]
            if rows > limit * (record.checkpoint - self._newest):
                self.wrong(
                    f"{name}: {rows} rows between {self._newest} and {record.checkpoint}, {limit} are its epoch's"
                )
        self._newest, self._before = record.checkpoint, sums

    def _sums(self, granted: Counter[VertexId]) -> Iterator[int]:
        sent = granted.copy()
        for (source, _), rows in self._granted.items():
            sent[source] += rows
        return (self._of(name, sent) for name in self._limits)

    def _of(self, name: VertexId, sent: Mapping[VertexId, int]) -> int:
        return sum(sent.get(source, 0) for source in _counted(self.door)) if name is ALL else sent.get(name, 0)


def _counted(door: Watched) -> list[VertexId]:
    names = door.setup.config.rows_of
    return [source.id for source in door.setup.graph.sources() if not names or source.id in names]


def _limits(door: Watched) -> dict[VertexId, int]:
    """Return the limits that apply. No limit stops a source of another job's cuts before it reaches its cut (A10)."""
    of_cuts = set(door.setup.cut_groups)
    every, known = door.setup.config.every_rows, {source.id for source in door.setup.graph.sources()} - of_cuts
    limits = {source: rows for source, rows in door.setup.rows_per_epoch.items() if source in known}
    return limits if every is None or not of_cuts.isdisjoint(_counted(door)) else {**limits, ALL: every}


def _splits(door: Watched) -> Iterator[Split]:
    return ((source.id, split) for source in door.setup.graph.sources() for split in source.splits)


def positions_of(record: CheckpointRecord | None) -> dict[Split, str | None]:
    """Return the position of each split of an entry."""
    vertices = record.vertices if record else ()
    return {
        (vertex.vertex, SplitId(split)): snapshot.position
        for vertex in vertices
        for split, snapshot in zip(vertex.splits, vertex.subtasks, strict=False)
    }


# ------------------------------------------------------------------
# Splits that cannot be read, on any run: a tick polls them again, and fails with the split's error once a split has
# failed too often.
#
# Before it ends, it commits what it has read of the other splits, and no longer polls the failed one. Less is checked
# of a tick that has a limit, that holds its checkpoint, or that was asked to stop. The same is true of a tick that
# reads another job's cuts: no barrier is sent while one of its tables cannot be read up to a cut (A10).
#
# `not-too-early` judges when such splits are polled again. `credit` judges that the others are read meanwhile.


@rule("splits-fail-alone")
class FailingSplits(DoorJudge):
    """Judges how a tick ends if polls have failed in it."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._tolerated: set[str] = set()
        """The errors of failed polls that the tick must tolerate."""
        self._beyond: set[str] = set()
        """The errors of polls that failed once too often."""
        self._given_up: set[Split] = set()
        self._sent: dict[Split, str] = {}
        """The positions up to which splits have sent rows that no completed checkpoint shows."""

    def told(self, fact: Begun | Fact) -> None:
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            self._sent[fact.slice.source, fact.slice.split] = fact.slice.end
        if isinstance(fact, PollFailed):
            failed = self.door.failed[fact.source, fact.split]
            beyond = failed > self.door.setup.config.tolerable_poll_failures
            (self._beyond if beyond else self._tolerated).add(fact.error)
            if beyond:
                self._given_up.add((fact.source, fact.split))

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, NotifyComplete):
            shown = {(source, split): position for source, split, position in effect.positions}
            self._sent = {split: end for split, end in self._sent.items() if shown.get(split) != end}
        given_up = isinstance(effect, PollSource) and (effect.source, effect.split) in self._given_up
        if isinstance(effect, PollSource) and given_up and not (self._is_limited or self.door.setup.cut_groups):
            self.wrong(f"split {effect.split} of {effect.source} is asked again, and it failed too often")
        if not isinstance(effect, EndTick):
            return
        setup, limited = self.door.setup, self._is_limited
        if effect.message in self._beyond and self._sent and not (limited or setup.cut_groups):
            self.wrong(f"the tick ends because of {effect.message!r}, and has not committed {sorted(self._sent)}")
        if effect.outcome is TickOutcome.CAUGHT_UP and self.door.failed:
            self.wrong(f"the tick has caught up, and {sorted(self.door.failed)} could not be read")
        if effect.outcome is TickOutcome.FAILED and effect.message in self._tolerated - self._beyond:
            self.wrong(f"the tick ends because of {effect.message!r}, which it is to tolerate")
        if effect.outcome is not TickOutcome.FAILED and self._beyond and not limited:
            self.wrong(f"the tick ends in order, although polls failed too often: {sorted(self._beyond)}")

    @property
    def _is_limited(self) -> bool:
        limits = self.door.setup.limits
        return limits.hold or limits.checkpoints is not None or limits.duration_ms is not None or self.door.is_stopping


# ------------------------------------------------------------------
# Checks the ends of bounded sources on any run: what a door does with a split that has ended, and when the job is
# finished.


@rule("inputs-end")
class InputsEnd(DoorJudge):
    """Judges polls, entries and the end of the tick (B4).

    A split that has ended is never polled again, and an entry records where it ended. A part is polled only when all
    splits of the earlier parts have ended, and an entry with rows of the part records that these splits have ended. No
    key ends before all splits have ended, unless the job is drained. An entry is finished only if all keys have ended.
    A tick reports that the job has finished only if all splits have ended and its newest cut belongs to a finished
    entry. It reports that the job has caught up only if some split has not ended.
    """

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        restored = door.setup.restored
        self._at = positions_of(restored)
        self._restored_at = dict(self._at)
        self._is_shown = restored is not None and says_finished(restored)
        """True if the newest cut belongs to a finished entry."""
        keyed = (each.id for each in door.setup.graph.operators() if each.kind is VertexKind.KEYED)
        self._holding = set() if self._is_shown else set(keyed)
        """The vertices that may hold rows back."""
        self._ending: set[VertexId] = set()
        """The vertices whose running micro-batch ends their keys."""
        self._drafts: dict[CheckpointId, bool] = {}

    def told(self, fact: Begun | Fact) -> None:
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            split = (fact.slice.source, fact.slice.split)
            self._at[split] = fact.slice.end
            if split in self.door.ended:
                self.wrong(f"split {fact.slice.split} has ended, and gives {fact.slice.rows} rows")
        if isinstance(fact, MicroBatchFinished) and fact.vertex in self._ending:
            self._holding.discard(fact.vertex)

    def asked(self, effect: Effect) -> None:
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
        vertex = self.door.setup.graph.vertex(effect.vertex)
        holds_rows = vertex.kind is VertexKind.KEYED
        fires = effect.due_ms is not None and vertex.fires
        if not any(each.segments for each in effect.inputs) and not ((effect.end_of_input and holds_rows) or fires):
            self.wrong(f"{effect.vertex} runs a micro-batch without rows, and it is not the last one of a keyed vertex")
        # If a drain fails after its barrier was sent, the tick fails and commits nothing more.
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


# ------------------------------------------------------------------
# Checks that no door cuts a slice in two: it may hold a transaction that must stay whole.
#
# Only the source understands a position. So each position in an entry is one that the source has given out: the end of
# a slice, or the position at which the tick began. A micro-batch runs over slices exactly as the source offered them.


@rule("slices-whole")
class WholeSlices(DoorJudge):
    """Judges the positions of entries, and the slices of micro-batches."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        restored = door.setup.restored
        self._places: dict[Split, set[str | None]] = {
            split: {position, None} for split, position in positions_of(restored).items()
        }
        self._slices = {*_flying(restored)} if restored is not None else set[SourceSlice]()

    def told(self, fact: Begun | Fact) -> None:
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            split = (fact.slice.source, fact.slice.split)
            self._places.setdefault(split, {None}).add(fact.slice.end)
            self._slices.add(fact.slice)

    def asked(self, effect: Effect) -> None:
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


# ------------------------------------------------------------------
# Checks timers on any run: nothing happens before it is due, and what is due happens (A1 to A3, C6).
#
# A door is judged by the times in its facts. If the facts do not show why a checkpoint was triggered, or what holds a
# row back, nothing is judged.


@rule("not-too-early")
class TooEarly(DoorJudge):
    """Judges that periodic triggers, polls of idle splits and alignment timeouts do not come too early."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._given_ms: dict[CheckpointId, int] = {}
        self._is_sure = True
        """True if the next trigger can only be periodic:

        the tick itself had no reason for a checkpoint, and no user asked for one.
        """
        self._periodic = 0

    def told(self, fact: Begun | Fact) -> None:
        """Note whether the tick itself may ask for a checkpoint, since a vertex could not write, or there is no work.

        In the same step, the tick may send the barrier and poll again. Then it looks busy at the end of the step.
        """
        self._is_sure &= self.door.is_busy and not isinstance(fact, MicroBatchNotStaged)

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, PollSource) and self.door.is_asked_too_soon((effect.source, effect.split)):
            self.wrong(f"split {effect.split} of {effect.source} was idle, and is read again too soon")
        record = drafted(effect)
        if record is not None:
            self._timed_out(record)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        door = self.door
        self._is_sure &= not door.wants_checkpoint
        for checkpoint in given:
            self._given_ms[checkpoint] = door.now_ms
            if self._is_sure:
                self._triggered(checkpoint)
        if given:
            self._is_sure = not door.wants_checkpoint

    def _triggered(self, checkpoint: CheckpointId) -> None:
        door, config = self.door, self.door.setup.config
        if config.interval_ms is None:
            self.wrong(f"checkpoint {checkpoint} was triggered, and nothing asked for it")
            return
        over_ms = (door.started_ms if door.completed_ms is None else door.completed_ms) + config.min_pause_ms
        if door.now_ms < over_ms:
            self.wrong(f"checkpoint {checkpoint} was triggered {over_ms - door.now_ms} ms before the pause was over")
        self._periodic += 1
        restarts = 1 + door.stops_failed
        most = restarts + (door.now_ms - door.started_ms) // max(config.interval_ms, config.min_pause_ms)
        if self._periodic > most:
            self.wrong(f"checkpoint {checkpoint} is the {self._periodic}. periodic one, in that time {most} are due")

    def _timed_out(self, record: CheckpointRecord) -> None:
        config = self.door.setup.config
        if config.alignment_timeout_ms is None or record.checkpoint not in self._given_ms:
            return
        due_ms = self._given_ms[record.checkpoint] + config.alignment_timeout_ms
        for vertex in record.statistics.vertices:
            if vertex.alignment is AlignmentType.UNALIGNED and vertex.aligned_ms < due_ms:
                self.wrong(
                    f"{vertex.vertex} turned {record.checkpoint} unaligned {due_ms - vertex.aligned_ms} ms too early"
                )
        for was in record.vertices:
            if any(snapshot.in_flight for snapshot in was.subtasks) and self.door.now_ms < due_ms:
                self.wrong(f"{was.vertex} holds rows in flight at {record.checkpoint} before its time was over")


@rule("not-too-late")
class TooLate(DoorJudge):
    """Judges that periodic triggers, micro-batches of waiting rows and alignment timeouts do not come too late."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._free_ms = door.now_ms
        """The time since which nothing has held a periodic trigger back."""
        self._was_held_back = False
        """True if something held a periodic trigger back until the judged step."""
        self._leaves: list[str] = []
        """Complaints about micro-batches of this step that leave segments although they may take more rows."""
        self._waits_ms: dict[VertexId, int] = {}
        """Maps each vertex to the time since which it could certainly have run over its waiting segments."""

    def told(self, fact: Begun | Fact) -> None:
        match fact:
            case Begun():
                self._waits_ms = {vertex.id: fact.now_ms for vertex in fact.setup.graph.operators()}
            case SliceOffered(SourceSlice() as offered) if offered.rows:
                self._sent(offered.source, 1)
            case MicroBatchFinished():
                self._sent(fact.vertex, sum(bool(output.emitted) for output in fact.outputs))
                self._waits_ms[fact.vertex] = self.door.now_ms
            case _:
                pass

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, RunMicroBatch):
            self._takes(effect)
        record = drafted(effect)
        if record is not None and record.kind is RowKind.CHECKPOINT:
            self._overdue(record)

    def _takes(self, effect: RunMicroBatch) -> None:
        """Record a micro-batch that leaves segments although it may take more rows.

        A barrier that is sent in the same step would be a reason for this.
        """
        door, most = self.door, self.door.setup.config.micro_batch_rows_max
        taken = [segment for entry in effect.inputs for segment in entry.segments]
        left = door.channels.segments[effect.vertex] - len(taken)
        free = not (door.pending or door.aborted or door.completed or door.requests or door.is_troubled)
        if free and left > 0 and sum(segment.rows for segment in taken) < most:
            self._leaves.append(
                f"{effect.vertex} runs over {len(taken)} segments and leaves {left}, {most} rows may run"
            )

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        for what in self._leaves if not given else ():
            self.wrong(what)
        self._leaves.clear()
        if not self.door.is_over:
            self._not_triggered(given)
            self._lingering()

    def time_passed(self) -> None:
        self._not_triggered(())

    def _not_triggered(self, given: tuple[CheckpointId, ...]) -> None:
        door, config = self.door, self.door.setup.config
        if config.interval_ms is None:
            return
        interval_ms = max(config.interval_ms, config.min_pause_ms)
        was_held_back, self._was_held_back = self._was_held_back, self._is_held_back()
        if given or was_held_back or self._was_held_back:
            self._free_ms = door.now_ms
        elif door.now_ms > self._free_ms + interval_ms:
            self.wrong(f"nothing was triggered for {door.now_ms - self._free_ms} ms, the interval is {interval_ms}")

    def _is_held_back(self) -> bool:
        door = self.door
        stops = any(kind is not SavepointKind.PLAIN for kind in door.requests.values())
        no_id = door.next_id > door.last_id
        crowded = len(door.pending) >= door.setup.config.max_concurrent
        return stops or no_id or crowded or bool(door.is_troubled or door.restoring or door.asked_hooks)

    def _sent(self, vertex: VertexId, segments: int) -> None:
        """Restart the wait of each vertex that had no segments before these."""
        for edge in self.door.channels.out[vertex]:
            if self.door.channels.segments[edge.downstream] <= segments:
                self._waits_ms[edge.downstream] = self.door.now_ms

    def _lingering(self) -> None:
        """Judge vertices whose segments wait.

        If no barrier is on its way, vertices wait only for more segments and for credit.
        """
        door = self.door
        if door.pending or door.aborted or door.is_troubled or door.restoring:
            self._waits_ms = dict.fromkeys(self._waits_ms, door.now_ms)
            return
        for vertex, since_ms in self._waits_ms.items():
            if vertex in door.running or vertex in door.held_back or door.channels.segments[vertex] <= 0:
                continue
            due_ms = since_ms + door.setup.linger_ms
            wakes = door.now_ms < due_ms and door.wake_ms is not None and door.wake_ms <= due_ms
            subtasks = range(door.setup.graph.vertex(vertex).parallelism)
            if not wakes and all(door.channels.full(vertex, subtask) is None for subtask in subtasks):
                self.wrong(f"{door.channels.segments[vertex]} segments wait for {vertex} since {since_ms}")

    def _overdue(self, record: CheckpointRecord) -> None:
        timeout_ms = self.door.setup.config.alignment_timeout_ms
        if timeout_ms is None:
            return
        due_ms = record.statistics.triggered_ms + timeout_ms
        for vertex in record.statistics.vertices:
            if _is_overdue(vertex, due_ms):
                self.wrong(
                    f"{vertex.vertex} stayed aligned for {record.checkpoint} until {_last_ms(vertex)}, due {due_ms}"
                )


def _is_overdue(vertex: VertexStatistics, due_ms: int) -> bool:
    """Return whether a checkpoint stayed aligned although a barrier was missing at the alignment timeout."""
    return vertex.alignment is AlignmentType.ALIGNED and len(vertex.barriers) > 1 and _last_ms(vertex) > due_ms


def _last_ms(vertex: VertexStatistics) -> int:
    return max(barrier.at_ms for barrier in vertex.barriers)


# ------------------------------------------------------------------
# Judges time limits. A late hook must fail its checkpoint, or the restore, at its limit and not before (A8).
#
# The door must also ask to be woken when a hook becomes late and when a checkpoint expires. Otherwise it would notice
# these only with the next fact. After each fact, the door must do at once all that it can. If only time passes after
# that, the door must do nothing until its timer is due.


_EXPIRED: Final = Reason.CHECKPOINT_EXPIRED


@rule("hooks-in-time")
class HooksInTime(DoorJudge):
    """Judges what becomes of a hook that does not answer."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._limits: dict[str, int] = {hook.name: hook.timeout_ms for hook in door.setup.graph.hooks}
        self._restore_ms: dict[str, int] = {}
        self._asked_ms: dict[tuple[str, CheckpointId], int] = {}
        self._given_ms: dict[CheckpointId, int] = {}

    @property
    def applies(self) -> bool:
        return bool(self._limits)

    def asked(self, effect: Effect) -> None:
        match effect:
            case RestoreHook() | ResetHook():
                self._restore_ms[effect.hook] = self.door.now_ms + self._limits[effect.hook]
            case AskHook():
                self._asked_ms[effect.hook, effect.checkpoint] = self.door.now_ms + self._limits[effect.hook]
            case NotifyAborted(checkpoint, reason) if reason is _EXPIRED:
                self._judge_expiry(checkpoint, effect.message)
            case _:
                pass

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        for checkpoint in given:
            self._given_ms[checkpoint] = self.door.now_ms
        self._judge_late()

    def time_passed(self) -> None:
        self._judge_late()

    def _judge_late(self) -> None:
        door = self.door
        if door.is_over:
            return
        for hook, due_ms in self._restore_ms.items():
            if due_ms <= door.now_ms and hook in door.restoring:
                self.wrong(f"hook {hook} had to be restored until {due_ms}, and the tick still waits")
        for asked, due_ms in self._asked_ms.items():
            if due_ms <= door.now_ms and asked in door.asked_hooks and asked[1] in door.pending:
                self.wrong(f"hook {asked[0]} had to answer for {asked[1]} until {due_ms}, and it is still awaited")

    def _judge_expiry(self, checkpoint: CheckpointId, message: str) -> None:
        """Judge a checkpoint that took too long. If a hook is late, the message names it."""
        door = self.door
        late = [hook for (hook, of), due_ms in self._asked_ms.items() if of == checkpoint and due_ms <= door.now_ms]
        given_ms = self._given_ms.get(checkpoint)
        over = given_ms is not None and door.now_ms >= given_ms + door.setup.config.timeout_ms
        awaited = [hook for hook in late if (hook, checkpoint) in door.asked_hooks]
        if not over and not awaited:
            self.wrong(f"checkpoint {checkpoint} expired before its time, and no hook is late")
        if awaited and not over and not any(repr(hook) in message for hook in awaited):
            self.wrong(f"hook {awaited[0]} was late for checkpoint {checkpoint}, and the listeners heard {message!r}")


@rule("wakes-in-time")
class Wakes(DoorJudge):
    """Judges when the door asks to be woken."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._limits: dict[str, int] = {hook.name: hook.timeout_ms for hook in door.setup.graph.hooks}
        self._due_ms: dict[object, int] = {}
        """When each asked hook becomes late, and when each checkpoint expires."""
        self._committing: set[object] = set()

    def asked(self, effect: Effect) -> None:
        match effect:
            case RestoreHook() | ResetHook():
                self._due_ms[effect.hook] = self.door.now_ms + self._limits[effect.hook]
            case AskHook():
                self._due_ms[effect.hook, effect.checkpoint] = self.door.now_ms + self._limits[effect.hook]
            case _:
                commits = begins_commit(effect)
                self._committing |= set() if commits is None else {commits}

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        door = self.door
        for checkpoint in given:
            self._due_ms[checkpoint] = door.now_ms + door.setup.config.timeout_ms
        if door.is_over or not self._due_ms:
            return
        awaited = {*door.restoring, *door.asked_hooks, *door.pending}
        self._due_ms = {what: due_ms for what, due_ms in self._due_ms.items() if what in awaited - self._committing}
        # a checkpoint that waits for another checkpoint's commit may have all its answers already
        stands_behind = door.pending if door.reserving or not self._committing.isdisjoint(door.pending) else ()
        first = min((due_ms for what, due_ms in self._due_ms.items() if what not in stands_behind), default=None)
        if first is not None and first > door.now_ms and (door.wake_ms is None or door.wake_ms > first):
            what = next(what for what, due_ms in self._due_ms.items() if due_ms == first)
            self.wrong(f"{what} is late from {first} on, and the door wakes at {door.wake_ms}")


@rule("at-rest")
class AtRest(DoorJudge):
    """Judges that after each fact, a door does all that it can. Otherwise work would wait for the next fact."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._wake_ms: int | None = None
        self._is_early = False

    def told(self, fact: Begun | Fact) -> None:
        due = self._wake_ms is not None and self._wake_ms <= self.door.now_ms
        self._is_early = isinstance(fact, TimeAdvanced) and not due

    def asked(self, effect: Effect) -> None:
        if self._is_early:
            self.wrong(f"time alone sets {effect} off, and the door wakes at {self._wake_ms}")

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        if self._is_early and given:
            self.wrong(f"time alone triggers {given}, and the door wakes at {self._wake_ms}")
        self._wake_ms = self.door.wake_ms

    def time_passed(self) -> None:
        self._wake_ms = self.door.wake_ms


# ------------------------------------------------------------------
# The pause after a failed checkpoint: a second, and twice as long after each further failure in a row, up to a minute.
#
# The pause is judged only if the tick alone asks for checkpoints: there is no interval, no quota of rows, no request of
# a user and no cut of another job. Then the next checkpoint must begin exactly when the pause is over.


SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000


@rule("pauses")
class Pauses(DoorJudge):
    """Judges when a tick tries again after its own checkpoint has failed."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._in_a_row = 0
        self._over_ms: int | None = None
        config, limits = door.setup.config, door.setup.limits
        asks_otherwise = config.interval_ms is not None or config.every_rows is not None or door.setup.cut_groups
        self._are_own = not asks_otherwise and not limits.hold

    def told(self, fact: Begun | Fact) -> None:
        self._are_own &= not isinstance(fact, SavepointRequested)

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, NotifyComplete):
            self._in_a_row, self._over_ms = 0, None
        elif isinstance(effect, NotifyAborted) and effect.reason in FLINKS_LIST:
            self._over_ms = self.door.now_ms + min(MINUTE_MS, SECOND_MS << self._in_a_row)
            self._in_a_row += 1

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        if not self._are_own or self._over_ms is None:
            return
        left_ms = self._over_ms - self.door.now_ms
        if given and left_ms > 0:
            self.wrong(f"checkpoint {given[0]} begins {left_ms} ms before the pause after a failure is over")
        if not given and left_ms <= 0 and self._is_due():
            self.wrong(f"the pause after a failure is over since {-left_ms} ms, and no checkpoint begins")

    def time_passed(self) -> None:
        self.rested(())

    def _is_due(self) -> bool:
        """Return whether only the failed checkpoint's rows wait.

        If the newest cut had all rows, the tick would have ended.
        """
        door = self.door
        splits = ((source.id, split) for source in door.setup.graph.sources() for split in source.splits)
        idle = all(each in door.ended or (each in door.idle_since and each not in door.failed) for each in splits)
        moves = door.pending or door.running or door.held_back or any(door.channels.segments.values())
        waits = door.restoring or door.reserving or door.next_id > door.last_id
        return idle and door.reads and door.setup.limits.until_caught_up and not (moves or waits)


# ------------------------------------------------------------------
# Checks back-pressure on any run: no vertex sends into a full channel, and credit comes back.


@rule("credit")
class Credit(DoorJudge):
    """Judges polls and micro-batches: no vertex sends into a full channel, and credit comes back (C2).

    A vertex that could not write its rows holds credit until a barrier reaches it. Meanwhile the vertices may send
    without credit. If a barrier waits for a cut of another job, the source reads on to that cut without credit.
    """

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._free = _without_quota(door)

    def asked(self, effect: Effect) -> None:
        channels = self.door.channels
        match effect:
            case PollSource() if effect.source not in self.door.setup.cut_groups:
                full = channels.full(effect.source, channels.subtask(effect.source, effect.split))
                if full is not None:
                    self.wrong(f"split {effect.split} of {effect.source} is read, although {full} is full")
            case RunMicroBatch() if not self.door.held_back:
                for subtask in range(channels.graph.vertex(effect.vertex).parallelism):
                    full = channels.full(effect.vertex, subtask)
                    if full is not None:
                        self.wrong(f"{effect.vertex} runs, although {full} of subtask {subtask} is full")
            case _:
                pass

    def rested(self, given: tuple[CheckpointId, ...]) -> None:  # noqa: ARG002 - the form of a judge
        door = self.door
        if not door.reads:
            return
        for split, subtask in self._free.items():
            if split in door.polls or split in door.ended or door.is_held(split) or door.runs_ahead(split):
                continue
            if door.is_idle(split):
                self._sleeps(split)
            elif door.channels.full(split[0], subtask) is None:
                self.wrong(f"split {split[1]} of {split[0]} has credit, and is not read")

    def _sleeps(self, split: Split) -> None:
        """Judge whether the door wakes in time to poll an idle split again."""
        due_ms = self.door.idle_since[split] + self.door.setup.idle_poll_ms
        if self.door.wake_ms is None or self.door.wake_ms > due_ms:
            self.wrong(f"split {split[1]} of {split[0]} is idle until {due_ms}, the door wakes at {self.door.wake_ms}")


def _without_quota(door: Watched) -> dict[Split, int]:
    """Return the splits that no quota of rows holds back, with their subtasks."""
    setup = door.setup
    counted = {str(source) for source in setup.config.rows_of}
    found: dict[Split, int] = {}
    for source in setup.graph.sources():
        shares = setup.config.every_rows is not None and (not counted or source.id in counted)
        if not shares and source.id not in setup.rows_per_epoch and source.id not in setup.cut_groups:
            found |= {(source.id, split): index for index, split in enumerate(source.splits)}
    return found
