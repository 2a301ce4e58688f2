"""Plans, graphs, settings and each decision of the coordinator agree with the documentation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from checkpointing.config import CheckpointConfig, CheckpointingMode, RestartStrategyKind, StateBackendKind
from checkpointing.coordinator.completed import (
    DISCARD_ALWAYS,
    DISCARD_NEVER,
    DISCARD_UNLESS_STOPPED,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    CompletedVertex,
    SharedStateRegistry,
)
from checkpointing.coordinator.coordinator import (
    RestoreRefusedError,
    reset_hooks,
    restore_coordinators,
    restore_hooks,
)
from checkpointing.coordinator.coordinator_state import PeriodicScheduler
from checkpointing.coordinator.failure_policy import FailurePolicy
from checkpointing.coordinator.messages import ResetHook, ResetOperatorCoordinator, RestoreHook
from checkpointing.coordinator.plan import (
    PlannedEdge,
    PlannedVertex,
    Topology,
    compute_plan,
)
from checkpointing.coordinator.properties import CHECKPOINT, CheckpointProperties, savepoint, synchronous_savepoint
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.gate.messages import GateConfig
from checkpointing.graph import Hook, InvalidGraphError, JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, HookName, SubtaskId, TableName, VertexId
from checkpointing.tick.attempts import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
    strategy_of,
)
from spec.machines.judging import expect

PLANS: Final = "plans"
"""A plan triggers the tasks that no barrier can reach from upstream, and waits for all tasks."""
SUBSUMES: Final = "store-subsumes"
"""The store keeps the newest checkpoints, and the newest one that is no savepoint.

A file that only removed checkpoints use is deleted."""
RATE: Final = "fixed-rate"
RESTORES: Final = "restores"
"""Each hook and each operator coordinator gets its own state back.

A checkpoint that does not fit the job is refused.
"""
_NAMES: Final = ("a", "b", "c")
Edges = list[tuple[str, str]]
_parallelism = st.tuples(*(st.integers(1, 5) for _ in _NAMES))
_edges = st.lists(st.sampled_from([("a", "b"), ("a", "c"), ("b", "c")]), max_size=3)
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


@given(sizes=_parallelism, edges=_edges)
def test_plan_plan(sizes, edges):
    """The tasks that nothing feeds are triggered, and all take part."""
    topology = _topology(sizes, edges)
    plan, tasks = compute_plan(topology), tuple(topology.tasks())
    expect(plan.tasks == tasks, PLANS, f"{tasks} take part, {plan}")
    due = tuple(task for task in tasks if not {*_feeders(topology, str(task))})
    expect(plan.to_trigger == due, PLANS, f"{due} are reached by no barrier, told are {plan.to_trigger}")
    for vertex, made in zip(topology.vertices, plan.vertices, strict=True):
        due_vertex = CompletedVertex(vertex.name, vertex.tasks, vertex.max_parallelism)
        expect(made == due_vertex, PLANS, f"{made}, due is {due_vertex}")


@given(retained=st.integers(1, 3), handed=st.lists(_handed, max_size=6))
def test_plan_keep(retained, handed):
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
        expect(change.cleaned == tuple(c for c in cleaned if c.discard_on), SUBSUMES, f"{cleaned}, {change.cleaned}")
        expect(sorted(map(str, change.shared)) == unused, SUBSUMES, f"{unused} are unused, {change.shared} go")


@given(tolerable=st.sampled_from([None, 0, 1, 2]), ends=st.lists(_ends, max_size=8))
def test_plan_fail(tolerable, ends):
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


@given(periodic=st.booleans(), pause=st.sampled_from([7, 19, 20]), times=_times)
def test_plan_schedule(pause, times, periodic):
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


@given(
    known=st.sets(st.sampled_from(["x", "y", "z"])),
    own=st.lists(st.sampled_from(["x", "y", "z"]), unique=True),
    checkpoint=st.sampled_from([None, 7]),
    lenient=st.booleans(),
)
def test_plan_give_back(known, own, checkpoint, lenient):
    """A checkpoint has state of some hooks or coordinators, and the job has some."""
    states = {name: f"state of {name}" for name in known}
    id_ = None if checkpoint is None else CheckpointId(checkpoint)
    due = [
        ResetOperatorCoordinator(n, id_, states[n]) if n in known else ResetOperatorCoordinator(n, None) for n in own
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
    return Topology(tuple(vertices), tuple(PlannedEdge(*edge) for edge in edges))


def _feeders(topology: Topology, task: str) -> Iterator[str]:
    """Yield the tasks that send to this one."""
    for edge in topology.edges:
        for vertex in topology.vertices:
            if edge.downstream == task[0] and vertex.name == edge.upstream:
                yield from map(str, vertex.tasks)


def _completed(place: int, properties: CheckpointProperties, files: set[str], *, ours: bool) -> CompletedCheckpoint:
    shared = tuple((f"key of {file}", file) for file in sorted(files))
    return CompletedCheckpoint(
        id=CheckpointId(place),
        properties=properties,
        states={"a0": AcknowledgedState((f"private {place}",), shared)},
        discard_on=DISCARD_ALWAYS if ours else DISCARD_NEVER,
    )


def _leaving(kept: list[CompletedCheckpoint], retained: int) -> list[CompletedCheckpoint]:
    """Return the oldest checkpoints beyond `retained`, except those that always stay."""
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


# ------------------------------------------------------------------
# Tests job graphs. An invalid graph is refused. The answers of a valid graph follow from its vertices and edges.


GRAPHS: Final = "graphs-hold"
"""A graph has unique names, edges that point forward, and one writer for each table. Its answers follow from its
parts."""
_NAMES_OF_GRAPHS: Final = "abcd"
_vertices = st.lists(
    st.tuples(
        st.sampled_from(_NAMES_OF_GRAPHS),
        st.sampled_from([*VertexKind]),
        st.integers(1, 3),
        st.lists(st.sampled_from(["s/x", "s/y", "s/z"]), max_size=2),
    ),
    min_size=1,
    max_size=4,
)
_edges_of_graphs = st.lists(
    st.tuples(st.sampled_from(_NAMES_OF_GRAPHS), st.sampled_from(_NAMES_OF_GRAPHS), st.integers(0, 1)),
    max_size=3,
    unique=True,
)


@given(vertices=_vertices, edges=_edges_of_graphs, hooks=st.lists(st.sampled_from("hi"), max_size=2))
def test_graph_make(vertices, edges, hooks):
    """Make a graph of these parts."""
    made = tuple(
        Vertex(VertexId(name), kind, subtasks, tuple(Table(TableName(each), TableMode.APPEND) for each in tables))
        for name, kind, subtasks, tables in vertices
    )
    between = tuple(EdgeId(VertexId(one), VertexId(other), number) for one, other, number in edges)
    try:
        graph = JobGraph(made, between, tuple(Hook(HookName(name), 1) for name in hooks))
    except InvalidGraphError as error:
        expect(not _is_graph(vertices, edges, hooks), GRAPHS, f"{vertices}, {edges}, {hooks} are refused: {error}")
        return
    expect(_is_graph(vertices, edges, hooks), GRAPHS, f"{vertices}, {edges}, {hooks} are taken for a graph")
    _judge(graph)


@given(
    parallelism=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    there=st.lists(st.booleans(), min_size=6, max_size=6),
    kind=st.sampled_from([*VertexKind]),
)
def test_graph_make_forward(parallelism, there, kind):
    """Make a graph whose edges all point forward."""
    names = [VertexId(name) for name in _NAMES_OF_GRAPHS]
    pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    edges = [EdgeId(one, other, 0) for (one, other), is_there in zip(pairs, there, strict=True) if is_there]
    vertices = (Vertex(name, kind, subtasks) for name, subtasks in zip(names, parallelism, strict=True))
    _judge(JobGraph(tuple(vertices), tuple(edges)))


@given(split=st.sampled_from(["x1", "y1", "z"]), parts=st.sampled_from([(), ("x", "y", "z")]), bounded=st.booleans())
def test_graph_read_in_parts(split, parts, bounded):
    """Every part of a source but the last has an end, and the last one if the source is bounded."""
    source = Vertex(VertexId("a"), VertexKind.SOURCE, 1, bounded=bounded, parts=parts)
    part = "xyz".index(split[0]) if parts else 0
    ends = bounded or (bool(parts) and split[0] != "z")
    right = (source.part(split), source.ends(split)) == (part, ends)
    expect(right, GRAPHS, f"{split} of {parts}, bounded {bounded}: {source.part(split)}, {source.ends(split)}")


def _is_graph(
    vertices: list[tuple[str, VertexKind, int, list[str]]], edges: list[tuple[str, str, int]], hooks: list[str]
) -> bool:
    names = [name for name, *_ in vertices]
    tables = [table for *_, own in vertices for table in own]
    forward = all(one in names and other in names[names.index(one) + 1 :] for one, other, _ in edges)
    unique = all(len(set(each)) == len(each) for each in (names, tables, hooks))
    return unique and forward


def _judge(graph: JobGraph) -> None:
    """Raise unless the graph's answers follow from its vertices and edges."""
    subtasks: list[SubtaskId] = []
    sources = [vertex for vertex in graph.vertices if vertex.kind is VertexKind.SOURCE]
    operators = [vertex for vertex in graph.vertices if vertex.kind is not VertexKind.SOURCE]
    for vertex in graph.vertices:
        expect(graph.vertex(vertex.id) is vertex, GRAPHS, f"{vertex.id} is {graph.vertex(vertex.id)}")
        own = [SubtaskId(vertex.id, index) for index in range(vertex.parallelism)]
        subtasks += own
        into = [edge for edge in graph.edges if edge.downstream == vertex.id]
        expect([*graph.upstream(vertex.id)] == into, GRAPHS, f"{into} lead to {vertex.id}")
        channels = {ChannelId(edge, index) for edge in into for index in range(graph.vertex(edge.upstream).parallelism)}
        found = graph.channels_into(vertex.id)
        expect({*found} == channels and len(found) == len(channels), GRAPHS, f"{found} lead into {vertex.id}")
    expect([*graph.subtasks()] == subtasks, GRAPHS, f"the subtasks are {[*graph.subtasks()]}")
    right = [*graph.sources()] == sources and [*graph.operators()] == operators
    expect(right, GRAPHS, f"the sources are {graph.sources()}, the operators {graph.operators()}")
    tables = [table for vertex in graph.vertices for table in vertex.tables]
    expect([*graph.tables()] == tables, GRAPHS, f"the tables are {graph.tables()}")


# ------------------------------------------------------------------
# Lists the default of each setting, the outermost values that are accepted, and the first that are refused.
#
# The values come from the documentation of the settings. If a setting is valid only with another one, both are given
# together.


Given = Mapping[str, Any]
_UNALIGNED: Final[Given] = MappingProxyType({"unaligned": True})
_MEMORY: Final[Given] = MappingProxyType({"state_backend": StateBackendKind.MEMORY})
_FIXED: Final[Given] = MappingProxyType({"restart_strategy": RestartStrategyKind.FIXED_DELAY})
_RATE: Final[Given] = MappingProxyType({"restart_strategy": RestartStrategyKind.FAILURE_RATE})
_GROWING_OF_SETTING_BOUNDS: Final[Given] = MappingProxyType(
    {"restart_strategy": RestartStrategyKind.EXPONENTIAL_DELAY, "restart_delay_ms": 1}
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The default of a setting, the last values that are accepted, and the first that are refused."""

    default: object
    taken: tuple[object, ...] = ()
    refused: tuple[object, ...] = ()
    given: Given | None = None


BOUNDS: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        "interval_ms": Bounds(None, (10, 3_153_600_000_000), (9, 3_153_600_000_001, True)),
        "every_rows": Bounds(None, (1, 2**53 - 1), (0, 2**53, True)),
        "rows_of": Bounds(()),
        "mode": Bounds(CheckpointingMode.EXACTLY_ONCE),
        "timeout_ms": Bounds(600_000, (10,), (9, True)),
        "min_pause_ms": Bounds(0, (0, 31_536_000_000), (-1, 31_536_000_001, True)),
        "max_concurrent": Bounds(1, (1, 1_000), (0, 1_001, True)),
        "tolerable_failures": Bounds(0, (0, 2**31 - 1), (-1, 2**31, True)),
        "tolerable_poll_failures": Bounds(3, (0, 2**31 - 1), (-1, 2**31, True)),
        "retained": Bounds(1, (1, 10_000), (0, 10_001, True)),
        "retain_on_cancellation": Bounds(default=True),
        "unaligned": Bounds(default=False),
        "alignment_timeout_ms": Bounds(None, (0, 599_999), (-1, 600_000, True), _UNALIGNED),
        "max_alignment_bytes": Bounds(None, (-1, 1), (-2, 0, True)),
        "max_parallelism": Bounds(128, (1, 32_768), (0, 32_769, True)),
        "micro_batch_rows_max": Bounds(1_000_000, (1,), (0, True), MappingProxyType({"slice_rows_max": 1})),
        "slice_rows_max": Bounds(100_000, (1, 1_000_000), (0, 1_000_001, True)),
        "state_backend": Bounds(StateBackendKind.INCREMENTAL),
        "memory_state_bytes_max": Bounds(None, (1, 268_435_456), (0, 268_435_457, True), _MEMORY),
        "compact_files_min": Bounds(10, (None, 2, 1_000), (1, 1_001, True)),
        "compacted_bytes_max": Bounds(134_217_728, (1,), (0, True)),
        "restart_strategy": Bounds(RestartStrategyKind.NONE),
        "restart_attempts": Bounds(None, (1, 2**31 - 1), (0, 2**31, True), _FIXED),
        "restart_delay_ms": Bounds(None, (0,), (-1, True), _FIXED),
        "restart_failures_max": Bounds(None, (1, 2**31 - 1), (0, 2**31, True), _RATE),
        "restart_failures_interval_ms": Bounds(None, (1,), (0, True), _RATE),
        "restart_delay_max_ms": Bounds(None, (1,), (0, True), _GROWING_OF_SETTING_BOUNDS),
        "restart_multiplier": Bounds(None, (1.1, 1_000), (1, 1_000.1, float("nan"), True), _GROWING_OF_SETTING_BOUNDS),
        "restart_reset_after_ms": Bounds(None, (1,), (0, True), _GROWING_OF_SETTING_BOUNDS),
        "restart_jitter": Bounds(None, (0, 1), (-0.1, 1.1, True), _GROWING_OF_SETTING_BOUNDS),
    }
)

CONTRADICTIONS: Final[tuple[tuple[Given, Given], ...]] = (
    (_UNALIGNED, {"max_concurrent": 2}),
    (_UNALIGNED, {"mode": CheckpointingMode.AT_LEAST_ONCE}),
    (_UNALIGNED, {"max_alignment_bytes": 5}),
    ({"unaligned": True, "timeout_ms": 100}, {"alignment_timeout_ms": 100}),
    ({"unaligned": True, "alignment_timeout_ms": 100}, {"timeout_ms": 100}),
    ({}, {"alignment_timeout_ms": 5}),
    ({"mode": CheckpointingMode.AT_LEAST_ONCE}, {"max_alignment_bytes": -1}),
    ({"min_pause_ms": 1}, {"max_concurrent": 2}),
    ({"max_concurrent": 2}, {"min_pause_ms": 1}),
    ({}, {"memory_state_bytes_max": 5}),
    ({"state_backend": StateBackendKind.FULL}, {"memory_state_bytes_max": 5}),
    ({}, {"rows_of": ("a",)}),
    ({"every_rows": 3, "rows_of": ("a",)}, {"rows_of": ("a", "b", "a")}),
    ({"micro_batch_rows_max": 200_000}, {"slice_rows_max": 200_001}),
)
"""Settings that are accepted, and a further setting that contradicts them."""


# ------------------------------------------------------------------
# Tests that each number of a configuration arrives where it is used, and that contradictions are refused.
#
# All numbers of a configuration differ, so a test fails if one is used in a wrong place. The reference is written field
# by field, from what the documentation of the settings says.


ARRIVE: Final = "settings-arrive"
"""A setting has the effect that its documentation says, and no other."""
_SECOND_MS, _MINUTE_MS = 1_000, 60_000
_RESTARTS: Final[dict[RestartStrategyKind, tuple[str, ...]]] = {
    RestartStrategyKind.NONE: (),
    RestartStrategyKind.FIXED_DELAY: ("restart_attempts", "restart_delay_ms"),
    RestartStrategyKind.FAILURE_RATE: ("restart_failures_max", "restart_failures_interval_ms", "restart_delay_ms"),
    RestartStrategyKind.EXPONENTIAL_DELAY: (
        "restart_attempts",
        "restart_delay_ms",
        "restart_delay_max_ms",
        "restart_multiplier",
        "restart_reset_after_ms",
        "restart_jitter",
    ),
}
"""The settings that each restart strategy has."""
_FIELDS: Final = tuple(dict.fromkeys(field for fields in _RESTARTS.values() for field in fields))
_GROWING: Final = RestartStrategyKind.EXPONENTIAL_DELAY
MICRO_BATCH_ROWS: Final = 5
_numbers = st.permutations([11, 23, 37, 41, 53, 67, 71, 83])


@settings(max_examples=5 * settings.default.max_examples)
@given(kind=st.sampled_from([*RestartStrategyKind]), numbers=_numbers, left_out=st.sets(st.sampled_from(_FIELDS)))
def test_settings_restart(kind, numbers, left_out):
    """A strategy has its own numbers. A number that is left out is Flink's default."""
    given = {field: float(number) for field, number in zip(_FIELDS, numbers, strict=False)}
    given |= {"restart_jitter": numbers[-1] / 100, "restart_delay_max_ms": 100_000.0}
    own = {field: given[field] for field in _RESTARTS[kind] if field not in left_out}
    config = CheckpointConfig(restart_strategy=kind, **_whole(own))
    made, due = strategy_of(config), _strategy(kind, own)
    expect(made == due, ARRIVE, f"{own} make {made}, due is {due}")


@settings(max_examples=5 * settings.default.max_examples)
@given(kind=st.sampled_from([*RestartStrategyKind]), field=st.sampled_from(_FIELDS))
def test_settings_give_to_another_strategy(kind, field):
    """A number that the strategy does not have is refused."""
    value = {"restart_jitter": 0.5, "restart_multiplier": 900}.get(field, 2_000)
    taken = _is_taken({"restart_strategy": kind, field: value})
    expect(taken == (field in _RESTARTS[kind]), ARRIVE, f"{field} with {kind.value}: taken {taken}")


@settings(max_examples=5 * settings.default.max_examples)
@given(numbers=_numbers, periodic=st.booleans(), paused=st.booleans(), retains=st.booleans())
def test_settings_coordinate(numbers, periodic, paused, retains):
    """The coordinator has its own numbers. Its interval is never shorter than the pause."""
    interval, pause, timeout, concurrent, tolerable, *_ = numbers
    config = CheckpointConfig(
        interval_ms=interval if periodic else None,
        min_pause_ms=pause if paused else 0,
        timeout_ms=timeout,
        max_concurrent=1 if paused else concurrent,
        tolerable_failures=tolerable,
        retain_on_cancellation=retains,
    )
    made = CoordinatorSettings.of("job", config, ("hook",), ("source",))
    due = {
        "job": "job",
        "interval_ms": (max(interval, pause) if paused else interval) if periodic else None,
        "min_pause_ms": pause if paused else 0,
        "timeout_ms": timeout,
        "max_concurrent": 1 if paused else concurrent,
        "tolerable_failures": tolerable,
        "hooks": ("hook",),
        "operator_coordinators": ("source",),
        "discard_on": DISCARD_UNLESS_STOPPED if retains else DISCARD_ALWAYS,
    }
    for name, value in due.items():
        expect(getattr(made, name) == value, ARRIVE, f"{name} is {getattr(made, name)}, due is {value}")


@settings(max_examples=5 * settings.default.max_examples)
@given(
    unaligned=st.booleans(),
    mode=st.sampled_from([*CheckpointingMode]),
    concurrent=st.sampled_from([1, 2]),
    timeout=st.sampled_from([None, 99, 100, 101]),
    buffer=st.sampled_from([None, -2, -1, 0, 1]),
    pause=st.sampled_from([0, 1]),
)
def test_settings_contradict(unaligned, mode, concurrent, timeout, buffer, pause):
    """What cannot go together is refused, and all else is taken."""
    aligns = mode is CheckpointingMode.EXACTLY_ONCE
    alone = concurrent == 1
    due = (
        (aligns and alone if unaligned else timeout is None)
        and (timeout is None or timeout < 100)
        and (buffer is None or (aligns and not unaligned and (buffer == -1 or buffer > 0)))
        and (alone or not pause)
    )
    given = {
        "unaligned": unaligned,
        "mode": mode,
        "max_concurrent": concurrent,
        "timeout_ms": 100,
        "alignment_timeout_ms": timeout,
        "max_alignment_bytes": buffer,
        "min_pause_ms": pause,
    }
    expect(_is_taken(given) == due, ARRIVE, f"{given}: taken {not due}")


@settings(max_examples=5 * settings.default.max_examples)
@given(name=st.sampled_from([*BOUNDS]))
def test_settings_bound(name):
    """A setting has its default, is taken up to its bounds, and is refused beyond them."""
    bounds, default = BOUNDS[name], getattr(CheckpointConfig(), name)
    expect(default == bounds.default, ARRIVE, f"{name} is {default} by default, due is {bounds.default}")
    for value in bounds.taken:
        expect(_is_taken({**(bounds.given or {}), name: value}), ARRIVE, f"{name} {value} is refused")
    for value in bounds.refused:
        expect(not _is_taken({**(bounds.given or {}), name: value}), ARRIVE, f"{name} {value} is taken")


@settings(max_examples=5 * settings.default.max_examples)
@given(pair=st.sampled_from(CONTRADICTIONS))
def test_settings_contradict_once(pair):
    """Settings that are taken are refused if one setting is added that contradicts them."""
    given, wrong = pair
    expect(_is_taken({**given}), ARRIVE, f"{given} is refused")
    expect(not _is_taken({**given, **wrong}), ARRIVE, f"{given} is taken with {wrong}")


@settings(max_examples=5 * settings.default.max_examples)
@given(first=st.sampled_from([0, 1, 5, 300_000, 300_001]), longest=st.sampled_from([1, 4, 5, 6, None]))
def test_settings_grow(first, longest):
    """A growing delay begins with a millisecond or more, and not above its limit: five minutes by default."""
    given = {"restart_strategy": _GROWING, "restart_delay_ms": first, "restart_delay_max_ms": longest}
    due = 1 <= first <= (5 * _MINUTE_MS if longest is None else longest)
    expect(_is_taken(given) == due, ARRIVE, f"{given}: taken {not due}")


@settings(max_examples=5 * settings.default.max_examples)
@given(backend=st.sampled_from([*StateBackendKind]), most=st.sampled_from([None, 11, 4_000_000]))
def test_settings_keep_in_memory(backend, most):
    """Only state in memory has a limit. It is one mebibyte unless it is set."""
    in_memory = backend is StateBackendKind.MEMORY
    given = {"state_backend": backend, "memory_state_bytes_max": most, "every_rows": 13, "compact_files_min": 17}
    expect(_is_taken(given) == (in_memory or most is None), ARRIVE, f"{given}: wrongly taken or refused")
    if in_memory:
        made = CheckpointConfig(**given).memory_state_limit_bytes
        expect(made == (most or 1_048_576), ARRIVE, f"{given}: at most {made} bytes")


@settings(max_examples=5 * settings.default.max_examples)
@given(limit=st.sampled_from([-2, -1, 0, 1]))
def test_settings_buffer(limit):
    """A gate's limit of buffered bytes is a positive number, or -1 for no limit."""
    try:
        GateConfig(max_alignment_bytes=limit)
    except ValueError:
        expect(limit in (-2, 0), ARRIVE, f"a gate refuses the limit {limit}")
    else:
        expect(limit in (-1, 1), ARRIVE, f"a gate takes the limit {limit}")


@settings(max_examples=5 * settings.default.max_examples)
@given(slice_rows=st.sampled_from([4, 5, 6]), sources=st.sampled_from([(), ("a",), ("a", "b"), ("a", "a")]))
def test_settings_read(slice_rows, sources):
    """A slice fits into a micro-batch, and a source is counted once."""
    for every in (None, 10):
        given = {
            "slice_rows_max": slice_rows,
            "micro_batch_rows_max": MICRO_BATCH_ROWS,
            "rows_of": sources,
            "every_rows": every,
        }
        due = slice_rows <= MICRO_BATCH_ROWS and len({*sources}) == len(sources)
        due = due and (every is not None or not sources)
        expect(_is_taken(given) == due, ARRIVE, f"{given}: taken {not due}")


def _is_taken(given: dict[str, Any]) -> bool:
    try:
        CheckpointConfig(**given)
    except ValidationError:
        return False
    return True


def _whole(own: dict[str, float]) -> dict[str, Any]:
    return {
        name: value if name in ("restart_multiplier", "restart_jitter") else int(value) for name, value in own.items()
    }


def _strategy(kind: RestartStrategyKind, own: dict[str, float]) -> RestartStrategy:
    """Return the strategy that the documentation of the settings describes."""
    delay_ms = int(own.get("restart_delay_ms", _SECOND_MS))
    attempts = own.get("restart_attempts")
    if kind is RestartStrategyKind.FIXED_DELAY:
        return FixedDelay(int(attempts or 1), delay_ms)
    if kind is RestartStrategyKind.FAILURE_RATE:
        most, within = own.get("restart_failures_max", 1), own.get("restart_failures_interval_ms", _MINUTE_MS)
        return FailureRate(int(most), int(within), delay_ms)
    if kind is RestartStrategyKind.EXPONENTIAL_DELAY:
        return ExponentialDelay(
            initial_ms=delay_ms,
            max_ms=int(own.get("restart_delay_max_ms", 5 * _MINUTE_MS)),
            multiplier=own.get("restart_multiplier", 2.0),
            reset_after_ms=int(own.get("restart_reset_after_ms", 60 * _MINUTE_MS)),
            jitter=own.get("restart_jitter", 0.1),
            attempts=None if attempts is None else int(attempts),
        )
    return NoRestart()
