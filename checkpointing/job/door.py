"""The job door: coordinator, gates, subtasks and commit as one machine, `step(fact) -> effects`.

All order is decided here, so Spark and the simulator get the same interleavings. Between two facts the door is at rest:
every message between its parts is delivered, every idle vertex has what its gate lets through, and every split with
credit is being polled.
"""

from typing import assert_never

from checkpointing.channel_items import SourceSlice, StagedSegment
from checkpointing.coordinator import messages as told
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import messages as gate
from checkpointing.identifiers import CheckpointId
from checkpointing.job.bystanders import FromBystander
from checkpointing.job.ending import OWN_REQUEST, Cause, Next
from checkpointing.job.epochs import counts_of
from checkpointing.job.finishing import end_inputs, hand_end_on, split_ended, stop_scheduler
from checkpointing.job.judgements import Judged, objection
from checkpointing.job.lingering import ask_again, is_time
from checkpointing.job.operator_run import InputEnd, OperatorRun
from checkpointing.job.restoring import channel_now, check_fits, in_flight
from checkpointing.job.savepoints import HOLDS, refused
from checkpointing.job.setup import JobSetup
from checkpointing.job.waking import Waking
from checkpointing.job.wiring import Wiring
from checkpointing.messages import (
    CutRecorded,
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
)
from checkpointing.metadata.record import CheckpointCounts
from checkpointing.task.messages import FilesStaged


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
        """The checkpoints in progress, oldest first. A request that waits for its trigger does not count."""
        return tuple(pending.id for pending in self._job.coordinator.pending)

    @property
    def counts(self) -> CheckpointCounts:
        """How many checkpoints this door has begun, and how they ended (E6)."""
        return counts_of(self._job.coordinator.statistics)

    def start(self, now_ms: int) -> tuple[Effect, ...]:
        """Begin. The job is RUNNING once its source coordinators and master hooks are restored (A1)."""
        job = self._job
        job.now_ms = now_ms
        job.ending.started(now_ms)
        if self._setup.restored is not None:
            job.coordinator.statistics.restored(self._setup.restored.checkpoint)
        for channel, segment in in_flight(self._setup.restored):
            job.recover(channel_now(self._setup.graph, channel), segment)
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
                job.from_bystander(late)
            for why in job.bystanders.hooks.not_restored(job.now_ms):
                job.ending.failed(CheckpointFailureReason.TASK_FAILURE, why)
        for run in job.runs.values():
            if run.gate_wake_ms is not None and run.gate_wake_ms <= job.now_ms:
                run.gate_wake_ms = None
                job.from_gate(run, run.gate.step(gate.GateTimeAdvanced(job.now_ms)))

    def _from_bystander(self, fact: FromBystander) -> None:
        """Take an answer of a source's coordinator, or of a hook. A late one changes nothing."""
        heard = self._job.bystanders.heard(fact)
        if isinstance(heard, str):
            self._job.ending.failed(CheckpointFailureReason.TASK_FAILURE, heard)
        elif heard is not None:
            self._job.from_bystander(heard)

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
        """Count the failure. Behind the barrier of a stop it does not count: the next tick will meet it.

        A split that holds every barrier leaves no last checkpoint to take: then the tick fails at once (A10).
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
        for channel, segment in ran:
            job.credit.processed(channel, segment.bytes)
        job.epochs.worked(fact, sum(segment.rows for _, segment in ran))
        for subtask, output in zip(run.vertex.subtasks(), fact.outputs, strict=True):
            job.subtasks.step(subtask, FilesStaged(run.staged(output)))
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

        If the last pass changed nothing, and no timer is due, time alone changes nothing either.
        """
        while self._pass():
            pass

    def _pass(self) -> bool:
        """Give work to idle vertices, poll splits with credit, and decide whether the tick ends.

        Return whether that changed something, and the tick goes on.
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
        """Let every idle vertex take what its gate lets through, upstream ones first, so that barriers travel on."""
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
        """True if a vertex or a cut waits for a barrier, none is on its way, and there is no interval that brings one.

        A cut waits here if its own checkpoint failed before the barrier was sent (A10).
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
        """Return whether the vertex may send.

        A vertex that waits for a barrier holds credit, and must not block the barrier.
        """
        if self._job.vertex_waits and self._job.coordinator.pending:
            return True
        return all(self._job.credit.has(subtask) for subtask in run.vertex.subtasks())

    # -------------------------------------------------------------- the end

    def _decide_end(self) -> Next | EndTick:
        """Ask the `Ending` what to do. How the splits stand matters only when nothing moves."""
        job = self._job
        quiet = self._is_quiet()
        decision = job.ending.next(
            job.now_ms,
            quiet=quiet,
            in_doubt=job.commit.in_doubt,
            idle=quiet and job.readers.all_idle,
            spent=quiet and job.readers.quota_spent,
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
        """Read no more rows, once the tick is about to end."""
        self._job.readers.stopped = self._job.readers.stopped or not self._job.ending.reads

    def _is_quiet(self) -> bool:
        """Return whether nothing moves: no poll, no work, no checkpoint that somebody waits for.

        A periodic checkpoint of no rows does not count. With a short interval there would always be another one.
        """
        job = self._job
        if job.bystanders.restoring or job.readers.polling or job.commit.in_doubt:
            return False
        if job.ending.requested or job.savepoints.under_way:
            return False
        if job.ending.uncommitted and job.coordinator.pending:
            return False
        return not any(run.at_work for run in job.runs.values())
