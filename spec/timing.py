"""Checks timers on any run: nothing comes too early, and what is due comes (A1 to A3, C6).

A door is judged by the times that it was told. If it is not known from outside why a checkpoint was triggered, or what
holds a row back, nothing is judged.
"""

from checkpointing.channel_items import AlignmentType, SourceSlice
from checkpointing.identifiers import CheckpointId, VertexId
from checkpointing.messages import (
    Effect,
    Fact,
    MicroBatchFinished,
    MicroBatchNotStaged,
    PollSource,
    RunMicroBatch,
    SavepointKind,
    SliceOffered,
)
from checkpointing.metadata.record import CheckpointRecord, RowKind, VertexStatistics
from spec.steps import Begun
from spec.watching import DoorJudge, Watched, drafted


class TooEarly(DoorJudge):
    """Judges what must wait: periodic triggers, idle splits, alignments with a timeout."""

    def __init__(self, door: Watched) -> None:
        """Begin before the first trigger."""
        super().__init__(door)
        self._given_ms: dict[CheckpointId, int] = {}
        self._is_sure = True
        """True if the next trigger can only be periodic: the tick had no reason for one, and no user asked."""
        self._periodic = 0

    def told(self, fact: Begun | Fact) -> None:
        """Note whether the tick itself may ask for a checkpoint, since a vertex could not write, or there is no work.

        The tick may poll again in the same step, behind the barrier. Then it looks busy when it rests.
        """
        self._is_sure &= self.door.is_busy and not isinstance(fact, MicroBatchNotStaged)

    def asked(self, effect: Effect) -> None:
        """Judge polls and entries."""
        if isinstance(effect, PollSource) and self.door.is_asked_too_soon((effect.source, effect.split)):
            self.wrong(f"split {effect.split} of {effect.source} was idle, and is read again too soon")
        record = drafted(effect)
        if record is not None:
            self._timed_out(record)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge a trigger that can only be periodic."""
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


class TooLate(DoorJudge):
    """Judges what is due: periodic triggers, segments that have waited long enough, alignments that take too long."""

    def __init__(self, door: Watched) -> None:
        """Begin with nothing that waits."""
        super().__init__(door)
        self._free_ms = door.now_ms
        """Since when nothing has held a periodic trigger back."""
        self._was_held_back = False
        """Something held it back until the step that is judged."""
        self._leaves: list[str] = []
        """Complaints about micro-batches of this step that leave segments although they may take more rows."""
        self._waits_ms: dict[VertexId, int] = {}
        """Since when each vertex with segments could certainly have run over them."""

    def told(self, fact: Begun | Fact) -> None:
        """Note which vertex now has segments."""
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
        """Judge an entry, and how much a micro-batch takes."""
        if isinstance(effect, RunMicroBatch):
            self._takes(effect)
        record = drafted(effect)
        if record is not None and record.kind is RowKind.CHECKPOINT:
            self._overdue(record)

    def _takes(self, effect: RunMicroBatch) -> None:
        """Note a micro-batch that leaves segments although it may take more rows. A barrier excuses it."""
        door, most = self.door, self.door.setup.config.micro_batch_rows_max
        taken = [segment for entry in effect.inputs for segment in entry.segments]
        left = door.channels.segments[effect.vertex] - len(taken)
        free = not (door.pending or door.aborted or door.completed or door.requests or door.is_troubled)
        if free and left > 0 and sum(segment.rows for segment in taken) < most:
            self._leaves.append(
                f"{effect.vertex} runs over {len(taken)} segments and leaves {left}, {most} rows may run"
            )

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge the door at rest. A barrier that came in this step may have held segments back, which excuses it."""
        for what in self._leaves if not given else ():
            self.wrong(what)
        self._leaves.clear()
        if not self.door.is_over:
            self._not_triggered(given)
            self._lingering()

    def time_passed(self) -> None:
        """Judge the periodic trigger."""
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
        """Note that a vertex without segments begins to wait for more."""
        for edge in self.door.channels.out[vertex]:
            if self.door.channels.segments[edge.downstream] <= segments:
                self._waits_ms[edge.downstream] = self.door.now_ms

    def _lingering(self) -> None:
        """Judge vertices whose segments wait.

        Without a barrier on its way, they wait only for more segments and for credit.
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
    """Return whether a checkpoint stayed aligned although a barrier was missing when its time was over."""
    return vertex.alignment is AlignmentType.ALIGNED and len(vertex.barriers) > 1 and _last_ms(vertex) > due_ms


def _last_ms(vertex: VertexStatistics) -> int:
    return max(barrier.at_ms for barrier in vertex.barriers)
