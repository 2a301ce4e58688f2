"""The job door: coordinator, gates, subtasks and commit as one machine, `step(fact) -> effects`.

The door alone decides the order of events, so Spark and the simulator get the same interleavings. Between two facts the
door is at rest: every message between its parts is delivered, every idle vertex has taken what its gate lets through,
and every split with credit is being polled.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, assert_never

from checkpointing.channel_items import (
    Barrier,
    CancelMarker,
    ChannelItem,
    EndOfData,
    Segment,
    SourceSlice,
    StagedSegment,
    SubtaskSnapshot,
)
from checkpointing.commit.recovery import completion
from checkpointing.commit.two_phase import CheckpointCommitted, CommitEffect, CommitEnded, Declined, IdsReserved, Saved
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.messages import SchedulerStopped
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import Task
from checkpointing.event_time import END_OF_TIME
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import messages as gate
from checkpointing.graph import Vertex
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, SubtaskId, VertexId
from checkpointing.job.drafts import Compacting, Drafts, EpochLog, Passed, counts_of, time_record
from checkpointing.job.hooks import Bystanders, FromBystander
from checkpointing.job.operator_run import (
    Foresight,
    InputEnd,
    Judged,
    Judgements,
    OperatorRun,
    objection,
    source_barrier,
    to_judge,
)
from checkpointing.job.polling import Credit, SourceReaders, pacing_of
from checkpointing.job.restoring import (
    acknowledged,
    channel_now,
    check_fits,
    commit_of,
    completed_store,
    ended_splits,
    in_flight,
    operator_runs,
    positions,
)
from checkpointing.job.setup import JobSetup
from checkpointing.job.tick_end import (
    HOLDS,
    OWN_REQUEST,
    Cause,
    CheckpointIds,
    Ending,
    Next,
    Pause,
    RivalWatch,
    Savepoints,
    refused,
)
from checkpointing.messages import (
    CutRecorded,
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    FilesCompacted,
    JudgementFailed,
    MicroBatchFailed,
    MicroBatchFinished,
    MicroBatchNotStaged,
    PollFailed,
    PublishFailed,
    RivalSeen,
    RowAppended,
    RowRefused,
    RowUnknown,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SliceOffered,
    SourceEnded,
    SourceIdle,
    StopRequested,
    SuitesJudged,
    TableCheckFailed,
    TablePublished,
    TablesChecked,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.record import CheckpointCounts, CheckpointRecord
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing, Subtasks

# ------------------------------------------------------------------
# The parts of one job, and the router between them: each effect goes to the door to which it is addressed.
#
# Nothing is decided here. Effects that leave the job are collected in `effects`. Messages of gates, subtasks and commit
# to the coordinator wait in a queue until `settle`, so they arrive in the order in which they were sent.


class Wiring:
    """Coordinator, subtasks, gates, sources and commit of one job, and the routes between them."""

    def __init__(self, setup: JobSetup) -> None:
        """Build every part at the restored cut."""
        config, graph, restored, claim = setup.config, setup.graph, setup.restored, setup.claim
        last = restored.checkpoint if restored else NO_CHECKPOINT
        self.setup = setup
        self.bystanders = Bystanders(graph)
        self.now_ms = 0
        self.effects: list[Effect] = []
        self._inbox: deque[told.CoordinatorFact] = deque()
        self.coordinator = CheckpointCoordinator(
            CoordinatorSettings.of(setup.job, config, *self.bystanders.names, setup.limits.checkpoint),
            Topology.of(graph, config.max_parallelism),
            completed_store(setup.retained, config.kept),
        )
        self.subtasks = Subtasks(SubtaskCheckpointing(subtask, last=last) for subtask in graph.subtasks())
        self.runs = operator_runs(setup)
        self.foresight = Foresight(self.runs)
        ended = ended_splits(graph, restored)
        self.readers = SourceReaders(graph.sources(), positions(graph, restored), pacing_of(setup), ended)
        self.credit = Credit(graph, setup.credit_bytes)
        self.epochs = EpochLog(graph, claim.generation)
        self.ids = CheckpointIds(setup.claim)
        self.ending = Ending(setup.limits)
        self.pause = Pause()
        self.rivals = RivalWatch(claim.generation)
        self.commit = commit_of(setup)
        self.judging = Judgements()
        self.compacting = Compacting(graph, config, setup.renamed)
        self.savepoints = Savepoints(setup.retained, unaligned=config.unaligned)
        self.drafts = Drafts(graph)
        self._held: list[told.TriggerTask] = []
        """Triggers of source subtasks whose barriers wait for a cut of another job (A10)."""
        self.data_ended = restored is not None and restored.finished and self.readers.all_ended
        """True if the sources have sent the end of their data, or the cut had no row left."""
        for subtask in graph.subtasks() if self.data_ended else ended:
            self.subtasks[subtask].finish()

    @property
    def vertex_waits(self) -> bool:
        """True if a vertex waits for a barrier."""
        return any(run.waits_for_barrier for run in self.runs.values())

    # -------------------------------------------------------------- channels

    def arrive(self, channel: ChannelId, item: ChannelItem) -> None:
        """Put an item at the end of a channel."""
        if isinstance(item, SourceSlice | StagedSegment):
            self.credit.sent(channel, item.bytes)
        self.runs[channel.edge.downstream].gate.step(gate.ItemArrived(channel, item))

    def recover(self, channel: ChannelId, segment: Segment) -> None:
        """Give a vertex a segment that the cut holds in flight. It comes before all segments that are sent anew."""
        self.credit.sent(channel, segment.bytes)
        self.runs[channel.edge.downstream].collect(channel, segment, self.now_ms)

    def broadcast(self, subtask: SubtaskId, item: ChannelItem) -> None:
        """Send an item into every channel of a subtask."""
        for channel in self.credit.channels_from(subtask):
            self.arrive(channel, item)

    def end_data(self) -> None:
        """Send the end of the data from all sources, for a drain or because every split has ended.

        Later calls do nothing (B4).
        """
        sources = () if self.data_ended else self.setup.graph.sources()
        self.data_ended = True
        for subtask in (subtask for source in sources for subtask in source.subtasks()):
            self.broadcast(subtask, EndOfData())

    # -------------------------------------------------------------- coordinator

    def shut_down(self, end: EndTick) -> None:
        """End the tick: abort what is pending and answer every request."""
        if self.bystanders.restoring:
            self._inbox.clear()
        self.bystanders.give_up()
        self.tell(told.ShutDown())
        self.settle()
        self.from_commit(self.commit.withdraw())
        self.settle()
        reason = end.reason or CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        self.effects.extend(self.savepoints.give_up(reason, end.message or reason.message))
        self.effects.append(end)

    def tell(self, fact: told.CoordinatorFact) -> None:
        """Queue a fact for the coordinator."""
        self._inbox.append(fact)

    def settle(self) -> bool:
        """Deliver queued facts to the coordinator, but none before hooks are restored.

        Return whether one was delivered.
        """
        delivers = bool(self._inbox) and not self.bystanders.restoring
        while self._inbox and not self.bystanders.restoring:
            for effect in self.coordinator.step(self._inbox.popleft()):
                self._from_coordinator(effect)
        return delivers

    def _from_coordinator(self, effect: told.CoordinatorEffect) -> None:  # noqa: PLR0912 - one line an effect
        match effect:
            case told.FetchCheckpointId():
                self._fetch_id()
            case told.CreateLocation():
                self.tell(told.LocationCreated(effect.checkpoint))
            case told.AskOperatorCoordinator() | told.AskHook() | told.CloseHook():
                self.bystanders.told(effect, self.now_ms)
                self.effects.append(effect)
            case told.TriggerTask():
                self._held.append(effect)
                self.release_barriers()
            case told.CommitCheckpoint():
                statistics = self.epochs.ended(effect.checkpoint, self.coordinator.statistics)
                states = self.bystanders.coordinators.states(effect.checkpoint)
                draft = self.drafts.compose(effect, statistics, states)
                self.from_commit(self.commit.offer(self.compacting.onto(draft), self.now_ms))
            case told.NotifyCheckpointComplete():
                self.subtasks[_subtask(effect.task)].complete(effect.checkpoint)
            case told.NotifyCheckpointAborted():
                self._aborted(effect)
            case told.RequestSucceeded() | told.RequestFailed():
                answers, kind = self.savepoints.answered(effect)
                self.effects.extend(answers)
                self.pause.answered(effect, kind, self.now_ms)
                if self.ending.answered(effect, kind, behind_barrier=self.readers.ended):
                    self.start_scheduler()
            case told.FailJob():
                self.ending.failed(effect.reason, effect.message)
            case told.DiscardState():
                self.discard(effect.handles)
                self.tell(told.StateDiscarded(effect.checkpoint))
            case told.WakeCoordinatorAt() | told.AnswerAcknowledge():
                """The door itself reads the coordinator's next timer, and nobody waits for AnswerAcknowledge."""
            case told.NotifyOperatorCoordinatorComplete() | told.NotifyOperatorCoordinatorAborted():
                """NotifyComplete notifies a source of completed checkpoints, when the tables show them (F2)."""
            case _:
                raise TypeError(f"the coordinator asked for {effect}, which no checkpoint of this job needs")

    def discard(self, paths: Iterable[str]) -> None:
        """Delete files to which nothing refers any more. Files that a savepoint names stay."""
        unpinned = self.savepoints.unpinned(paths)
        if unpinned:
            self.effects.append(DiscardFiles(unpinned))

    def _fetch_id(self) -> None:
        taken = self.ids.take()
        if taken is not None:
            self.tell(told.CheckpointIdFetched(taken))
        else:
            self.from_commit(self.commit.reserve(self.ids.further(self.now_ms)))

    @property
    def barrier_waits(self) -> bool:
        """Whether a barrier was requested and waits for a cut of another job (A10)."""
        return bool(self._held)

    def release_barriers(self) -> None:
        """Send the barriers that are due, unless splits stand at different cuts of another job (A10)."""
        while self._held and not self.readers.cuts.hold_barrier:
            self._trigger(self._held.pop(0))

    def _trigger(self, effect: told.TriggerTask) -> None:
        """Trigger a subtask of a source.

        Its barrier follows its rows. For a drain, the end of data comes before the barrier.
        """
        subtask, properties = _subtask(effect.task), effect.properties
        if self.drafts.begins(effect.checkpoint, self.readers.rows_sent):
            self.readers.barrier_sent(last=properties.is_synchronous)
            self.epochs.triggered(effect.checkpoint, self.now_ms, self.readers.rows_sent)
            self.drafts.sent(effect.checkpoint, self.now_ms, self.readers.positions())
        if properties.terminate:
            self.end_data()
        self._request(subtask, source_barrier(effect, self.setup.config, self.now_ms, self.readers.split(subtask)))
        self._taken(subtask, effect.checkpoint, SubtaskSnapshot(position=self.readers.position(subtask)))

    def _aborted(self, effect: told.NotifyCheckpointAborted) -> None:
        self._held = [held for held in self._held if held.checkpoint != effect.checkpoint]
        for aborted in self.drafts.aborted(effect, ends_tick=self.ending.ends_for(effect.reason, effect.message)):
            self.effects.extend((aborted, *self.rivals.failed(aborted)))
        self._forget(effect.checkpoint)
        subtask = _subtask(effect.task)
        self.subtasks[subtask].abort(effect.checkpoint, effect.latest_completed or NO_CHECKPOINT)
        self.effects.extend(self.judging.cancel(subtask.vertex, effect.checkpoint))

    def start_scheduler(self) -> None:
        """Start periodic triggering, if an interval is configured."""
        if self.setup.config.interval_ms is not None:
            self.tell(told.SchedulerStarted(self.setup.seed))

    def _forget(self, checkpoint: CheckpointId) -> None:
        self.epochs.forget(checkpoint)
        self.drafts.forget(checkpoint)
        self.bystanders.forget(checkpoint)

    # -------------------------------------------------------------- commit

    def from_commit(self, effects: tuple[CommitEffect, ...]) -> None:
        """Route the effects of the commit. Outcomes go to the coordinator. All other effects leave the job."""
        for effect in effects:
            match effect:
                case CheckpointCommitted():
                    left = self.drafts.leaves_rows(effect.record, self.readers.rows_sent)
                    left = left or (self.readers.all_ended and not effect.record.finished)
                    self.ending.completed(uncommitted=left)
                    self.compacting.committed(effect.record)
                    self.drafts.committed(effect.record.checkpoint)
                    self._stored(effect.record)
                    self.effects.append(completion(effect.record))
                case Saved():
                    self._stored(effect.record)
                case Declined():
                    self.compacting.declined(effect.checkpoint)
                    self.tell(told.CommitFailed(effect.checkpoint, effect.reason, effect.message))
                case CommitEnded():
                    self.ending.failed(effect.reason, effect.message)
                case IdsReserved():
                    self._fetch_id()
                case _:
                    self.effects.append(effect)

    def _stored(self, record: CheckpointRecord) -> None:
        self.ending.saved(record)
        self._forget(record.checkpoint)
        self.savepoints.stored(record)
        self.tell(told.CommitSucceeded(record.checkpoint))

    def rival_seen(self, fact: RivalSeen) -> None:
        """End the tick as fenced if another process has claimed the job."""
        lost = self.rivals.seen(fact)
        if lost is not None:
            self.ending.failed(CheckpointFailureReason.FENCED, lost)

    # -------------------------------------------------------------- gates

    def from_gate(self, run: OperatorRun, effects: tuple[gate.GateEffect, ...]) -> None:
        """Route the effects of a gate to its vertex and the vertex's subtasks."""
        for effect in effects:
            match effect:
                case gate.Deliver():
                    run.collect(effect.channel, effect.segment, self.now_ms)
                case gate.DeliverEndOfData():
                    run.data_ended(effect.channel)
                case gate.TriggerCheckpoint():
                    run.triggered(effect)
                    self.request_snapshots(run)
                case gate.AbortCheckpoint():
                    if run.time is not None:
                        run.time.aborted(effect.checkpoint)
                    self._abort(run.vertex, effect.checkpoint, effect.reason)
                case gate.InFlightComplete():
                    run.in_flight = effect
                    self._store_in_flight(run)
                case gate.BarrierReceived():
                    self.epochs.received(run.vertex.id, effect)
                    if run.time is not None:
                        run.time.received(effect.channel, effect.barrier)
                case gate.WakeGateAt():
                    run.gate_wake_ms = effect.at_ms
                case _:
                    """Blocked or resumed channels and ignored items concern only the gate."""

    def _store_in_flight(self, run: OperatorRun) -> None:
        """Give the subtasks the channel state of a checkpoint, once they were asked for their snapshots (C5).

        The first subtask stores the segments for all subtasks.
        """
        complete = run.in_flight_due()
        if complete is None:
            return
        self.epochs.overtaken(run.vertex.id, complete)
        run.overtook(complete)
        for subtask in run.vertex.subtasks():
            whole = self.subtasks[subtask].stored(complete.checkpoint, () if subtask.index else complete.channels)
            self._acknowledge(subtask, complete.checkpoint, whole)

    # -------------------------------------------------------------- subtasks

    def request_snapshots(self, run: OperatorRun) -> None:
        """Take the snapshot of every subtask if the vertex is idle at its barrier and the checkpoint has not ended.

        State that is due by the watermark of the barrier is fired first (N4).
        """
        trigger = run.snapshot_due
        if trigger is None:
            return
        vertex, checkpoint = run.vertex.id, trigger.barrier.checkpoint
        barrier = run.pass_time(trigger)
        if run.time is not None:
            self.drafts.timed(checkpoint, vertex, barrier.watermark_ms)
        if run.fires_next:
            self.drafts.fires(checkpoint)
            self.ending.uncommitted = True
            self.effects.append(run.fire())
            return
        self.epochs.passed(vertex, trigger, self.now_ms)
        drained = barrier.watermark_ms == END_OF_TIME and not self._has_ended(vertex)
        time = None if run.time is None else time_record(self.setup.graph, run.vertex, run.time, drained=drained)
        snapshots = run.take_snapshot(barrier)
        self.drafts.passed(checkpoint, vertex, Passed(run.micro_batch, time, run.expiry_record))
        for subtask in run.vertex.subtasks():
            self._request(subtask, run.sent_on(barrier), unaligned=trigger.unaligned)
        self._store_in_flight(run)
        files = to_judge(vertex, self.runs, self.setup.graph, self.subtasks, checkpoint, self.commit.parent)
        verdict_due = self.judging.begin(vertex, checkpoint, files, snapshots)
        self.effects.extend(verdict_due)
        if not verdict_due:
            self.taken(vertex, checkpoint, snapshots)

    def _has_ended(self, vertex: VertexId) -> bool:
        """Return whether every split whose rows reach the vertex has ended."""
        above = self.setup.graph.sources_above(vertex)
        return all(split.ended for split in self.readers.splits() if split.subtask.vertex in above)

    def taken(self, vertex: VertexId, checkpoint: CheckpointId, snapshots: tuple[SubtaskSnapshot, ...]) -> None:
        """Give every subtask its snapshot."""
        for index, snapshot in enumerate(snapshots):
            self._taken(SubtaskId(vertex, index), checkpoint, snapshot)

    def snapshot_failed(
        self, vertex: VertexId, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str
    ) -> None:
        """Decline the checkpoint for the vertex, which gives no snapshot for it (J3)."""
        self.drafts.failed(checkpoint, message)
        subtask = SubtaskId(vertex, 0)
        if self.subtasks[subtask].failed(checkpoint):
            self._decline(subtask, checkpoint, reason)

    def not_staged(self, run: OperatorRun, message: str) -> None:
        """Decline the checkpoint, if any, whose snapshot waits for rows that the vertex could not write (B2)."""
        waiting = run.not_staged()
        if waiting is not None:
            reason = CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
            if any(pending.id == waiting for pending in self.coordinator.pending):
                self.drafts.failed(waiting, message)
            self._abort(run.vertex, waiting, reason)

    def _abort(self, vertex: Vertex, checkpoint: CheckpointId, reason: CheckpointFailureReason) -> None:
        """Decline the checkpoint for every subtask, and cancel its barrier downstream."""
        for subtask in vertex.subtasks():
            self.subtasks[subtask].abort_at_gate(checkpoint)
            self._decline(subtask, checkpoint, reason)
            self.broadcast(subtask, CancelMarker(checkpoint))

    def _request(self, subtask: SubtaskId, barrier: Barrier, *, unaligned: bool = False) -> None:
        """Begin a subtask's snapshot. The barrier goes downstream first."""
        sent = self.subtasks[subtask].request(barrier, unaligned=unaligned)
        if sent is not None:
            self.broadcast(subtask, sent)

    def _taken(self, subtask: SubtaskId, checkpoint: CheckpointId, snapshot: SubtaskSnapshot) -> None:
        self._acknowledge(subtask, checkpoint, self.subtasks[subtask].taken(checkpoint, snapshot))

    def _acknowledge(self, subtask: SubtaskId, checkpoint: CheckpointId, snapshot: SubtaskSnapshot | None) -> None:
        """Give a subtask's snapshot to the coordinator, if it is whole."""
        if snapshot is not None:
            metrics = self.epochs.acknowledged(subtask, checkpoint, self.now_ms)
            self.tell(told.TaskAcknowledged(self.setup.job, subtask, checkpoint, acknowledged(snapshot), metrics))

    def _decline(self, subtask: SubtaskId, checkpoint: CheckpointId, reason: CheckpointFailureReason) -> None:
        self.tell(told.TaskDeclined(self.setup.job, subtask, checkpoint, reason, self.drafts.said(checkpoint)))


def _subtask(named: Task) -> SubtaskId:
    if not isinstance(named, SubtaskId):
        raise TypeError(f"{named!r} is no subtask of this job")
    return named


# ------------------------------------------------------------------
# Decides how long the segments of a vertex wait for more, so that micro-batches are few and large.
#
# Readers see rows only behind a barrier. So shortly before a periodic barrier, running a few rows at once gains
# nothing. They wait for the barrier, and one micro-batch runs them together with the rows that come in the meantime.
# Idle splits are polled more often then, so that the cut has newer rows.


FEW_ROWS: Final = 10_000
"""A micro-batch of fewer rows takes about as long as one of a single row."""
A_JOB_MS: Final = 100
"""A Spark job of few rows takes about this long."""
POLLS: Final = 10
"""Shortly before a barrier, an idle split is polled this many times as often."""


def is_time(job: Wiring, run: OperatorRun) -> bool:
    """Return whether a vertex should run its collected segments now. No segment waits longer than `linger_ms`.

    If a barrier was requested, the last rows before it can run in the same micro-batch as the state that it fires. This
    saves a Spark job. But the barrier's checkpoint may have to wait until the one before is complete. So a vertex waits
    for the barrier no longer than the saved job would take.
    """
    until_ms = run.collected_since_ms + job.setup.linger_ms
    if job.now_ms >= until_ms:
        return True
    few, barriers = run.collected_rows < FEW_ROWS, [each for each in job.coordinator.pending if each.id > run.passed]
    asked = run.fires_with_rows and (job.readers.awaits_barrier or barriers)
    waits = asked and job.now_ms < run.collected_since_ms + A_JOB_MS
    return not (waits or _more_is_coming(job, run.vertex.id) or (few and _barrier_is_near(job, until_ms)))


def ask_again(job: Wiring, fact: SourceIdle) -> None:
    """Record that a split has nothing to read now, and decide when it is polled again."""
    job.readers.found_idle(fact.source, fact.split, job.now_ms)
    wait_ms = job.setup.idle_poll_ms
    if _barrier_is_near(job, job.now_ms + wait_ms):
        job.readers.ask_sooner(fact.source, fact.split, job.now_ms + wait_ms // POLLS)


def _barrier_is_near(job: Wiring, until_ms: int) -> bool:
    """Return whether a periodic barrier is due by `until_ms`. A job without an interval has no periodic barriers."""
    due_ms = job.coordinator.next_due_ms if job.setup.config.interval_ms is not None else None
    return due_ms is not None and due_ms <= until_ms


def _more_is_coming(job: Wiring, vertex: VertexId) -> bool:
    return any(_stirs(job, edge.upstream) for edge in job.setup.graph.upstream(vertex))


def _stirs(job: Wiring, vertex: VertexId) -> bool:
    """Return whether the vertex is working on something that it will send on by itself."""
    run = job.runs.get(vertex)
    if run is None:
        return job.readers.is_polling(vertex)
    return run.at_work or _more_is_coming(job, vertex)


# ------------------------------------------------------------------
# Ends the inputs of a job that is drained, or whose sources are bounded (B4, Flink: FLIP-147).
#
# A split that has ended is idle for ever, and no barrier waits for it. When all splits have ended, the sources send the
# end of their data. Then the vertices emit the rows that they hold back, one vertex after the other. The next
# checkpoint shows these rows. If it fails, another checkpoint follows. In the entry of this checkpoint, every subtask
# is marked as finished.
#
# In Flink, each task ends by itself, and takes no part in later checkpoints. Here one process runs all tasks, so they
# all take part until the job has finished.


def split_ended(job: Wiring, fact: SourceEnded) -> None:
    """Record the end of a split.

    After the barrier of a stop, leave this to the next tick, which finds the end again.
    """
    if job.readers.ended:
        job.readers.found_idle(fact.source, fact.split, job.now_ms)
    else:
        subtask = job.readers.found_ended(fact.source, fact.split)
        job.subtasks[subtask].finish()


def end_inputs(job: Wiring) -> None:
    """Once every split has ended, send the end of the data.

    Vertices then emit held rows, which a last checkpoint must show.
    """
    if job.readers.all_ended and not job.data_ended and job.ending.takes_checkpoints:
        job.end_data()
        job.ending.uncommitted = True


def hand_end_on(job: Wiring, run: OperatorRun) -> None:
    """Record that the vertex has processed all its input and emitted all its rows. Send the end of data downstream."""
    run.input_end = InputEnd.HANDED_ON
    if run.time is not None:
        run.time.end()
    for subtask in run.vertex.subtasks():
        job.subtasks[subtask].finish()
        job.broadcast(subtask, EndOfData())


def stop_scheduler(job: Wiring) -> None:
    """Stop periodic triggering, and abort all checkpoints that are not being committed, as Flink does for a failed job.

    See Flink's CheckpointCoordinatorDeActivator. The savepoint of a stop has stopped periodic triggering already, and
    may still wait for its turn.
    """
    if job.coordinator.goes_on:
        job.tell(SchedulerStopped())
        job.settle()


# ------------------------------------------------------------------
# Finds when the job door has something to do again: at once, or when the job's earliest timer is due.


class Waking:
    """Remembers the time at which the door asked to be woken."""

    def __init__(self, linger_ms: int) -> None:
        """Begin without a timer. A vertex waits `linger_ms` for more segments."""
        self._linger_ms = linger_ms
        self._at_ms: int | None = None
        self.moved = True
        """True if the last pass over the job changed something, or if a fact other than TimeAdvanced has come since."""

    def slept(self, job: Wiring, now_ms: int) -> bool:
        """Advance the clock if nothing has moved and no timer is due.

        Otherwise return False: there may be work to do.
        """
        if self.moved or self.is_due(now_ms) or job.bystanders.restoring or job.readers.barrier_due:
            return False
        job.now_ms = max(job.now_ms, now_ms)
        job.coordinator.pass_time(job.now_ms)
        return True

    def is_due(self, now_ms: int) -> bool:
        """Return True if the earliest timer is due."""
        return self._at_ms is not None and self._at_ms <= now_ms

    def asked(self, job: Wiring) -> tuple[WakeAt, ...]:
        """Return the request to be woken, if its time has changed.

        A wait that is already over no longer depends on time, so it must not hide a later timer.
        """
        now_ms = job.now_ms
        waits = [job.ending.wake_at_ms, job.readers.next_poll_ms(now_ms), job.pause.until_ms]
        timers = [job.coordinator.wake_at_ms, job.bystanders.hooks.wake_at_ms]
        for run in job.runs.values():
            if run.collected:
                waits.append(run.collected_since_ms + self._linger_ms)
                waits += [run.collected_since_ms + A_JOB_MS] if run.fires_with_rows else []
            timers.append(run.gate_wake_ms)
        waits += job.foresight.turns_at_ms(now_ms)
        due = [at for at in timers if at is not None]
        due += [at for at in waits if at is not None and at > now_ms]
        before, self._at_ms = self._at_ms, min(due, default=None)
        return () if self._at_ms in (None, before) else (WakeAt(self._at_ms),)


class JobDoor:
    """The job of one tick. `checkpointing.messages` says what the caller must do."""

    def __init__(self, setup: JobSetup) -> None:
        """Begin at the restored cut. Raise CutDoesNotFitError if it cannot be restored into this graph."""
        if setup.restored is not None:
            allowed = setup.allow_non_restored_state
            check_fits(setup.graph, setup.restored, setup.config.max_parallelism, allow_non_restored_state=allowed)
        self._setup = setup
        self._job = Wiring(setup)
        self._waking = Waking(setup.linger_ms)

    @property
    def next_id(self) -> CheckpointId:
        """The first checkpoint id that this tick has not used (A6)."""
        return self._job.ids.next_id

    @property
    def pending(self) -> tuple[CheckpointId, ...]:
        """The checkpoints in progress, oldest first. A request that still waits to be triggered is not among them."""
        return tuple(pending.id for pending in self._job.coordinator.pending)

    @property
    def counts(self) -> CheckpointCounts:
        """How many checkpoints this door has begun, and how they ended (E6)."""
        return counts_of(self._job.coordinator.statistics)

    def start(self, now_ms: int) -> tuple[Effect, ...]:
        """Begin the job. It is RUNNING once its source coordinators and master hooks are restored (A1)."""
        job = self._job
        job.now_ms = now_ms
        job.ending.started(now_ms)
        if self._setup.restored is not None:
            job.coordinator.statistics.restored(self._setup.restored.checkpoint)
        for run in job.runs.values():
            job.readers.reached(run.held_back())
        for channel, segment in in_flight(self._setup.restored):
            job.recover(channel_now(self._setup.graph, channel, segment), segment)
            job.ending.uncommitted = True
        job.effects.extend(job.bystanders.restore(self._setup.restored, now_ms))
        job.tell(told.CoordinatorTimeAdvanced(now_ms))
        job.start_scheduler()
        return self._rest()

    def step(self, fact: Fact) -> tuple[Effect, ...]:  # noqa: C901, PLR0912 - one line a fact
        """Take one fact, come to rest, and return what to do next.

        After the tick has ended, a request for a savepoint is refused, and every other fact is ignored.
        """
        job = self._job
        if job.ending.over:
            return (refused(fact, over=True),) if isinstance(fact, SavepointRequested) else ()
        if isinstance(fact, TimeAdvanced) and self._waking.slept(job, fact.now_ms):
            return ()
        self._waking.moved = self._waking.moved or not isinstance(fact, TimeAdvanced)
        match fact:
            case TimeAdvanced():
                self._advance(fact.now_ms)
            case SliceOffered():
                self._offered(fact)
            case SourceIdle():
                ask_again(job, fact)
            case SourceEnded():
                split_ended(job, fact)
            case PollFailed():
                self._not_polled(fact)
            case MicroBatchFailed():
                job.ending.failed(CheckpointFailureReason.TASK_FAILURE, fact.error)
            case MicroBatchFinished():
                self._finished(fact)
            case MicroBatchNotStaged():
                job.not_staged(job.runs[fact.vertex], fact.error)
            case SuitesJudged() | JudgementFailed():
                self._judged(fact)
            case _ if isinstance(fact, FromBystander):
                self._from_bystander(fact)
            case (
                TablesChecked()
                | TableCheckFailed()
                | RowAppended()
                | RowRefused()
                | RowUnknown()
                | TablePublished()
                | PublishFailed()
                | CutRecorded()
            ):
                job.from_commit(job.commit.step(fact, job.now_ms))
            case FilesCompacted():
                job.compacting.told(fact)
            case RivalSeen():
                job.rival_seen(fact)
            case StopRequested():
                job.ending.stop_requested(fact.kind)
            case SavepointRequested():
                self._asked(fact)
            case _:
                assert_never(fact)
        return self._rest()

    # -------------------------------------------------------------- facts

    def _advance(self, now_ms: int) -> None:
        job = self._job
        job.now_ms = max(job.now_ms, now_ms)
        job.tell(told.CoordinatorTimeAdvanced(job.now_ms))
        if job.bystanders.hooks.wake_at_ms is not None:
            for late in job.bystanders.hooks.late(job.now_ms):
                job.tell(late)
            for why in job.bystanders.hooks.not_restored(job.now_ms):
                job.ending.failed(CheckpointFailureReason.TASK_FAILURE, why)
        for run in job.runs.values():
            if run.gate_wake_ms is not None and run.gate_wake_ms <= job.now_ms:
                run.gate_wake_ms = None
                job.from_gate(run, run.gate.step(gate.GateTimeAdvanced(job.now_ms)))

    def _from_bystander(self, fact: FromBystander) -> None:
        """Handle an answer of a source's coordinator or of a hook. A late answer changes nothing."""
        heard = self._job.bystanders.heard(fact)
        if isinstance(heard, str):
            self._job.ending.failed(CheckpointFailureReason.TASK_FAILURE, heard)
        elif heard is not None:
            self._job.tell(heard)

    def _offered(self, fact: SliceOffered) -> None:
        if not isinstance(fact.slice, SourceSlice):
            raise TypeError(f"a source offered {fact.slice}, which is no slice of a source")
        sender = self._job.readers.offered(fact.slice)
        if sender is not None:
            self._job.ending.uncommitted = True
            self._job.effects.extend(self._job.compacting.rows_read())
            if fact.slice.rows:
                self._job.epochs.read(sender, fact.slice)
                self._job.broadcast(sender, fact.slice)
            self._job.release_barriers()

    def _not_polled(self, fact: PollFailed) -> None:
        """Count the failure of a poll. After the barrier of a stop, ignore it: the next tick polls again.

        If all barriers wait for this split, no last checkpoint can be taken. Then the tick fails at once (A10).
        """
        job = self._job
        if job.readers.ended:
            job.readers.found_idle(fact.source, fact.split, job.now_ms)
        elif job.readers.failed(fact.source, fact.split, job.now_ms):
            job.ending.split_failed(fact.error, at_once=job.readers.cuts.is_behind((fact.source, fact.split)))

    def _asked(self, fact: SavepointRequested) -> None:
        """Pass a request for a savepoint on. For a stop, first stop periodic triggering, as Flink does."""
        job = self._job
        if job.savepoints.is_asked(fact.request):
            return
        if job.ending.stopping:
            job.effects.append(refused(fact, over=False))
            return
        if self._setup.limits.hold and fact.kind is not SavepointKind.PLAIN:
            job.effects.append(SavepointFailed(fact.request, CheckpointFailureReason.CHECKPOINT_DECLINED, HOLDS))
            return
        if fact.kind is not SavepointKind.PLAIN:
            job.ending.told(Cause.SAVEPOINT_ASKED)
            job.tell(told.SchedulerStopped())
        job.tell(job.savepoints.ask(fact))

    def _finished(self, fact: MicroBatchFinished) -> None:
        job = self._job
        run = job.runs[fact.vertex]
        ran = run.running
        dead = run.finish(fact)
        job.readers.reached(run.held_back())
        for channel, segment in ran:
            job.credit.processed(channel, segment.bytes)
            if isinstance(segment, SourceSlice):
                job.readers.ran(segment)
        job.epochs.worked(fact, sum(segment.rows for _, segment in ran))
        for subtask, output in zip(run.vertex.subtasks(), fact.outputs, strict=True):
            job.subtasks[subtask].stage(run.staged(output))
            if output.emitted:
                job.broadcast(subtask, StagedSegment(output.emitted))
        job.discard(dead)
        if run.input_end is InputEnd.REACHED and not run.collected:
            hand_end_on(job, run)
        job.request_snapshots(run)

    def _judged(self, fact: Judged) -> None:
        snapshots = self._job.judging.told(fact)
        if snapshots is None:
            return
        self._job.epochs.judged(fact.checkpoint, fact.report)
        why = objection(fact)
        if why is None:
            self._job.taken(fact.vertex, fact.checkpoint, snapshots)
        else:
            self._job.snapshot_failed(fact.vertex, fact.checkpoint, *why)

    # -------------------------------------------------------------- coming to rest

    def _rest(self) -> tuple[Effect, ...]:
        job = self._job
        job.settle()
        if not job.ending.over:
            self._work()
        if not job.effects:
            return ()
        effects, job.effects = job.effects, []
        return tuple(effects)

    def _work(self) -> None:
        """Repeat passes over the job until a pass changes nothing, or the tick is over.

        After a pass that changed nothing, time alone changes nothing either until a timer is due.
        """
        while self._pass():
            pass

    def _pass(self) -> bool:
        """Give work to idle vertices, poll splits with credit, and decide whether the tick ends.

        Return whether this changed something and the tick goes on.
        """
        restoring = self._job.bystanders.restoring
        if not restoring:
            holds_one = self._setup.limits.hold and self._job.ending.requested  # with it the tick ends
            if self._job.readers.barrier_due and not holds_one:
                self._job.readers.barrier_asked()
                self._request_checkpoint()
            self._poll_sources()
        waking = self._waking
        if not (waking.moved or self._job.effects or waking.is_due(self._job.now_ms)):
            return False
        waking.moved, phase, asked = False, self._job.ending.phase, len(self._job.effects)
        if not restoring:
            end_inputs(self._job)
            self._run_vertices()
        decision = self._decide_end()
        due = decision is Next.CHECKPOINT or (decision is Next.GO_ON and self._barrier_wanted())
        if due and not self._job.ending.requested and self._job.pause.is_over(self._job.now_ms):
            self._request_checkpoint()
            self._run_vertices()
        waking.moved = waking.moved or self._job.ending.phase is not phase or len(self._job.effects) > asked
        self._job.effects.extend(waking.asked(self._job))
        return waking.moved and not self._job.ending.over

    def _run_vertices(self) -> None:
        """Give every idle vertex what its gate lets through.

        Upstream vertices come first, so that barriers travel on.
        """
        for run in self._job.runs.values():
            while not run.busy and run.has_input and self._turn(run):
                self._waking.moved = True
        self._waking.moved = self._job.settle() or self._waking.moved

    def _request_checkpoint(self) -> None:
        if self._job.ending.takes_checkpoints:
            self._waking.moved = True
            self._job.ending.requested += 1
            self._job.tell(told.CheckpointRequested(OWN_REQUEST, self._setup.limits.checkpoint))
            self._job.settle()

    def _barrier_wanted(self) -> bool:
        """True if a vertex or a cut waits for a barrier, no checkpoint is pending, and no interval brings one.

        A cut of another job waits if its checkpoint failed before the barrier was sent (A10).
        """
        if self._setup.config.interval_ms is not None:
            return False
        waits = self._job.vertex_waits or self._job.readers.cuts.barrier_due
        return waits and not self._job.coordinator.pending

    def _poll_sources(self) -> None:
        job = self._job
        self._stop_reading()
        job.effects.extend(job.readers.polls(job.now_ms, job.credit.has, barrier_waits=job.barrier_waits))

    def _turn(self, run: OperatorRun) -> bool:
        """Poll the vertex's gate once, or start its micro-batch. Return whether there may be more to do."""
        if run.ends_without_work:
            hand_end_on(self._job, run)
            return True
        ends = run.input_end is InputEnd.REACHED
        enough = ends or run.trigger is not None or run.collected_rows >= self._setup.config.micro_batch_rows_max
        if not enough or run.waits_for_barrier:
            effects = run.poll(self._job.now_ms)
            if effects:
                self._job.from_gate(run, effects)
                return True
        if run.waits_for_barrier:
            return False
        if (ends or run.collected) and (enough or is_time(self._job, run)) and self._has_credit(run):
            self._job.effects.append(run.start(self._setup.config.micro_batch_rows_max))
        return False

    def _has_credit(self, run: OperatorRun) -> bool:
        """Return whether the vertex may send rows downstream.

        While a vertex waits for a barrier that is on its way, all may send: its unread rows use up credit, and must not
        stop the barrier.
        """
        if self._job.vertex_waits and self._job.coordinator.pending:
            return True
        return all(self._job.credit.has(subtask) for subtask in run.vertex.subtasks())

    # -------------------------------------------------------------- the end

    def _decide_end(self) -> Next | EndTick:
        """Ask the `Ending` what to do. The state of the splits matters only when nothing moves."""
        job = self._job
        quiet = self._is_quiet()
        turns = quiet and job.foresight.brings_on(job.readers.splits(), job.now_ms)
        decision = job.ending.next(
            job.now_ms,
            quiet=quiet,
            in_doubt=job.commit.in_doubt,
            idle=quiet and job.readers.all_idle and not turns,
            spent=quiet and (job.readers.quota_spent or (job.readers.all_idle and turns)),
            failing=quiet and job.readers.failing,
            ended=quiet and job.data_ended and job.readers.all_ended,
        )
        self._stop_reading()
        if isinstance(decision, EndTick):
            job.shut_down(decision)
        elif job.ending.settles:
            stop_scheduler(job)
        return decision

    def _stop_reading(self) -> None:
        """Stop reading rows once the tick is about to end."""
        self._job.readers.stopped = self._job.readers.stopped or not self._job.ending.reads

    def _is_quiet(self) -> bool:
        """Return whether nothing moves: no poll, no micro-batch, and no checkpoint for which somebody waits.

        A periodic checkpoint without rows is ignored. With a short interval there would always be another one.
        """
        job = self._job
        if job.bystanders.restoring or job.readers.polling or job.commit.in_doubt:
            return False
        if job.ending.requested or job.savepoints.under_way:
            return False
        if job.ending.uncommitted and job.coordinator.pending:
            return False
        return not any(run.at_work for run in job.runs.values())
