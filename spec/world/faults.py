"""The meaning of a seed: the job's configuration, the speed of each effect, and how often it fails.

Each seed draws a random subset of the faults (swarm testing). So rare combinations occur, and many runs lack the faults
that would hide others.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.config import UNLIMITED, CheckpointConfig, CheckpointingMode
from checkpointing.gate import GatePolicy
from checkpointing.graph import Hook
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, JobName, SplitId, VertexId
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord, HookState, VertexRecord
from spec.reference.pipeline import HOOKS, MAX_PARALLELISM, ORDERS, PAYMENTS

LONGEST_MS = 600_000
SOMETIMES, OFTEN, EVENLY = 0.3, 0.4, 0.5
LONG_RUNS = 0.04
"""The share of long runs. A short run takes a third of the time and finds most bugs. Some bugs need many rows."""
LAST_INTERVALS_MS = {1: 1_000, 2: 200}
"""Maps the number of checkpoints that a job takes at a time to the shortest interval of its last tick.

No fault strikes in a last tick, so a few checkpoints are enough. Of two at a time, the newer one must have a chance to
complete first.
"""
MANY = 12
"""How many checkpoints in a row may fail in a job that should survive many failures.

A hundred would only repeat the same case.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities: `crash` for each turn of a tick, `optimize` for each tick, the others for each effect."""

    crash: float = 0.0
    zombie: float = 0.0
    """An effect that was outstanding at a crash is still carried out later."""
    micro_batch_fails: float = 0.0
    micro_batch_not_staged: float = 0.0
    """The micro-batch's files cannot be written."""
    poll_fails: float = 0.0
    suite_fails: float = 0.0
    judge_fails: float = 0.0
    """The suites give no verdict."""
    table_problem: float = 0.0
    check_fails: float = 0.0
    """The tables cannot be looked at."""
    publish_fails: float = 0.0
    reply_lost: float = 0.0
    """AppendRow wrote the entry, but the reply is lost."""
    write_lost: float = 0.0
    """AppendRow wrote nothing, and there is no reply."""
    compaction_fails: float = 0.0
    optimize: float = 0.0
    stop: float = 0.0
    """For each tick: somebody asks it to stop."""
    race: float = 0.0
    """For each tick: another coordinator takes over while it runs."""
    hook_fails: float = 0.0
    hook_hangs: float = 0.0
    """The hook never answers."""
    hook_state_is_bad: float = 0.0
    hook_restore_fails: float = 0.0


NONE = Faults()
_WORST = Faults(
    crash=0.02,
    zombie=0.6,
    micro_batch_fails=0.03,
    poll_fails=0.01,
    suite_fails=0.08,
    table_problem=0.1,
    publish_fails=0.03,
    reply_lost=0.08,
    write_lost=0.08,
    optimize=0.8,
    stop=0.6,
    race=0.6,
)


_DECLINING = {"judge_fails": 0.3, "check_fails": 0.3, "micro_batch_not_staged": 0.3}
"""Faults that decline a checkpoint and let the job go on."""
_DRAWN_APART = {*_DECLINING, "compaction_fails"}
_HOOKS_WORST = {"hook_fails": 0.1, "hook_hangs": 0.1, "hook_state_is_bad": 0.05, "hook_restore_fails": 0.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run. It has the configuration of all ticks. Differences from tick to tick are drawn later."""

    faults: Faults
    policy: GatePolicy
    config: dict[str, Any]
    """Fields of `CheckpointConfig`, without those of the policy."""
    rows_per_epoch: dict[VertexId, int]
    rows: dict[SplitId, int]
    """How many rows each split has at the end of the run."""
    ticks: int
    slow_split: SplitId | None
    latency_ms: dict[str, int]
    """The longest time that each kind of effect takes."""
    linger_ms: int
    idle_poll_ms: int
    credit_bytes: int
    ids_per_claim: int | None
    hooks: tuple[Hook, ...] = ()
    """The pipeline's master hooks."""
    parallelisms: tuple[int, ...] = field(default=(1, 2, 3))
    bounded: tuple[VertexId, ...] = ()
    """The sources that end, under their names in the first release."""
    parted: bool = False
    """True if the orders are read in parts."""
    outside: bool = False
    """True if outside sinks get the rows of some append tables."""
    voters: int = 0
    """How many of the three sinks vote on each checkpoint."""
    broadcasts: bool = False
    """True if a vertex has broadcast state."""
    overwrites: bool = False
    """True if the pipeline has an overwrite table."""
    counts: bool = False
    """True if suites count rows, so that they also judge an epoch without rows."""
    times: bool = False
    """True if rows have times, and a vertex has windows."""
    closes: bool = False
    """True if event time goes on by the clock while a source is at rest."""

    @property
    def mode(self) -> CheckpointingMode:
        """The mode: exactly once, or at least once."""
        at_least_once = self.policy is GatePolicy.AT_LEAST_ONCE
        return CheckpointingMode.AT_LEAST_ONCE if at_least_once else CheckpointingMode.EXACTLY_ONCE

    def checkpoint_config(self, *, patient: bool) -> CheckpointConfig:
        """Return the configuration of a tick, or with `patient` that of a last tick.

        In a last tick, no checkpoint expires and an alignment may hold any number of bytes. A short interval is
        lengthened.
        """
        settings = {**_of_policy(self.policy), **self.config, "mode": self.mode}
        if patient:
            settings |= {"timeout_ms": LONGEST_MS}
            if settings.get("interval_ms") is not None:
                shortest_ms = LAST_INTERVALS_MS[settings["max_concurrent"]]
                settings |= {"interval_ms": max(shortest_ms, settings["interval_ms"])}
            if settings.get("max_alignment_bytes") is not None:
                settings |= {"max_alignment_bytes": UNLIMITED}
        return CheckpointConfig(max_parallelism=MAX_PARALLELISM, **settings)


def draw(random: Random, *, long: bool = False) -> Scenario:
    """Draw the scenario of a run. It is long if `long` is set, and otherwise with the probability `LONG_RUNS`."""
    is_long = random.random() < LONG_RUNS or long
    policy = random.choice(list(GatePolicy))
    overtaking = policy in (GatePolicy.UNALIGNED, GatePolicy.ALTERNATING)
    slice_rows = random.choice([1, 3, 8, 20])
    return Scenario(
        faults=_swarm(random),
        policy=policy,
        config={
            **_triggers(random),
            "max_concurrent": 1 if overtaking else random.choice([1, 2]),
            "timeout_ms": random.choice([LONGEST_MS, LONGEST_MS, 400]),
            "tolerable_failures": random.choice([0, 2, MANY]),
            "tolerable_poll_failures": 0,
            "retained": random.choice([1, 2, 3]),
            "compact_files_min": None,
            "slice_rows_max": slice_rows,
            "micro_batch_rows_max": slice_rows * random.choice([1, 4, 100]),
        },
        rows_per_epoch={PAYMENTS: random.choice([2, 5])} if random.random() < SOMETIMES else {},
        rows={
            split: random.choice([0, 5, 12, 20] if is_long else [0, 1, 3, 5])
            for split in (SplitId("a"), SplitId("b"), SplitId("c"))
        },
        ticks=random.choice([1, 2, 3, 4] if is_long else [1, 1, 2]),
        slow_split=random.choice([None, None, SplitId("a"), SplitId("c")]),
        latency_ms={"poll": 20, "run": random.choice([20, 200]), "store": random.choice([5, 50])},
        linger_ms=random.choice([0, 30, 1_000 if is_long else 300]),
        idle_poll_ms=random.choice([1_600 if is_long else 8_000, 2_000]),
        credit_bytes=random.choice([30, 200, 1_000_000]),
        ids_per_claim=random.choice([None, None, 2]),
    )


def _triggers(random: Random) -> dict[str, Any]:
    triggers: dict[str, Any] = {}
    if random.random() < EVENLY:
        triggers["interval_ms"] = random.choice([80, 300])
    if random.random() < EVENLY:
        triggers["every_rows"] = random.choice([3, 10])
        if random.random() < EVENLY:
            triggers["rows_of"] = (ORDERS,)
    return triggers


def _swarm(random: Random) -> Faults:
    chosen = {
        name: getattr(_WORST, name) * random.choice([0.3, 1.0])
        for name in Faults.__dataclass_fields__
        if not name.startswith("hook_") and name not in _DRAWN_APART and random.random() < OFTEN
    }
    return replace(NONE, **chosen)


def hooked(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with master hooks.

    The hooks have their own random numbers, so that all other runs stay as they were.
    """
    random = Random(f"hooks of {seed}")  # noqa: S311 - a run must be repeatable
    chosen = {name: often for name, often in _HOOKS_WORST.items() if random.random() < OFTEN}
    return replace(scenario, hooks=random.choice([HOOKS, HOOKS, HOOKS[:1]]), faults=replace(scenario.faults, **chosen))


def declining(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with faults that the job may survive. These have their own random numbers, as hooks have.

    Channels have little room, so that a vertex whose files cannot be written soon holds others up.
    """
    random = Random(f"declines of {seed}")  # noqa: S311 - a run must be repeatable
    chosen = {name: often * random.choice([0.3, 1.0]) for name, often in _DECLINING.items()}
    return replace(scenario, faults=replace(scenario.faults, **chosen), credit_bytes=30)


def strict(scenario: Scenario, *, rejects: bool, held_bytes_max: int | None) -> Scenario:
    """Return the scenario with suites and tables that refuse more often, and with less room for waiting rows."""
    if rejects:
        scenario = replace(scenario, faults=replace(scenario.faults, suite_fails=0.3, table_problem=0.3))
        scenario = _crowded(scenario)
    if held_bytes_max is None:
        return scenario
    return replace(
        scenario,
        policy=GatePolicy.ALIGNED_BUFFERING,
        config={
            **scenario.config,
            "max_alignment_bytes": held_bytes_max,
            "slice_rows_max": 1,
            "micro_batch_rows_max": 3,
        },
        slow_split=SplitId("a"),
        linger_ms=0,
        credit_bytes=1_000_000,
        latency_ms={**scenario.latency_ms, "run": 200},
    )


def backed_up(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with frequent unaligned checkpoints, and vertices so slow that rows wait in front of them."""
    random = Random(f"backed up {seed}")  # noqa: S311 - a run must be repeatable
    policy = random.choice([GatePolicy.UNALIGNED, GatePolicy.UNALIGNED, GatePolicy.ALTERNATING])
    often = {"interval_ms": 80, "max_concurrent": 1, "slice_rows_max": 1, "micro_batch_rows_max": 3}
    latency_ms = {**scenario.latency_ms, "run": 200}
    config = {**scenario.config, **often}
    return replace(scenario, policy=policy, config=config, credit_bytes=1_000_000, latency_ms=latency_ms)


def _crowded(scenario: Scenario) -> Scenario:
    """Return the scenario with slow stores and suites, and with two checkpoints at a time if it may have them.

    Stores are less slow if a hook must answer in time, or if days end by the clock. A day of these runs is 600 ms. If
    barriers overtake rows, a day's end becomes visible only three checkpoints later. If these took longer than a day,
    there would always be another day to show, and the tick would never catch up. So stores are hardly slow then. Real
    partitions last an hour at least.
    """
    overtaking = scenario.policy in (GatePolicy.UNALIGNED, GatePolicy.ALTERNATING)
    two = {} if overtaking or scenario.config.get("min_pause_ms") else {"max_concurrent": 2, "interval_ms": 80}
    days_lag = scenario.closes and overtaking
    slow_ms = 30 if days_lag else 100 if scenario.hooks or scenario.closes else 300
    return replace(scenario, config={**scenario.config, **two}, latency_ms={**scenario.latency_ms, "store": slow_ms})


def compacting(scenario: Scenario, files_min: int) -> Scenario:
    """Return the scenario with ticks that compact this number of small files into one. This fails now and then."""
    faults = replace(scenario.faults, compaction_fails=0.1, optimize=max(scenario.faults.optimize, 0.8))
    bytes_max = 60 if files_min > 2 else 1_000_000  # noqa: PLR2004 - some files are full soon, as six rows are
    return replace(
        scenario,
        faults=faults,
        config={**scenario.config, "compact_files_min": files_min, "compacted_bytes_max": bytes_max},
    )


def unreadable(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with splits that often cannot be read. They have their own random numbers, as hooks have."""
    random = Random(f"unreadable splits of {seed}")  # noqa: S311 - a run must be repeatable
    faults = replace(scenario.faults, poll_fails=random.choice([0.05, 0.2, 0.5]))
    tolerated = {"tolerable_poll_failures": random.choice([1, 2, 3])}
    return replace(scenario, faults=faults, config={**scenario.config, **tolerated})


def ending(scenario: Scenario, sources: int, *, parted: bool) -> Scenario:
    """Return the scenario with this number of bounded sources, and with orders that are read in parts or not."""
    return replace(scenario, bounded=((), (PAYMENTS,), (ORDERS, PAYMENTS))[sources], parted=parted)


def paced(scenario: Scenario, pause_ms: int, orders_max: int | None) -> Scenario:
    """Return the scenario with a minimum pause, if its configuration may have one, and a quota of orders."""
    may = scenario.config["max_concurrent"] == 1 and "interval_ms" in scenario.config
    pause = {"min_pause_ms": pause_ms} if may else {}
    quota = {} if orders_max is None else {ORDERS: orders_max}
    return replace(scenario, config=scenario.config | pause, rows_per_epoch=scenario.rows_per_epoch | quota)


def of_cuts(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario without quotas of rows: a cut of another job is read whole.

    Some splits reach a cut so slowly that checkpoints expire meanwhile.
    """
    random = Random(f"slow cuts of {seed}")  # noqa: S311 - a run must be repeatable
    if random.random() < EVENLY:
        slowly = {"slice_rows_max": 1, "timeout_ms": 400, "tolerable_failures": MANY}
        slow = random.choice([SplitId("a"), SplitId("c")])
        scenario = replace(scenario, config=scenario.config | slowly, slow_split=slow)
    return replace(scenario, rows_per_epoch={})


def limited(scenario: Scenario, random: Random) -> Scenario:
    """Return the scenario with expiries and limits that other scenarios rarely have."""
    drawn = {"timeout_ms": random.choice([LONGEST_MS, 80, 400]), "tolerable_failures": random.choice([0, 1, 2, MANY])}
    return replace(scenario, config={**scenario.config, **drawn})


def _of_policy(policy: GatePolicy) -> dict[str, Any]:
    match policy:
        case GatePolicy.UNALIGNED:
            return {"unaligned": True}
        case GatePolicy.ALTERNATING:
            return {"unaligned": True, "alignment_timeout_ms": 60}
        case GatePolicy.ALIGNED_BUFFERING:
            return {"max_alignment_bytes": 100}
        case GatePolicy.ALIGNED_BLOCKING | GatePolicy.AT_LEAST_ONCE:
            return {}


def with_state_of_nobody(record: CheckpointRecord) -> CheckpointRecord:
    """Return a cut that also holds state of an operator and of a hook that the graph no longer has (G2, A8)."""
    gone = VertexId("gone")
    file = FileHandle(f"{table_of_state(JobName(record.job), gone)}/_data/1/gone", 1, 1, 0)
    held = KeyedFile(file, KeyedFileKind.BASE, 0, record.max_parallelism - 1, Version(Generation(1), 1))
    vertex = VertexRecord(vertex=gone, micro_batch=1, subtasks=(SubtaskSnapshot(state=(held,)),))
    hook = HookState(hook="gone", state="[]")
    return record.model_copy(update={"vertices": (*record.vertices, vertex), "hooks": (*record.hooks, hook)})
