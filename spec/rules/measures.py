"""Checks that what an entry says of each vertex could be measured at its door: times, rows, micro-batches (C7, E6).

A micro-batch that failed counts nowhere. If the checkpoint before the entry has failed, the vertices may or may not
have passed that checkpoint's barrier. Then the work since the newest entry is only an upper limit.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from checkpointing.channel_items import NO_WORK, AlignmentType, SourceSlice, TaskWork
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, VertexId
from checkpointing.messages import (
    Effect,
    Fact,
    MicroBatchFinished,
    MicroBatchNotStaged,
    RunMicroBatch,
    SliceOffered,
    SubtaskOutput,
    SuitesJudged,
)
from checkpointing.metadata.record import CheckpointCounts, CheckpointRecord, RowKind, VertexStatistics
from spec.history import (
    Begun,
    CheckpointEnded,
    CheckpointTriggered,
    DoorStarted,
    History,
    RowCommitted,
    SegmentSent,
    WorkMeasured,
)
from spec.rules import rule
from spec.rules.rollbacks import at_rest
from spec.rules.sources_and_timers import positions_of
from spec.rules.watching import DoorJudge, Split, Watched, drafted


class Work(NamedTuple):
    """What the micro-batches of a vertex did."""

    micro_batches: int = 0
    rows_in: int = 0
    busy_ms: int = 0
    rows_out: int = 0
    bytes_out: int = 0


@rule("measured")
class Measured(DoorJudge):
    """Judges the statistics of every vertex in every entry (C7, E6)."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._given_ms: dict[CheckpointId, int] = {}
        self._rows: dict[tuple[VertexId, int], int] = {}
        self._kept: dict[VertexId, set[str]] = {}
        """The files of tables that each vertex had when its micro-batch began."""
        self._finished: dict[tuple[VertexId, int], Work] = {}
        """What each micro-batch did."""
        self._state: dict[tuple[VertexId, int], tuple[int, ...]] = {}
        """How many bytes of state each subtask wrote in each micro-batch."""
        self._newest = CheckpointId(door.next_id - 1)
        self._ran: dict[VertexId, list[tuple[int, int]]] = {}
        """When each vertex ran over bytes, and its total until then. Bytes that a vertex takes back are subtracted."""
        self._running: dict[VertexId, int] = {}
        self._known_ms: dict[VertexId, set[int]] = {}
        """When micro-batches of each vertex ended."""
        self._judged_ms: dict[tuple[VertexId, CheckpointId], int] = {}
        """When the suites had judged the rows of a vertex for a checkpoint."""
        self._passed: dict[VertexId, int] = {}
        """The last micro-batch of each vertex before the barrier of the newest entry."""
        self._sent: Counter[Split] = Counter()
        self._sent_bytes: Counter[Split] = Counter()
        restored = positions_of(door.setup.restored)
        self._sent_at: dict[tuple[Split, str | None], tuple[int, int]] = dict.fromkeys(restored.items(), (0, 0))
        """How many rows and bytes a split had sent when it was at this position."""
        self._sent_before: dict[Split, tuple[int, int]] = {}
        """How many rows and bytes each split had sent at the barrier of the newest entry."""

    def told(self, fact: Begun | Fact) -> None:
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            split = (fact.slice.source, fact.slice.split)
            self._sent[split] += fact.slice.rows
            self._sent_bytes[split] += fact.slice.bytes
            self._sent_at[split, fact.slice.end] = self._sent[split], self._sent_bytes[split]
        elif isinstance(fact, MicroBatchNotStaged):
            self._run(fact.vertex, -self._running.pop(fact.vertex, 0))
        elif isinstance(fact, SuitesJudged):
            self._judged_ms[fact.vertex, fact.checkpoint] = self.door.now_ms
        elif isinstance(fact, MicroBatchFinished):
            self._known_ms.setdefault(fact.vertex, set()).add(self.door.now_ms)
            self._running.pop(fact.vertex, None)
            at, files = (
                (fact.vertex, fact.micro_batch),
                [file for output in fact.outputs for file in _tables_files(output, self._kept[fact.vertex])],
            )
            rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
            self._state[at] = tuple(sum(keyed.file.bytes for keyed in output.state) for output in fact.outputs)
            self._finished[at] = Work(1, self._rows.get(at, 0), fact.duration_ms, rows, size)

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, RunMicroBatch):
            rows = sum(segment.rows for entry in effect.inputs for segment in entry.segments)
            self._rows[effect.vertex, effect.micro_batch] = rows
            before = (keyed for own in effect.ranges for each in own for keyed in each.files)
            self._kept[effect.vertex] = {keyed.file.path for keyed in before}
            size = sum(segment.bytes for entry in effect.inputs for segment in entry.segments)
            self._running[effect.vertex] = size
            self._run(effect.vertex, size)
        elif (record := drafted(effect)) is not None:
            self._judge(record)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        if given:
            self._given_ms |= dict.fromkeys(given, self.door.now_ms)

    def _judge(self, record: CheckpointRecord) -> None:
        begun, given = record.statistics.triggered_ms, self._given_ms.get(record.checkpoint)
        graph = self.door.setup.graph
        asks = bool(graph.hooks) or any(vertex.coordinated for vertex in graph.vertices)
        late = asks or bool(self.door.setup.cut_groups)
        if given is not None and not (given <= begun if late else given == begun):
            self.wrong(f"checkpoint {record.checkpoint} was triggered at {given}, not at {begun}")
        if record.checkpoint <= self._newest:
            return
        last = {vertex.vertex: vertex.micro_batch for vertex in record.vertices}
        for vertex in record.statistics.vertices:
            self._judge_times(record, vertex)
            self._judge_processed(record, vertex)
            self._judge_work(record, vertex, last[vertex.vertex])
            self._judge_subtasks(record, vertex, last[vertex.vertex])
        self._judge_sources(record)
        self._newest, self._passed = record.checkpoint, last

    def _judge_times(self, record: CheckpointRecord, vertex: VertexStatistics) -> None:
        where = f"checkpoint {record.checkpoint} at {vertex.vertex}"
        at = [barrier.at_ms for barrier in vertex.barriers]
        delay_ms = min(at) - record.statistics.triggered_ms if at else None
        if vertex.start_delay_ms != delay_ms:
            self.wrong(f"{where}: the first barrier came after {delay_ms} ms, not {vertex.start_delay_ms}")
        channels = self.door.setup.graph.channels_into(vertex.vertex)
        if at and len(at) == len(channels) and vertex.alignment_ms != max(at) - min(at):
            self.wrong(f"{where}: the barriers came at {at}, the alignment took {vertex.alignment_ms} ms")
        if not vertex.aligned_ms <= vertex.acknowledged_ms <= self.door.now_ms:
            self.wrong(f"{where}: passed at {vertex.aligned_ms}, acknowledged at {vertex.acknowledged_ms}")
        if min(vertex.bytes_held, vertex.bytes_processed or 0, vertex.rows_out, vertex.bytes_out) < 0:
            self.wrong(f"{where}: {vertex} has a negative number")
        self._judge_moments(where, record.checkpoint, vertex)
        if vertex.async_ms != vertex.acknowledged_ms - vertex.aligned_ms:
            self.wrong(f"{where}: {vertex.async_ms} ms from {vertex.aligned_ms} to {vertex.acknowledged_ms}")

    def _judge_moments(self, where: str, checkpoint: CheckpointId, vertex: VertexStatistics) -> None:
        """Judge when a vertex took its snapshot and acknowledged it.

        A vertex takes its snapshot when the barrier passes its gate. If a micro-batch is running then, the vertex takes
        its snapshot when the micro-batch ends. It acknowledges when its suites have judged. In unaligned mode, it also
        waits for the last barrier, because only then all overtaken rows are known.
        """
        at = [barrier.at_ms for barrier in vertex.barriers]
        if not at:
            return
        overtakes = vertex.alignment is AlignmentType.UNALIGNED
        passed_ms = min(at) if overtakes else max(at)
        moments = {passed_ms, *self._known_ms.get(vertex.vertex, ())}
        if vertex.aligned_ms < passed_ms or (not overtakes and vertex.aligned_ms not in moments):
            self.wrong(f"{where}: the snapshot was taken at {vertex.aligned_ms}, its barriers came at {at}")
        complete_ms = max(at) if overtakes else vertex.aligned_ms
        due_ms = max(vertex.aligned_ms, complete_ms, self._judged_ms.get((vertex.vertex, checkpoint), 0))
        if vertex.acknowledged_ms != due_ms:
            self.wrong(f"{where}: acknowledged at {vertex.acknowledged_ms}, all was there at {due_ms}")

    def _judge_processed(self, record: CheckpointRecord, vertex: VertexStatistics) -> None:
        """Judge the bytes that the gate let through from the first barrier to the last.

        Bytes that the vertex ran over before the first barrier are not among them. Bytes that the vertex ran over
        between its snapshot and the last barrier are among them, because the snapshot includes everything that the
        vertex had taken before.
        """
        if vertex.bytes_processed is None or not vertex.barriers:
            return
        at = [barrier.at_ms for barrier in vertex.barriers]
        most = self._sent_since(vertex.vertex, min(at)) if vertex.bytes_processed else 0
        least = self._ran_until(vertex.vertex, max(at) - 1) - self._ran_until(vertex.vertex, vertex.aligned_ms)
        if not least <= vertex.bytes_processed <= most:
            self.wrong(
                f"checkpoint {record.checkpoint} at {vertex.vertex}: {vertex.bytes_processed} bytes passed from "
                f"{min(at)} to {max(at)}, and it ran over {least} to {most}"
            )

    def _sent_since(self, vertex: VertexId, at_ms: int) -> int:
        """Return how many bytes were sent to a vertex, except those that it had run over before a time."""
        lying = self.door.channels.lying.items()
        into = sum(size for (edge, _), size in lying if edge.downstream == vertex) - self._running.get(vertex, 0)
        return into + self._ran_until(vertex, self.door.now_ms) - self._ran_until(vertex, at_ms - 1)

    def _run(self, vertex: VertexId, size: int) -> None:
        known = self._ran.setdefault(vertex, [])
        known.append((self.door.now_ms, (known[-1][1] if known else 0) + size))

    def _ran_until(self, vertex: VertexId, at_ms: int) -> int:
        """Return how many bytes a vertex had run over at the end of a millisecond."""
        return next((size for ran_ms, size in reversed(self._ran.get(vertex, ())) if ran_ms <= at_ms), 0)

    def _judge_work(self, record: CheckpointRecord, vertex: VertexStatistics, last: int) -> None:
        if last == 0 and not vertex.micro_batches:
            return
        since = self._passed.get(vertex.vertex, 0) + 1
        done = (self._finished.get((vertex.vertex, number), Work()) for number in range(since, last + 1))
        due = Work(*(sum(column) for column in zip(Work(), *done, strict=True)))
        said = Work(vertex.micro_batches, vertex.rows_in, vertex.busy_ms, vertex.rows_out, vertex.bytes_out)
        exact = record.checkpoint == self._newest + 1
        if said != due if exact else any(not 0 <= more <= most for more, most in zip(said, due, strict=True)):
            self.wrong(f"checkpoint {record.checkpoint} at {vertex.vertex}: {said}, its micro-batches did {due}")

    def _judge_subtasks(self, record: CheckpointRecord, vertex: VertexStatistics, last: int) -> None:
        """Judge what the subtasks wrote: in total as much as their vertex, and as much state as their micro-batches.

        An entry may lack these columns. Then nobody measured them.
        """
        columns, where = vertex.subtasks, f"checkpoint {record.checkpoint} at the subtasks of {vertex.vertex}"
        if not columns.rows_out or not columns.checkpointed_bytes:
            return
        wrote = (sum(rows or 0 for rows in columns.rows_out), sum(size or 0 for size in columns.bytes_out))
        if wrote != (vertex.rows_out, vertex.bytes_out):
            self.wrong(f"{where}: they wrote {wrote} rows and bytes, not {vertex.rows_out} and {vertex.bytes_out}")
        since = self._passed.get(vertex.vertex, 0) + 1
        state = [self._state.get((vertex.vertex, number), ()) for number in range(since, last + 1)]
        due = [sum(sizes) for sizes in zip(*(each for each in state if each), strict=False)]
        said = [size or 0 for size in columns.checkpointed_bytes]
        due = due or [0] * len(said)
        exact = record.checkpoint == self._newest + 1
        if said != due if exact else any(not 0 <= size <= most for size, most in zip(said, due, strict=True)):
            self.wrong(f"{where}: {said} bytes of state, their micro-batches wrote {due}")

    def _judge_sources(self, record: CheckpointRecord) -> None:
        """Judge what each source sent. Rows before a failed checkpoint's barrier may count for it or for this entry."""
        exact = record.checkpoint == self._newest + 1
        at = positions_of(record)
        now = {split: self._sent_at.get((split, place), (0, 0)) for split, place in at.items()}
        for vertex in record.statistics.vertices:
            splits = [split for split in at if split[0] == vertex.vertex]
            if not splits:
                continue
            before = [self._sent_before.get(split, (0, 0)) for split in splits]
            rows, size = (sum(now[split][n] for split in splits) - sum(was[n] for was in before) for n in (0, 1))
            said = (vertex.rows_out, vertex.bytes_out)
            if said != (rows, size) if exact else not (0 <= said[0] <= rows and 0 <= said[1] <= size):
                self.wrong(
                    f"checkpoint {record.checkpoint}: {vertex.vertex} sent {rows} rows, {size} bytes, not {said}"
                )
        self._sent_before = now


def _tables_files(output: SubtaskOutput, before: set[str]) -> Iterator[FileHandle]:
    """Yield each file of rows that a subtask wrote, once. Files of state hold no rows of the stream.

    The files `before` were there when the micro-batch began.
    """
    files = [*output.emitted, *(file for _, file in output.staged)]
    files += [keyed.file for each in output.ranges for keyed in each.files if keyed.file.path not in before]
    yield from {file.path: file for file in files}.values()


# ------------------------------------------------------------------
# The invariants of what an entry counts: the rows of its epoch, failed checkpoints, and its times (E6).


SplitOfCounted = tuple[str, str]

Rows = tuple[int, int]
"""How many rows, and how many of them a source has estimated."""
NONE: Rows = (0, 0)


@dataclass(slots=True)
class _Tick:
    """What a generation's sources have sent, and how its checkpoints ended."""

    generation: Generation
    sent: dict[SplitOfCounted, Rows] = field(default_factory=dict)
    until: dict[tuple[SplitOfCounted, str | None], Rows] = field(default_factory=dict)
    """Rows of a split that were sent up to a position."""
    failed: int = 0
    failed_before: dict[CheckpointId, int] = field(default_factory=dict)
    """How many checkpoints had failed when this one was triggered."""
    rows: dict[CheckpointId, Rows] = field(default_factory=dict)
    """Rows that were sent in this tick before an entry's barrier. For the restored entry there are none."""

    def send(self, piece: SourceSlice) -> None:
        split = (str(piece.source), str(piece.split))
        rows, estimated = self.sent.get(split, NONE)
        self.sent[split] = (rows + piece.rows, estimated + piece.rows * piece.rows_estimated)
        self.until[split, piece.end] = self.sent[split]

    def rows_before(self, record: CheckpointRecord) -> Rows:
        """Return how many rows all splits had sent at the barrier. A split that has not moved has sent none."""
        sent = [
            self.until.get(((str(vertex.vertex), split), subtask.position), NONE)
            for vertex in record.vertices
            for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
        ]
        return sum(rows for rows, _ in sent), sum(estimated for _, estimated in sent)


@rule("epochs-are-counted")
def epochs_are_counted(history: History) -> Iterator[str]:
    """Yield every entry of a tick with a row count other than what its sources have sent since its parent's barrier.

    Also yield every entry that counts fewer failed checkpoints than there were at its trigger, or that was committed
    before it was acknowledged. A fenced generation is not judged.
    """
    newest: _Tick | None = None
    ticks: dict[Generation, _Tick] = {}
    for event in history.events:
        tick = ticks.get(getattr(event, "generation", Generation(0)))
        match event:
            case DoorStarted(generation, _, restored):
                newest = ticks[generation] = _Tick(generation)
                newest.rows[restored.checkpoint if restored else NO_CHECKPOINT] = NONE
            case SegmentSent(segment=SourceSlice() as piece) if tick is not None:
                tick.send(piece)
            case CheckpointTriggered(_, checkpoint) if tick is not None:
                tick.failed_before[checkpoint] = tick.failed
            case CheckpointEnded(_, _, reason) if tick is not None:
                tick.failed += reason is not None
            case RowCommitted(record) if newest and record.generation == newest.generation and not at_rest(record):
                yield from (f"entry {record.checkpoint} {what}" for what in _wrong(record, newest))
            case _:
                pass


def _wrong(record: CheckpointRecord, tick: _Tick) -> Iterator[str]:
    said, counts = record.statistics, record.statistics.counts
    tick.rows[record.checkpoint] = tick.rows_before(record)
    before, now = tick.rows.get(record.parent, NONE), tick.rows[record.checkpoint]
    due = (now[0] - before[0], now[1] - before[1])
    if tick.sent and record.parent in tick.rows and (said.rows, said.rows_estimated) != due:
        told = f"{said.rows} rows, {said.rows_estimated} of them estimated"
        yield f"says {told}, its sources sent {due[0]} and {due[1]} since the barrier of {record.parent}"
    failed = tick.failed_before.get(record.checkpoint, 0)
    if counts is not None and counts.failed < failed:
        yield f"counts {counts.failed} failed checkpoints, there were {failed} when it was triggered"
    acknowledged_ms = max((vertex.acknowledged_ms for vertex in said.vertices), default=0)
    if said.committed_ms < acknowledged_ms:
        yield f"was committed at {said.committed_ms}, and acknowledged at {acknowledged_ms}"


# ------------------------------------------------------------------
# The invariant that an entry's statistics are what was measured: the tasks' numbers, and how checkpoints ended (E6).
#
# It uses what the tasks measured and which ids were used. So simulations and traces of real runs are judged alike.


@dataclass(slots=True)
class _Generation:
    """What is known of one generation: what its tasks measured, and its entries."""

    restored: bool
    work: dict[VertexId, dict[int, tuple[TaskWork, ...]]] = field(default_factory=dict)
    """Maps each vertex, and the number of each of its micro-batches, to what the tasks measured."""
    triggered: list[CheckpointId] = field(default_factory=list)
    written: dict[CheckpointId, dict[VertexId, int]] = field(default_factory=dict)
    """For each entry, the last micro-batch of every vertex before its barrier."""

    def before(self, checkpoint: CheckpointId) -> CheckpointId:
        """Return the newest of the generation's entries below an id."""
        return max((one for one in self.written if one < checkpoint), default=NO_CHECKPOINT)

    def measured(self, vertex: VertexId, after: int, last: int, subtask: int) -> TaskWork:
        """Return what a subtask's tasks measured from one micro-batch to another."""
        of_vertex = self.work.get(vertex, {})
        return sum((of_vertex[n][subtask] for n in range(after + 1, last + 1) if n in of_vertex), NO_WORK)


@rule("statistics-are-true")
def statistics_are_true(history: History) -> Iterator[str]:
    """Yield every number of an entry that differs from the measured one, and every count that does not add up.

    An entry has the work since the last barrier. If that barrier's checkpoint failed, the vertices may or may not have
    passed it. Then the work since the last entry is only an upper limit. Entries of a fenced generation are skipped,
    because `one-generation` reports them.
    """
    generations: dict[Generation, _Generation] = {}
    newest: Generation | None = None
    for event in history.events:
        match event:
            case DoorStarted():
                generations[event.generation] = _Generation(event.restored is not None)
                newest = event.generation
            case CheckpointTriggered() if event.generation in generations:
                generations[event.generation].triggered.append(event.checkpoint)
            case WorkMeasured() if event.generation in generations:
                of_vertex = generations[event.generation].work.setdefault(event.vertex, {})
                of_vertex[event.micro_batch] = event.work
            case RowCommitted(record, _) if record.generation == newest and _of_door(record):
                known = generations[newest]
                yield from _of_counts(record, known)
                yield from _of_subtasks(record, known)
                known.written[record.checkpoint] = {each.vertex: each.micro_batch for each in record.vertices}
            case _:
                pass


def _of_door(record: CheckpointRecord) -> bool:
    """Return whether a tick's door wrote the entry. At rest, nothing is measured."""
    kinds = (RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD)
    return record.kind in kinds and record.statistics.counts is not None


def _of_counts(record: CheckpointRecord, known: _Generation) -> Iterator[str]:
    counts = record.statistics.counts or CheckpointCounts()
    where = f"checkpoint {record.checkpoint} counts {counts}"
    if min(counts.total, counts.in_progress, counts.completed, counts.failed, counts.restored) < 0:
        yield f"{where}: one of them is negative"
    if counts.total != counts.in_progress + counts.completed + counts.failed:
        yield f"{where}: the total is another"
    if counts.completed != len(known.written) or counts.restored != known.restored:
        yield f"{where}: {len(known.written)} were complete, and {int(known.restored)} restored"
    if counts.in_progress < 1:
        yield f"{where}: it was in progress itself"


def _of_subtasks(record: CheckpointRecord, known: _Generation) -> Iterator[str]:
    before = known.before(record.checkpoint)
    exact = not any(before < one < record.checkpoint for one in known.triggered)
    last = {each.vertex: each.micro_batch for each in record.vertices}
    for vertex in record.statistics.vertices:
        after = known.written.get(before, {}).get(vertex.vertex, 0)
        for subtask, (task_ms, sync_ms, rows) in enumerate(_columns(vertex)):
            due = known.measured(vertex.vertex, after, last[vertex.vertex], subtask)
            pairs = ((task_ms, due.task_ms), (sync_ms, due.sync_ms), (rows, due.rows))
            if any(said < 0 or said > most or (exact and said != most) for said, most in pairs):
                said = TaskWork(task_ms=task_ms, sync_ms=sync_ms, rows=rows)
                where = f"checkpoint {record.checkpoint}, subtask {subtask} of {vertex.vertex}"
                yield f"{where}: {said}, its tasks measured {due}{'' if exact else ' at most'}"


def _columns(vertex: VertexStatistics) -> Iterator[tuple[int, int, int]]:
    """Yield the measured columns of an entry's subtasks: task_ms, sync_ms, rows_in."""
    columns = vertex.subtasks
    for task_ms, sync_ms, rows in zip(columns.task_ms, columns.sync_ms, columns.rows_in, strict=True):
        if task_ms is not None and sync_ms is not None and rows is not None:
            yield task_ms, sync_ms, rows
