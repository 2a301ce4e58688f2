"""The parts of one job, and the router between them: each effect goes to the door to which it is addressed.

Nothing is decided here. Effects that leave the job are collected in `effects`. What gates, subtasks and commit tell the
coordinator waits in a queue until `settle`, so messages arrive in the order in which they were sent.
"""

from collections import deque
from collections.abc import Iterable

from checkpointing.channel_items import CancelMarker, ChannelItem, EndOfData, Segment, SourceSlice, StagedSegment
from checkpointing.commit.recovery import completion
from checkpointing.commit.two_phase import (
    CheckpointCommitted,
    CommitEffect,
    CommitEnded,
    Declined,
    IdsReserved,
    Saved,
)
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import Task
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import messages as gate
from checkpointing.graph import Vertex
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, SubtaskId, VertexId
from checkpointing.job.barriers import snapshot_for
from checkpointing.job.bystanders import Answer, Bystanders
from checkpointing.job.compacting import Compacting
from checkpointing.job.credit import Credit
from checkpointing.job.drafts import Drafts
from checkpointing.job.ending import Ending
from checkpointing.job.epochs import EpochLog
from checkpointing.job.ids import CheckpointIds
from checkpointing.job.judgements import Judgements, to_judge
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.pause import Pause
from checkpointing.job.readers import SourceReaders, pacing_of
from checkpointing.job.restoring import acknowledged, commit_of, completed_store, ended_splits, operator_runs, positions
from checkpointing.job.rival import RivalWatch
from checkpointing.job.savepoints import Savepoints
from checkpointing.job.setup import JobSetup
from checkpointing.messages import DiscardFiles, Effect, EndTick, RivalSeen
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.snapshots import SubtaskSnapshot
from checkpointing.task import messages as task
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing
from checkpointing.task.subtasks import Subtasks


class Wiring:
    """Coordinator, subtasks, gates, sources and commit of one job, and the ways between them."""

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
        """Sources that were told of a checkpoint, and whose barriers wait for a cut of another job (A10)."""
        self.data_ended = restored is not None and restored.finished and self.readers.all_ended
        """True if the sources have sent the end of their data, or the cut had no row left."""
        for subtask in graph.subtasks() if self.data_ended else ended:
            self.subtasks.step(subtask, task.SubtaskFinished())

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
        """Give a vertex a segment that the cut holds in flight. It comes before all that is sent anew."""
        self.credit.sent(channel, segment.bytes)
        self.runs[channel.edge.downstream].collect(channel, segment, self.now_ms)

    def broadcast(self, subtask: SubtaskId, item: ChannelItem) -> None:
        """Send an item into every channel of a subtask."""
        for channel in self.credit.channels_from(subtask):
            self.arrive(channel, item)

    def end_data(self) -> None:
        """Send the end of the data from all sources, once: for a drain, or because every split has ended (B4)."""
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
        """Deliver queued facts to the coordinator; none before the hooks are restored. Return whether there was one."""
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
                self.to_subtask(_subtask(effect.task), task.CheckpointCompleted(effect.checkpoint))
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
                """The door asks for the coordinator's next timer itself, and nobody waits for the other answer."""
            case told.NotifyOperatorCoordinatorComplete() | told.NotifyOperatorCoordinatorAborted():
                """A source hears of completed checkpoints by NotifyComplete, when the tables show them (F2)."""
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
        """Whether a barrier was asked for, and waits for a cut of another job (A10)."""
        return bool(self._held)

    def release_barriers(self) -> None:
        """Send the barriers that are due, unless splits stand at different cuts of another job (A10)."""
        while self._held and not self.readers.cuts.hold_barrier:
            self._trigger(self._held.pop(0))

    def _trigger(self, effect: told.TriggerTask) -> None:
        """Trigger a subtask of a source.

        Its barrier follows its rows; for a drain, the end of data comes before the barrier.
        """
        subtask, properties = _subtask(effect.task), effect.properties
        if self.drafts.begins(effect.checkpoint, self.readers.rows_sent):
            self.readers.barrier_sent(last=properties.is_synchronous)
            self.epochs.triggered(effect.checkpoint, self.now_ms, self.readers.rows_sent)
        if properties.terminate:
            self.end_data()
        self.to_subtask(subtask, snapshot_for(effect, self.setup.config, self.now_ms))

    def _aborted(self, effect: told.NotifyCheckpointAborted) -> None:
        self._held = [held for held in self._held if held.checkpoint != effect.checkpoint]
        for aborted in self.drafts.aborted(effect):
            self.effects.extend((aborted, *self.rivals.failed(aborted)))
        self._forget(effect.checkpoint)
        latest = effect.latest_completed or NO_CHECKPOINT
        self.to_subtask(_subtask(effect.task), task.CheckpointAborted(effect.checkpoint, latest))

    def start_scheduler(self) -> None:
        """Start periodic triggering, if an interval is configured."""
        if self.setup.config.interval_ms is not None:
            self.tell(told.SchedulerStarted(self.setup.seed))

    def _forget(self, checkpoint: CheckpointId) -> None:
        self.epochs.forget(checkpoint)
        self.drafts.forget(checkpoint)
        self.bystanders.forget(checkpoint)

    def from_bystander(self, fact: Answer) -> None:
        """Tell the coordinator the answer of a source or a hook."""
        self.tell(fact)

    # -------------------------------------------------------------- commit

    def from_commit(self, effects: tuple[CommitEffect, ...]) -> None:
        """Route the effects of the commit: outcomes go to the coordinator, all others leave the job."""
        for effect in effects:
            match effect:
                case CheckpointCommitted():
                    left = self.drafts.leaves_rows(effect.record, self.readers.rows_sent)
                    left = left or (self.readers.all_ended and not effect.record.finished)
                    self.ending.completed(uncommitted=left)
                    self.compacting.committed(effect.record)
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
                    self._abort(run.vertex, effect.checkpoint, effect.reason)
                case gate.InFlightComplete():
                    run.in_flight = effect
                    self._store_in_flight(run)
                case gate.BarrierReceived():
                    self.epochs.received(run.vertex.id, effect)
                case gate.WakeGateAt():
                    run.gate_wake_ms = effect.at_ms
                case _:
                    """Nobody else needs to hear of blocked or resumed channels, or of ignored items."""

    def _store_in_flight(self, run: OperatorRun) -> None:
        """Give the subtasks their checkpoint's channel state, once they were asked for their snapshots (C5)."""
        complete, facts = run.in_flight_due()
        if complete is not None:
            self.epochs.overtaken(run.vertex.id, complete)
        for subtask, fact in facts:
            self.to_subtask(subtask, fact)

    # -------------------------------------------------------------- subtasks

    def request_snapshots(self, run: OperatorRun) -> None:
        """Let every subtask take its snapshot if the vertex is idle at its barrier and the checkpoint has not ended."""
        trigger = run.snapshot_due
        if trigger is None:
            return
        vertex, checkpoint = run.vertex.id, trigger.barrier.checkpoint
        self.epochs.passed(vertex, trigger, self.now_ms)
        self.drafts.passed(checkpoint, vertex, run.micro_batch)
        snapshots = run.take_snapshot(checkpoint)
        for subtask in run.vertex.subtasks():
            self.to_subtask(subtask, task.SnapshotRequested(trigger.barrier, unaligned=trigger.unaligned))
        self._store_in_flight(run)
        files = to_judge(vertex, self.runs, self.setup.graph, self.subtasks, checkpoint, self.commit.parent)
        verdict_due = self.judging.begin(vertex, checkpoint, files, snapshots)
        self.effects.extend(verdict_due)
        if not verdict_due:
            self.taken(vertex, checkpoint, snapshots)

    def taken(self, vertex: VertexId, checkpoint: CheckpointId, snapshots: tuple[SubtaskSnapshot, ...]) -> None:
        """Give every subtask its snapshot."""
        for index, snapshot in enumerate(snapshots):
            self.to_subtask(SubtaskId(vertex, index), task.SnapshotTaken(checkpoint, snapshot))

    def snapshot_failed(
        self, vertex: VertexId, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str
    ) -> None:
        """Decline the checkpoint, because the vertex has no snapshot for it (J3)."""
        self.drafts.failed(checkpoint, message)
        self.to_subtask(SubtaskId(vertex, 0), task.SnapshotFailed(checkpoint, reason))

    def not_staged(self, run: OperatorRun, message: str) -> None:
        """Decline the checkpoint that waits for rows which the vertex cannot write, if there is one (B2)."""
        waiting = run.not_staged()
        if waiting is not None:
            reason = CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
            if any(pending.id == waiting for pending in self.coordinator.pending):
                self.drafts.failed(waiting, message)
            self._abort(run.vertex, waiting, reason)

    def _abort(self, vertex: Vertex, checkpoint: CheckpointId, reason: CheckpointFailureReason) -> None:
        """Let every subtask decline, and cancel the barrier downstream."""
        for subtask in vertex.subtasks():
            self.to_subtask(subtask, task.AlignmentAborted(checkpoint, reason))

    def to_subtask(self, subtask: SubtaskId, fact: task.SubtaskFact) -> None:
        """Step a subtask, and route its effects."""
        self.from_subtask(subtask, self.subtasks.step(subtask, fact))

    def from_subtask(self, subtask: SubtaskId, effects: tuple[task.SubtaskEffect, ...]) -> None:
        """Route the effects of a subtask: barriers go downstream, answers to the coordinator."""
        for effect in effects:
            match effect:
                case task.BroadcastBarrier():
                    self.broadcast(subtask, effect.barrier)
                case task.BroadcastCancelMarker():
                    self.broadcast(subtask, CancelMarker(effect.checkpoint))
                case task.TakeSnapshot() if subtask.vertex not in self.runs:
                    snapshot = SubtaskSnapshot(position=self.readers.position(subtask))
                    self.to_subtask(subtask, task.SnapshotTaken(effect.checkpoint, snapshot))
                case task.CancelSnapshot():
                    self.effects.extend(self.judging.cancel(subtask.vertex, effect.checkpoint))
                case task.Acknowledge():
                    self._acknowledge(subtask, effect)
                case task.Decline():
                    message = self.drafts.said(effect.checkpoint)
                    self.tell(told.TaskDeclined(self.setup.job, subtask, effect.checkpoint, effect.reason, message))
                case _:
                    """An operator's snapshot lies on disk already, and `taken` gives it to the subtask."""

    def _acknowledge(self, subtask: SubtaskId, effect: task.Acknowledge) -> None:
        metrics = self.epochs.acknowledged(subtask, effect.checkpoint, self.now_ms)
        state = acknowledged(effect.snapshot)
        self.tell(told.TaskAcknowledged(self.setup.job, subtask, effect.checkpoint, state, metrics))


def _subtask(named: Task) -> SubtaskId:
    if not isinstance(named, SubtaskId):
        raise TypeError(f"{named!r} is no subtask of this job")
    return named
