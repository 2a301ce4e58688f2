"""The rooms of one job and the plain router between them: an effect addressed to another door goes there.

Nothing is decided here. What leaves the job is put into `effects`; what a gate, a subtask or the commit
tells the coordinator waits in a queue until `settle`, so that messages arrive in the order they were sent.
"""

from collections import deque
from collections.abc import Iterable

from checkpointing.channel_items import CancelMarker, ChannelItem, EndOfData, Segment, SourceSlice, StagedSegment
from checkpointing.commit.recovery import completion
from checkpointing.commit.two_phase import (
    CheckpointCommitted,
    CommitEffect,
    CommitEnded,
    CommitIdentity,
    Declined,
    IdsReserved,
    Saved,
    TwoPhaseCommit,
)
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.coordinator import CheckpointCoordinator
from checkpointing.coordinator.plan import Topology
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import messages as gate
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, CheckpointId, SubtaskId, VertexId
from checkpointing.job.barriers import barrier_for
from checkpointing.job.credit import Credit
from checkpointing.job.drafts import Drafts
from checkpointing.job.ending import Cause, Ending
from checkpointing.job.epochs import EpochLog
from checkpointing.job.hooks import MasterHooks
from checkpointing.job.ids import CheckpointIds
from checkpointing.job.judgements import Judgements
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.readers import SourceReaders, pacing_of
from checkpointing.job.restoring import acknowledged, completed_store, in_flight, operator_runs, positions
from checkpointing.job.savepoints import Savepoints
from checkpointing.job.setup import JobSetup
from checkpointing.messages import DiscardFiles, Effect, EndTick, NotifyAborted, SavepointKind
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.snapshots import SubtaskSnapshot
from checkpointing.task import messages as task
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing
from checkpointing.task.subtasks import Subtasks

OWN_REQUEST = "tick"
"""The name of the checkpoints that the tick itself wants: by rows, by quota, at its end."""


class Wiring:
    """Coordinator, subtasks, gates, sources and commit of one job, and the ways between them."""

    def __init__(self, setup: JobSetup) -> None:
        """Build every room at the restored cut."""
        config, graph, restored, claim = setup.config, setup.graph, setup.restored, setup.claim
        last = restored.checkpoint if restored else NO_CHECKPOINT
        self.setup = setup
        self.now_ms = 0
        self.effects: list[Effect] = []
        self._inbox: deque[told.CoordinatorFact] = deque()
        self.coordinator = CheckpointCoordinator(
            CoordinatorSettings.of(setup.job, config, tuple(hook.name for hook in graph.hooks)),
            Topology.of(graph, config.max_parallelism),
            completed_store(setup.retained, config.retained),
        )
        self.subtasks = Subtasks(
            SubtaskCheckpointing(subtask, last=last, checkpoint_after_finished=config.after_tasks_finish)
            for subtask in graph.subtasks()
        )
        self.runs = operator_runs(setup)
        self.readers = SourceReaders(graph.sources(), positions(graph, restored), pacing_of(setup))
        self.credit = Credit(graph, setup.credit_bytes)
        self.epochs = EpochLog(graph)
        self.ids = CheckpointIds(setup.claim)
        self.ending = Ending(setup.limits)
        identity = CommitIdentity(
            job=setup.job, generation=claim.generation, nonce=claim.nonce, max_parallelism=config.max_parallelism
        )
        versions = setup.versions
        self.commit = TwoPhaseCommit(
            graph, identity, parent=restored, versions=versions, at_version=setup.at_version, renamed=setup.renamed
        )
        self.judging = Judgements()
        self.savepoints = Savepoints(setup.retained, unaligned=config.unaligned)
        self.drafts = Drafts(graph)
        self.hooks = MasterHooks(graph.hooks)
        self._last_aborted = NO_CHECKPOINT

    # -------------------------------------------------------------- channels

    def arrive(self, channel: ChannelId, item: ChannelItem) -> None:
        """Put an item at the end of a channel."""
        if isinstance(item, SourceSlice | StagedSegment):
            self.credit.sent(channel, item.bytes)
        self.runs[channel.edge.downstream].gate.step(gate.ItemArrived(channel, item))

    def recover(self, channel: ChannelId, segment: Segment) -> None:
        """Give a vertex what the cut holds in flight for it: it meets that before anything that is sent anew."""
        self.credit.sent(channel, segment.bytes)
        self.runs[channel.edge.downstream].collect(channel, segment, self.now_ms)

    def broadcast(self, subtask: SubtaskId, item: ChannelItem) -> None:
        """Send an item into every channel of a subtask."""
        for channel in self.credit.channels_from(subtask):
            self.arrive(channel, item)

    # -------------------------------------------------------------- coordinator

    def shut_down(self, end: EndTick) -> None:
        """The tick ends: what is pending is aborted and every request answered, so that each of them has its end."""
        if self.hooks.restoring:
            self._inbox.clear()
        self.hooks.give_up()
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

    def settle(self) -> None:
        """Deliver what waits for the coordinator until nothing does; it hears nothing before the hooks are restored."""
        while self._inbox and not self.hooks.restoring:
            for effect in self.coordinator.step(self._inbox.popleft()):
                self._from_coordinator(effect)

    def _from_coordinator(self, effect: told.CoordinatorEffect) -> None:  # noqa: PLR0912 - one line an effect
        match effect:
            case told.FetchCheckpointId():
                self._fetch_id()
            case told.CreateLocation():
                self.tell(told.LocationCreated(effect.checkpoint))
            case told.AskHook() | told.CloseHook():
                self.hooks.told(effect, self.now_ms)
                self.effects.append(effect)
            case told.TriggerTask():
                self._trigger(effect)
            case told.CommitCheckpoint():
                draft = self.drafts.compose(effect, self.epochs.ended(effect.checkpoint, self.coordinator.statistics))
                self.from_commit(self.commit.offer(draft, self.now_ms))
            case told.NotifyCheckpointComplete():
                subtask = _subtask(effect.task)
                self.from_subtask(subtask, self.subtasks.step(subtask, task.CheckpointCompleted(effect.checkpoint)))
            case told.NotifyCheckpointAborted():
                self._aborted(effect)
            case told.RequestSucceeded():
                self._request_succeeded(effect)
            case told.RequestFailed():
                self._request_failed(effect)
            case told.FailJob():
                self.ending.failed(effect.reason, effect.message)
            case told.DiscardState():
                self.discard(effect.handles)
                self.tell(told.StateDiscarded(effect.checkpoint))
            case told.WakeCoordinatorAt() | told.AnswerAcknowledge():
                """The door asks for the coordinator's next timer itself; nobody waits for the answer."""
            case _:
                raise TypeError(f"the coordinator asked for {effect}, which no checkpoint of this job needs")

    def discard(self, paths: Iterable[str]) -> None:
        """Delete what nothing refers to any more, no savepoint either."""
        unpinned = self.savepoints.unpinned(paths)
        if unpinned:
            self.effects.append(DiscardFiles(unpinned))

    def _fetch_id(self) -> None:
        taken = self.ids.take()
        if taken is not None:
            self.tell(told.CheckpointIdFetched(taken))
        else:
            self.from_commit(self.commit.reserve(self.ids.further(self.now_ms)))

    def _trigger(self, effect: told.TriggerTask) -> None:
        """A source is told: its barrier follows what it has sent, and before that of a drain its data ends."""
        subtask = _subtask(effect.task)
        barrier = barrier_for(effect.checkpoint, effect.properties, self.setup.config, self.now_ms)
        if not self.drafts.knows(effect.checkpoint):
            self.readers.barrier_sent()
            self.epochs.triggered(effect.checkpoint, self.now_ms, self.readers.rows_sent)
            self.drafts.begun(effect.checkpoint, self.readers.rows_sent)
        if effect.properties.is_synchronous:
            self.readers.end()
        if effect.properties.terminate:
            self.broadcast(subtask, EndOfData())
        request = task.SnapshotRequested(
            barrier, synchronous=effect.properties.is_synchronous, advance_to_max=effect.properties.terminate
        )
        self.from_subtask(subtask, self.subtasks.step(subtask, request))

    def _aborted(self, effect: told.NotifyCheckpointAborted) -> None:
        subtask, latest = _subtask(effect.task), effect.latest_completed or NO_CHECKPOINT
        if effect.checkpoint != self._last_aborted:
            self._last_aborted = effect.checkpoint
            self.effects.append(NotifyAborted(effect.checkpoint, *self._why(effect.checkpoint)))
            self._forget(effect.checkpoint)
        self.from_subtask(subtask, self.subtasks.step(subtask, task.CheckpointAborted(effect.checkpoint, latest)))

    def _why(self, checkpoint: CheckpointId) -> tuple[CheckpointFailureReason, str]:
        said = self.drafts.failure(checkpoint)
        if said is not None:
            return said
        known = self.coordinator.statistics.of(checkpoint)
        reason = (known and known.failure) or CheckpointFailureReason.CHECKPOINT_DECLINED
        return reason, reason.message

    def _request_succeeded(self, effect: told.RequestSucceeded) -> None:
        if effect.request == OWN_REQUEST:
            self.ending.requested -= 1
            return
        answer, kind = self.savepoints.taken(effect.request, effect.checkpoint)
        self.effects.append(answer)
        if kind is not SavepointKind.PLAIN:
            self.ending.told(Cause.SAVEPOINT_TAKEN)

    def _request_failed(self, effect: told.RequestFailed) -> None:
        if effect.request != OWN_REQUEST:
            answer, kind = self.savepoints.failed(effect.request, effect.reason, effect.message)
            self.effects.append(answer)
            if kind is not SavepointKind.PLAIN:
                self._stop_failed(effect)
            return
        self.ending.requested -= 1
        if effect.reason.pre_flight or effect.reason is CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE:
            self.ending.failed(effect.reason, effect.message or effect.reason.message)

    def _stop_failed(self, effect: told.RequestFailed) -> None:
        """Behind the barrier of a stop nothing is read any more: from there the job can only fail (E5)."""
        if self.readers.ended:
            self.ending.failed(effect.reason, f"the savepoint of the stop failed: {effect.message}")
        elif self.ending.told(Cause.SAVEPOINT_FAILED):
            self.start_scheduler()

    def start_scheduler(self) -> None:
        """Trigger periodically, if the job is configured so."""
        if self.setup.config.interval_ms is not None:
            self.tell(told.SchedulerStarted(self.setup.seed))

    def _forget(self, checkpoint: CheckpointId) -> None:
        self.epochs.forget(checkpoint)
        self.drafts.forget(checkpoint)
        self.hooks.forget(checkpoint)

    def from_hook(self, fact: told.HookAnswered | told.HookFailed) -> None:
        """Tell the coordinator what a hook answered, and note in words why its checkpoint fails."""
        if isinstance(fact, told.HookFailed):
            self.drafts.failed(fact.checkpoint, fact.reason, fact.message)
        self.tell(fact)

    # -------------------------------------------------------------- commit

    def from_commit(self, effects: tuple[CommitEffect, ...]) -> None:
        """Route what the commit says: outcomes to the coordinator, the rest out."""
        for effect in effects:
            match effect:
                case CheckpointCommitted():
                    self.ending.completed(uncommitted=self._leaves_rows(effect.record))
                    self._stored(effect.record)
                    self.effects.append(completion(effect.record))
                case Saved():
                    self._stored(effect.record)
                case Declined():
                    self.drafts.failed(effect.checkpoint, effect.reason, effect.message)
                    self.tell(told.CommitFailed(effect.checkpoint, effect.reason, effect.message))
                case CommitEnded():
                    self.ending.failed(effect.reason, effect.message)
                case IdsReserved():
                    self._fetch_id()
                case _:
                    self.effects.append(effect)

    def _stored(self, record: CheckpointRecord) -> None:
        self._forget(record.checkpoint)
        self.savepoints.pin(record)
        self.tell(told.CommitSucceeded(record.checkpoint))

    def _leaves_rows(self, record: CheckpointRecord) -> bool:
        """Whether rows were sent that this cut does not show: after its barrier, or in flight at it."""
        sent_before = self.drafts.rows_sent_before(record.checkpoint)
        return self.readers.rows_sent > sent_before or any(True for _ in in_flight(record))

    # -------------------------------------------------------------- gates

    def from_gate(self, run: OperatorRun, effects: tuple[gate.GateEffect, ...]) -> None:
        """Route what a gate says to its vertex and the vertex's subtasks."""
        for effect in effects:
            match effect:
                case gate.Deliver():
                    run.collect(effect.channel, effect.segment, self.now_ms)
                case gate.DeliverEndOfData():
                    run.data_ended(effect.channel)
                case gate.TriggerCheckpoint():
                    run.trigger = effect
                    if not run.collected and not run.busy:
                        self.request_snapshots(run, effect)
                case gate.AbortCheckpoint():
                    for subtask in run.vertex.subtasks():
                        fact = task.AlignmentAborted(effect.checkpoint, effect.reason)
                        self.from_subtask(subtask, self.subtasks.step(subtask, fact))
                case gate.InFlightComplete():
                    self._in_flight(run, effect)
                case gate.BarrierReceived():
                    self.epochs.received(run.vertex.id, effect)
                case gate.WakeGateAt():
                    run.gate_wake_ms = effect.at_ms
                case _:
                    """Blocked and resumed channels, and what was ignored, are the gate's own affair."""

    def _in_flight(self, run: OperatorRun, effect: gate.InFlightComplete) -> None:
        """The first subtask carries the in-flight segments for all, after it was asked for its snapshot (C5)."""
        if run.trigger is not None and run.trigger.barrier.checkpoint == effect.checkpoint:
            run.in_flight = effect
            return
        self.epochs.overtaken(run.vertex.id, effect)
        for subtask in run.vertex.subtasks():
            channels = effect.channels if subtask.index == 0 else ()
            fact = task.InFlightStored(effect.checkpoint, channels)
            self.from_subtask(subtask, self.subtasks.step(subtask, fact))

    # -------------------------------------------------------------- subtasks

    def request_snapshots(self, run: OperatorRun, trigger: gate.TriggerCheckpoint) -> None:
        """The vertex is idle at its barrier: every subtask takes its snapshot, unless the checkpoint has ended."""
        checkpoint = trigger.barrier.checkpoint
        self.epochs.passed(run.vertex.id, trigger, self.now_ms)
        self.drafts.passed(checkpoint, run.vertex.id, run.micro_batch)
        snapshots = run.take_snapshot(checkpoint)
        staged = [file for subtask in run.vertex.subtasks() for file in self.subtasks[subtask].staged]
        judged = run.to_judge(staged, self.commit.parent)
        request = task.SnapshotRequested(trigger.barrier, unaligned=trigger.unaligned)
        asked = [(subtask, self.subtasks.step(subtask, request)) for subtask in run.vertex.subtasks()]
        for subtask, effects in asked:
            self.from_subtask(subtask, effects)
        held, run.in_flight = run.in_flight, None
        if held is not None:
            self._in_flight(run, held)
        if judged and task.TakeSnapshot(checkpoint) in asked[0][1]:
            self.effects.append(self.judging.begin(run.vertex.id, checkpoint, judged, snapshots))
        else:
            self.taken(run.vertex.id, checkpoint, snapshots)

    def taken(self, vertex: VertexId, checkpoint: CheckpointId, snapshots: tuple[SubtaskSnapshot, ...]) -> None:
        """Hand every subtask its snapshot."""
        for index, snapshot in enumerate(snapshots):
            subtask = SubtaskId(vertex, index)
            self.from_subtask(subtask, self.subtasks.step(subtask, task.SnapshotTaken(checkpoint, snapshot)))

    def snapshot_failed(
        self, vertex: VertexId, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str
    ) -> None:
        """The vertex has no snapshot to hand over: it declines the checkpoint (J3)."""
        self.drafts.failed(checkpoint, reason, message)
        subtask = SubtaskId(vertex, 0)
        self.from_subtask(subtask, self.subtasks.step(subtask, task.SnapshotFailed(checkpoint, reason)))

    def from_subtask(self, subtask: SubtaskId, effects: tuple[task.SubtaskEffect, ...]) -> None:
        """Route what a subtask says: barriers downstream, answers to the coordinator."""
        for effect in effects:
            match effect:
                case task.BroadcastBarrier():
                    self.broadcast(subtask, effect.barrier)
                case task.BroadcastCancelMarker():
                    self.broadcast(subtask, CancelMarker(effect.checkpoint))
                case task.TakeSnapshot():
                    self._take_position(subtask, effect.checkpoint)
                case task.CancelSnapshot():
                    self.effects.extend(self.judging.cancel(subtask.vertex, effect.checkpoint))
                case task.Acknowledge():
                    self._acknowledge(subtask, effect)
                case task.Decline():
                    _, message = self.drafts.failure(effect.checkpoint) or (None, "")
                    self.tell(told.TaskDeclined(self.setup.job, subtask, effect.checkpoint, effect.reason, message))
                case _:
                    """Steps that cost nothing here: snapshots lie on disk already."""

    def _take_position(self, subtask: SubtaskId, checkpoint: CheckpointId) -> None:
        """A source's snapshot is its position; an operator's is handed over by `taken`."""
        if subtask.vertex in self.runs:
            return
        snapshot = SubtaskSnapshot(position=self.readers.position(subtask))
        self.from_subtask(subtask, self.subtasks.step(subtask, task.SnapshotTaken(checkpoint, snapshot)))

    def _acknowledge(self, subtask: SubtaskId, effect: task.Acknowledge) -> None:
        metrics = self.epochs.acknowledged(subtask, effect.checkpoint, effect.snapshot, self.now_ms)
        state = acknowledged(effect.snapshot)
        self.tell(told.TaskAcknowledged(self.setup.job, subtask, effect.checkpoint, state, metrics))


def _subtask(named: told.Task) -> SubtaskId:
    if not isinstance(named, SubtaskId):
        raise TypeError(f"{named!r} is no subtask of this job")
    return named
