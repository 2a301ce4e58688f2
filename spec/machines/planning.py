"""Tests single decisions of a coordinator: plans, which checkpoints leave its store, its timer, and restores.

Each step draws a new case, and computes the due answer in the simplest way that follows from the documentation.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.coordinator.completed import (
    DISCARD_ALWAYS,
    DISCARD_NEVER,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    CompletedVertex,
    FinishedState,
    SharedStateRegistry,
)
from checkpointing.coordinator.coordinator import (
    RestoreRefusedError,
    check_finished,
    reset_hooks,
    restore_coordinators,
    restore_hooks,
)
from checkpointing.coordinator.coordinator_state import PeriodicScheduler
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import ResetHook, ResetOperatorCoordinator, RestoreHook
from checkpointing.coordinator.plan import (
    EdgePattern,
    PlannedEdge,
    PlannedVertex,
    PlanRefusedError,
    Topology,
    compute_plan,
)
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties, savepoint, synchronous_savepoint
from checkpointing.coordinator.task import AcknowledgedState, Task, TaskState
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from spec.machines.judging import expect

PLANS: Final = "plans"
"""A plan triggers the running tasks that no barrier can reach, and waits for all running ones."""
SUBSUMES: Final = "store-subsumes"
"""The store keeps the newest checkpoints, and the newest one that is no savepoint. Files that only others use are
deleted."""
RATE: Final = "fixed-rate"
RESTORES: Final = "restores"
"""Hooks and operator coordinators get their own state back. A checkpoint that does not fit the job is refused."""
_NAMES: Final = ("a", "b", "c")
Edges = list[tuple[tuple[str, str], EdgePattern]]
_parallelism = st.tuples(*(st.integers(1, 5) for _ in _NAMES))
_edges = st.lists(
    st.tuples(st.sampled_from([("a", "b"), ("a", "c"), ("b", "c")]), st.sampled_from([*EdgePattern])), max_size=3
)
_finished = st.one_of(st.just(0), st.integers(0, 2**15 - 1))
"""One bit for each task. It is 1 if the task has finished."""
_strange = st.sampled_from([None, None, None, None, 0, 2])
_kinds = st.sampled_from(
    [CHECKPOINT, CHECKPOINT, savepoint(unaligned=False), synchronous_savepoint(unaligned=False, terminate=False)]
)
_handed = st.tuples(_kinds, st.sets(st.sampled_from("pqr")), st.booleans())
_ends = st.tuples(
    _kinds,
    st.sampled_from([None, Reason.CHECKPOINT_EXPIRED, Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE, Reason.QUALITY]),
    st.integers(1, 4),
)
"""The kind of a checkpoint, why it failed (None if it succeeded), and its id."""
_times = st.lists(st.tuples(st.sampled_from(["start", "fire", "fire", "stop", "postpone"]), st.integers(0, 60)))


class PlanMachine(RuleBasedStateMachine):
    """Draws one case after the other. Keeps nothing in between."""

    @rule(
        sizes=_parallelism,
        edges=_edges,
        finished=_finished,
        strange=_strange,
        ends=st.sampled_from([True, True, False]),
    )
    def plan(
        self,
        sizes: tuple[int, ...],
        edges: Edges,
        finished: int,
        strange: int | None,
        *,
        ends: bool,
    ) -> None:
        """Tasks run or have finished. One task may be in another state."""
        topology = _topology(sizes, edges)
        for bits in (finished, ~finished, finished >> 1):
            of = {
                task: TaskState.FINISHED if bits >> place & 1 else TaskState.RUNNING
                for place, task in enumerate(topology.tasks())
            }
            if strange is not None:
                of[[*of][strange % len(of)]] = TaskState.DEPLOYING
            self._judge_plan(topology, of, ends=ends)

    def _judge_plan(self, topology: Topology, of: dict[Task, TaskState], *, ends: bool) -> None:
        fits = {*of.values()} <= ({TaskState.RUNNING, TaskState.FINISHED} if ends else {TaskState.RUNNING})
        try:
            plan = compute_plan(topology, of, after_tasks_finish=ends)
        except PlanRefusedError as refused:
            right = not fits and refused.reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
            expect(right, PLANS, f"{of} is refused: {refused}")
            return
        expect(fits, PLANS, f"{of} is planned")
        running = tuple(task for task in of if of[task] is TaskState.RUNNING)
        expect((plan.to_acknowledge, plan.to_commit) == (running, running), PLANS, f"{running} run, {plan}")
        expect(plan.finished == tuple(task for task in of if task not in running), PLANS, plan)
        due = tuple(task for task in running if not {*_feeders(topology, str(task))} & {*running})
        expect(plan.to_trigger == due, PLANS, f"{due} are reached by no barrier, told are {plan.to_trigger}")
        for vertex, made in zip(topology.vertices, plan.vertices, strict=True):
            still = [task for task in vertex.tasks if task in running]
            state = FinishedState.PARTIALLY_FINISHED if still else FinishedState.FULLY_FINISHED
            state = FinishedState.RUNNING if len(still) == len(vertex.tasks) else state
            due_vertex = CompletedVertex(vertex.name, vertex.tasks, vertex.max_parallelism, state)
            expect(made == due_vertex, PLANS, f"{made}, due is {due_vertex}")

    @rule(retained=st.integers(1, 3), handed=st.lists(_handed, max_size=6))
    def keep(self, retained: int, handed: Sequence[tuple[CheckpointProperties, set[str], bool]]) -> None:
        """Checkpoints and savepoints come into a store, each with the shared files that it uses."""
        store = CompletedCheckpointStore(retained, SharedStateRegistry())
        kept: list[CompletedCheckpoint] = []
        gone: list[CompletedCheckpoint] = []
        used: dict[str, int] = {}
        for place, (properties, files, ours) in enumerate(handed, start=1):
            made = _completed(place, properties, files, ours=ours)
            for file in files:
                for late in (made.id, CheckpointId(max(1, place - 1))):
                    store.registry.register(f"key of {file}", file, late)
                used[file] = place
            kept.append(made)
            leaving = _leaving(kept, retained)
            expect(store.would_subsume(made) == tuple(leaving), SUBSUMES, f"{leaving} would leave {kept}")
            change = store.add(made)
            kept = [each for each in kept if each not in leaving]
            gone += leaving
            said = (change.subsumed, store.checkpoints, store.latest_id, store.latest)
            expect(said == (tuple(leaving), tuple(kept), made.id, made), SUBSUMES, f"{said}: due are {leaving}, {kept}")
            lowest = min((each.id for each in kept if not each.properties.is_savepoint), default=CheckpointId(0))
            cleaned = tuple(each for each in gone if each.id < lowest)
            gone = [each for each in gone if each not in cleaned]
            unused = sorted(file for file, newest in used.items() if newest < lowest)
            used = {file: newest for file, newest in used.items() if file not in unused}
            expect(
                change.cleaned == tuple(c for c in cleaned if c.discard_on), SUBSUMES, f"{cleaned}, {change.cleaned}"
            )
            expect(sorted(map(str, change.shared)) == unused, SUBSUMES, f"{unused} are unused, {change.shared} go")

    @rule(tolerable=st.sampled_from([None, 0, 1, 2]), ends=st.lists(_ends, max_size=8))
    def fail(self, tolerable: int | None, ends: Sequence[tuple[CheckpointProperties, Reason | None, int]]) -> None:
        """Checkpoints fail or succeed. One may fail twice, and late ones fail after a newer one has succeeded."""
        policy, in_a_row, succeeded = FailurePolicy(tolerable), set[int](), 0
        for properties, reason, place in ends:
            if reason is None:
                policy.succeeded(CheckpointId(place))
                in_a_row = set() if place > succeeded else in_a_row
                succeeded = max(succeeded, place)
                continue
            told = policy.failed(properties, reason, CheckpointId(place))
            if reason is Reason.CHECKPOINT_EXPIRED and not properties.is_savepoint and place > succeeded:
                in_a_row.add(place)
            too_many = tolerable is not None and len(in_a_row) > tolerable
            in_a_row = set() if too_many else in_a_row
            fails = too_many or reason is Reason.QUALITY
            right = (told is not None) == fails and (told is None or told.reason is reason)
            expect(right, "failures", f"{ends}, {tolerable} may fail: {told} for {place}")

    @rule(periodic=st.booleans(), pause=st.sampled_from([7, 19, 20]), times=_times)
    def schedule(self, pause: int, times: list[tuple[str, int]], *, periodic: bool) -> None:
        """A timer is started, fires in time or late, is put off, and is stopped."""
        interval, now = 20, 0
        timer = PeriodicScheduler(interval if periodic else None, pause)
        due: int | None = None
        runs = False
        for what, later in times:
            now += later
            if what == "start":
                runs = True
                timer.start(now, seed=later)
                in_time = timer.next_ms is not None and now + pause <= timer.next_ms <= now + interval
                expect(in_time if periodic else timer.next_ms is None, "pause", f"at {now}: {timer}")
                due = timer.next_ms
            elif what == "fire":
                expect(timer.fire(now) == (due is not None), RATE, f"{timer} was due at {due}")
                due = _next(due, now, interval)
            elif what == "stop":
                runs, due = False, None
                timer.stop()
            else:
                due = now + 1 if runs and periodic else due
                timer.postpone_to(now + 1)
            expect((timer.next_ms, timer.running) == (due, runs), RATE, f"{what} at {now}: {timer}, due at {due}")

    @rule(edges=_edges, finished=st.lists(st.sampled_from([None, *FinishedState]), min_size=3, max_size=3))
    def check(self, edges: Edges, finished: list[FinishedState | None]) -> None:
        """A vertex that still runs may not lie before a vertex that has finished."""
        said = {name: state for name, state in zip(_NAMES, finished, strict=True) if state is not None}
        vertices = tuple(CompletedVertex(name, (), 128, state) for name, state in said.items())
        needs = {*EdgePattern}, {EdgePattern.ALL_TO_ALL}
        strict = {FinishedState.FULLY_FINISHED: needs[0], FinishedState.PARTIALLY_FINISHED: needs[1]}
        wrong = [
            (up, down)
            for (up, down), pattern in edges
            if pattern in strict.get(said.get(down, FinishedState.RUNNING), ())
            and said.get(up) is not FinishedState.FULLY_FINISHED
        ]
        checkpoint = CompletedCheckpoint(id=CheckpointId(3), properties=CHECKPOINT, vertices=vertices)
        try:
            check_finished(checkpoint, _topology((1, 1, 1), edges))
        except RestoreRefusedError:
            expect(bool(wrong), RESTORES, f"{said} is refused for {edges}")
        else:
            expect(not wrong, RESTORES, f"{said} is taken, although {wrong}")

    @rule(
        known=st.sets(st.sampled_from(["x", "y", "z"])),
        own=st.lists(st.sampled_from(["x", "y", "z"]), unique=True),
        checkpoint=st.sampled_from([None, 7]),
        lenient=st.booleans(),
    )
    def give_back(self, known: set[str], own: list[str], checkpoint: int | None, *, lenient: bool) -> None:
        """A checkpoint has state of some hooks or coordinators, and the job has some."""
        states = {name: f"state of {name}" for name in known}
        id_ = None if checkpoint is None else CheckpointId(checkpoint)
        due = [
            ResetOperatorCoordinator(n, id_, states[n]) if n in known else ResetOperatorCoordinator(n, None)
            for n in own
        ]
        expect([*restore_coordinators(id_, states, own)] == due, RESTORES, f"{states} for {own}")
        expect([*reset_hooks(own)] == [ResetHook(name) for name in own], RESTORES, f"{own} are reset")
        fits = known <= {*own} or lenient
        try:
            given = [*restore_hooks(CheckpointId(7), states, own, allow_non_restored=lenient)]
        except RestoreRefusedError:
            expect(not fits, RESTORES, f"{states} is refused for {own}")
        else:
            right = [RestoreHook(name, CheckpointId(7), states.get(name)) for name in own]
            expect(fits and given == right, RESTORES, f"{states} for {own}: {given}")


def _topology(sizes: tuple[int, ...], edges: Edges) -> Topology:
    vertices = (
        PlannedVertex(name, tuple(f"{name}{index}" for index in range(size)), 100 + size)
        for name, size in zip(_NAMES, sizes, strict=True)
    )
    return Topology(tuple(vertices), tuple(PlannedEdge(up, down, pattern) for (up, down), pattern in edges))


def _feeders(topology: Topology, task: str) -> Iterator[str]:
    """Yield the tasks that send to this one. Pointwise, neighbours feed neighbours, as evenly as it goes."""
    vertices = {vertex.name: vertex for vertex in topology.vertices}
    place, here = int(task[1:]), len(vertices[task[0]].tasks)
    for edge in topology.edges:
        feeding = len(vertices[edge.upstream].tasks)
        for index in range(feeding) if edge.downstream == task[0] else ():
            fed, feeder = ((index + 1) * here - 1) // feeding, place * feeding // here
            near = index == feeder if feeding <= here else place == fed
            if near or edge.pattern is EdgePattern.ALL_TO_ALL:
                yield f"{edge.upstream}{index}"


def _completed(place: int, properties: CheckpointProperties, files: set[str], *, ours: bool) -> CompletedCheckpoint:
    shared = tuple((f"key of {file}", file) for file in sorted(files))
    return CompletedCheckpoint(
        id=CheckpointId(place),
        properties=properties,
        states={"a0": AcknowledgedState((f"private {place}",), shared)},
        discard_on=DISCARD_ALWAYS if ours else DISCARD_NEVER,
    )


def _leaving(kept: list[CompletedCheckpoint], retained: int) -> list[CompletedCheckpoint]:
    """Return the oldest ones beyond `retained`, without those that always stay."""
    stay = [kept[-1]]
    ordinary = [each for each in kept if not each.properties.is_savepoint]
    if ordinary and not kept[-1].properties.is_synchronous:
        stay.append(ordinary[-1])
    return [each for each in kept if each not in stay][: max(0, len(kept) - retained)]


def _next(due: int | None, now: int, interval: int) -> int | None:
    if due is None:
        return None
    if now < due:
        return now + interval
    while due <= now:
        due += interval
    return due
