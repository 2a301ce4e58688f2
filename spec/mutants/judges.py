"""Lists the judges that hunt mutants: the simulator, the machines, and short directed checks.

A judge gives no reasons and keeps nothing. Its `broken(seed)` returns the ids of the invariants that the seed broke.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from spec import profiles
from spec.machines.arriving import SettingsMachine
from spec.machines.asking import LostAnswersMachine
from spec.machines.attempts import AttemptsMachine
from spec.machines.changing_columns import AppendedColumnsMachine
from spec.machines.changing_tables import ChangingTablesMachine
from spec.machines.claiming import ClaimsMachine
from spec.machines.cleanup import CleanupMachine
from spec.machines.commit import CommitMachine
from spec.machines.compacting_asks import CompactsMachine
from spec.machines.compactions import CompactionsMachine
from spec.machines.coordinator import CoordinatorMachine
from spec.machines.cuts import CutGroupsMachine
from spec.machines.ending import EndingMachine
from spec.machines.entries import EntriesMachine
from spec.machines.evolving import EvolvingMachine
from spec.machines.gate import GATE_MACHINES
from spec.machines.graphs import GraphsMachine
from spec.machines.judging import BrokenRuleError
from spec.machines.keeping import KeepingMachine
from spec.machines.manifests import ManifestsMachine
from spec.machines.meanings import MeaningsMachine
from spec.machines.measuring import MeasuringMachine
from spec.machines.naming import NamesMachine
from spec.machines.netting import NetMachine
from spec.machines.notifying import NotifyingMachine
from spec.machines.outside_transaction import OutsideTransactionMachine
from spec.machines.parting import FirstPartMachine
from spec.machines.pausing import PauseMachine
from spec.machines.planning import PlanMachine
from spec.machines.racing import RacesMachine
from spec.machines.reading import ReadersMachine
from spec.machines.recovering import RecoveringMachine
from spec.machines.renames import RenamesMachine
from spec.machines.repairing import RepairMachine
from spec.machines.restoring import RestoresMachine
from spec.machines.rolling_forward import RollingForwardMachine
from spec.machines.running import RunsMachine
from spec.machines.savepoints import SavepointsMachine
from spec.machines.splits import SplitsMachine
from spec.machines.spreading import SpreadingMachine
from spec.machines.subtask import SubtaskMachine
from spec.machines.tracing import TraceMachine
from spec.machines.turning import LineMachine
from spec.mishaps import Mishaps
from spec.moves import Moves, drawn
from spec.simulator import simulate

EXAMPLES = 40
STEPS = 40
"""The steps of each run of a machine. With so many, a seed takes a second or less, so a known seed is quick."""
SAVEPOINTS_MAX = 5
"""How often users request savepoints in each tick, for judges of savepoints."""
ROLLBACKS_MAX = 2
"""How often the job is rolled back after each tick, for judges of rollbacks."""
RESETS_MAX = 2
"""How often a source is reset after each tick, for judges of resets."""

SEEDS_MAX = 1_000
"""At most this many seeds of the simulator are tried on a bug."""


@dataclass(frozen=True, slots=True)
class Judge:
    """One way to find a bug. It tries at most `seeds_max` seeds."""

    name: str
    broken: Callable[..., frozenset[str]]
    seeds_max: int


def _simulated(seed: int, **moves: Any) -> frozenset[str]:  # noqa: ANN401 - fields of Moves
    outcome = simulate(seed, moves=Moves(**moves))
    return frozenset(violation.invariant for violation in outcome.violations)


def _by_machine(machine: type[RuleBasedStateMachine]) -> Callable[[int], frozenset[str]]:
    def broken(seed: int) -> frozenset[str]:
        profiles.register()
        few = settings(profiles.hunting(), derandomize=False, max_examples=EXAMPLES, stateful_step_count=STEPS)
        budget = profiles.fitting(machine, few)
        chosen = type(machine.__name__, (machine,), {})
        try:
            run_state_machine_as_test(seeded(seed)(chosen), settings=budget)
        except BrokenRuleError as rule:
            return frozenset({rule.invariant})
        return frozenset()

    return broken


def _drawn(seed: int, **forced: Any) -> frozenset[str]:  # noqa: ANN401 - fields of Moves
    return frozenset(violation.invariant for violation in simulate(seed, moves=drawn(seed, **forced)).violations)


SIMULATOR = Judge("simulator", _simulated, SEEDS_MAX)
SAVEPOINTS = Judge("simulator with savepoints", partial(_simulated, savepoints_max=SAVEPOINTS_MAX), SEEDS_MAX)
ROLLBACKS = Judge(
    "simulator with rollbacks",
    partial(_simulated, savepoints_max=SAVEPOINTS_MAX, rollbacks_max=ROLLBACKS_MAX),
    SEEDS_MAX,
)
RESETS = Judge(
    "simulator with resets",
    partial(_simulated, savepoints_max=SAVEPOINTS_MAX, rollbacks_max=1, resets_max=RESETS_MAX),
    SEEDS_MAX,
)
RELEASES = Judge("simulator with releases", partial(_simulated, rollbacks_max=ROLLBACKS_MAX, releases=True), SEEDS_MAX)
RELEASES_WITH_STORES = Judge(
    "simulator with releases, rollbacks and stores that fail",
    partial(
        _simulated,
        savepoints_max=SAVEPOINTS_MAX,
        rollbacks_max=ROLLBACKS_MAX,
        savepoints_at_rest_max=2,
        releases=True,
        stores_fail=True,
    ),
    SEEDS_MAX,
)
CLEAN_UPS = Judge(
    "simulator with clean-ups",
    partial(_simulated, savepoints_max=3, rollbacks_max=1, savepoints_at_rest_max=2, clean_ups_max=2),
    SEEDS_MAX,
)
COMPACTIONS = Judge(
    "simulator with compactions",
    partial(_simulated, savepoints_max=3, rollbacks_max=1, clean_ups_max=2, declines=True, compacts=2),
    SEEDS_MAX,
)
BROADCASTS = Judge(
    "simulator with broadcast state",
    partial(_simulated, broadcasts=True, rollbacks_max=ROLLBACKS_MAX, savepoints_max=2),
    SEEDS_MAX,
)
BROADCASTS_WITH_RELEASES = Judge(
    "simulator with broadcast state and releases", partial(_simulated, broadcasts=True, releases=True), SEEDS_MAX
)
OVERWRITES = Judge(
    "simulator with overwrite tables",
    partial(_simulated, savepoints_max=3, rollbacks_max=1, clean_ups_max=2, overwrites=True),
    SEEDS_MAX,
)
OVERWRITES_WITH_RELEASES = Judge(
    "simulator with overwrite tables and releases", partial(_simulated, releases=True, overwrites=True), SEEDS_MAX
)
COUNTS = Judge("simulator with suites that count rows", partial(_simulated, savepoints_max=2, counts=True), SEEDS_MAX)
SHAPES = Judge(
    "simulator with other splits and vertices",
    partial(_simulated, savepoints_max=2, rollbacks_max=1, splits=True, vertices=True),
    SEEDS_MAX,
)
HOOKS = Judge(
    "simulator with hooks", partial(_simulated, savepoints_max=2, rollbacks_max=1, resets_max=1, hooks=True), SEEDS_MAX
)
PAUSES = Judge("simulator with pauses", partial(_simulated, savepoints_max=2, pause_ms=150), SEEDS_MAX)
QUOTAS = Judge("simulator with quotas", partial(_simulated, orders_max=6), SEEDS_MAX)
TRANSACTIONS = Judge(
    "simulator with transactions", partial(_simulated, savepoints_max=2, transaction_rows=5), SEEDS_MAX
)
RESTARTS = Judge("simulator with restarts", partial(_simulated, savepoints_max=1, restarts=True), SEEDS_MAX)
DECLINES = Judge("simulator with declines", partial(_simulated, declines=True), SEEDS_MAX)
UNREADABLE = Judge("simulator with splits that cannot be read", partial(_simulated, polls_fail=True), SEEDS_MAX)
UPSTREAM = Judge(
    "simulator with cuts of another job",
    partial(_simulated, savepoints_max=3, rollbacks_max=1, splits=True, declines=True, cuts=True),
    SEEDS_MAX,
)
ENDS = Judge(
    "simulator with sources that end",
    partial(_simulated, savepoints_max=2, rollbacks_max=1, resets_max=1, sources_end=2),
    SEEDS_MAX,
)
REOPENED = Judge(
    "simulator of finished jobs whose sources end no more", partial(_simulated, sources_end=2, reopens=True), SEEDS_MAX
)
ONE_ENDS = Judge("simulator with a source that ends", partial(_simulated, savepoints_max=2, sources_end=1), SEEDS_MAX)
PARTS = Judge(
    "simulator with a source that is read in parts",
    partial(_simulated, savepoints_max=2, rollbacks_max=1, splits=True, parts=True),
    SEEDS_MAX,
)
ENDS_WITH_MISHAPS = Judge(
    "simulator with sources that end and mishaps",
    partial(_simulated, sources_end=2, mishaps=Mishaps(power_cuts_max=1, losses_max=2)),
    SEEDS_MAX,
)
MISHAPS = Judge(
    "simulator with mishaps",
    partial(_simulated, savepoints_max=1, rollbacks_max=1, mishaps=Mishaps(power_cuts_max=1, losses_max=2)),
    SEEDS_MAX,
)
RELEASES_WITH_CLEAN_UPS = Judge(
    "simulator with releases and clean-ups",
    partial(_simulated, rollbacks_max=1, releases=True, vertices=True, clean_ups_max=2),
    SEEDS_MAX,
)
MANIFESTS = Judge(
    "simulator with manifests",
    partial(_simulated, savepoints_max=2, rollbacks_max=1, clean_ups_max=2, manifests=True),
    SEEDS_MAX,
)
CODEC = Judge(
    "simulator with older formats",
    partial(_simulated, savepoints_max=2, rollbacks_max=1, older_formats=True),
    SEEDS_MAX,
)
CLOCKS = Judge(
    "simulator with clocks that leap", partial(_simulated, clocks_jump=True, limits=True, hooks=True), SEEDS_MAX
)
ARRIVALS = Judge(
    "simulator with rows that come meanwhile", partial(_simulated, savepoints_max=1, arrivals_max=3), SEEDS_MAX
)
LEASES = Judge("simulator with leases", partial(_simulated, leases=True, rests=True, clocks_jump=True), SEEDS_MAX)
DRAWN = Judge("simulator with the moves that a seed draws", _drawn, SEEDS_MAX)
ROWS_THAT_WAIT = Judge(
    "simulator with the moves that a seed draws, and rows that wait",
    partial(_drawn, backs_up=True, long=True),
    SEEDS_MAX,
)
STOPS_AT_CUTS = Judge(
    "simulator with the moves that a seed draws, stops and cuts of another job",
    partial(_drawn, savepoints_max=4, cuts=True),
    SEEDS_MAX,
)
LISTS = Judge("simulator with lists that lag", partial(_simulated, lists_lag=True, restarts=True), SEEDS_MAX)
STORES = Judge(
    "simulator with stores that fail",
    partial(
        _simulated,
        savepoints_max=2,
        rollbacks_max=2,
        resets_max=1,
        savepoints_at_rest_max=1,
        restarts=True,
        limits=True,
        stores_fail=True,
    ),
    SEEDS_MAX,
)
HELD_CUTS = Judge(
    "simulator with held cuts",
    partial(_simulated, savepoints_max=1, rollbacks_max=1, resets_max=1, clean_ups_max=1, holds=True),
    SEEDS_MAX,
)
OUTSIDE = Judge(
    "simulator with outside sinks",
    partial(_simulated, savepoints_max=1, rollbacks_max=1, stores_fail=True, outside=True),
    SEEDS_MAX,
)
VOTES = Judge(
    "simulator with outside sinks that vote",
    partial(_simulated, rollbacks_max=1, stores_fail=True, declines=True, holds=True, outside=True, votes=True),
    SEEDS_MAX,
)
IMPORTS = Judge(
    "simulator with imports",
    partial(_simulated, savepoints_max=3, rollbacks_max=1, savepoints_at_rest_max=2, clean_ups_max=2, imports=True),
    SEEDS_MAX,
)
IMPORTS_WITH_SINKS = Judge(
    "simulator with imports and outside sinks",
    partial(_simulated, savepoints_max=2, rollbacks_max=1, imports=True, outside=True),
    SEEDS_MAX,
)
IMPORTS_WITH_CUTS = Judge(
    "simulator with imports and cuts of another job",
    partial(_simulated, savepoints_max=2, declines=True, imports=True, cuts=True),
    SEEDS_MAX,
)
RELEASES_WITH_MISHAPS = Judge(
    "simulator with releases and mishaps",
    partial(_simulated, releases=True, mishaps=Mishaps(power_cuts_max=1, losses_max=2)),
    SEEDS_MAX,
)
GATES = {
    policy: Judge(f"gate machine, {policy.value}", _by_machine(machine), 60)
    for policy, machine in GATE_MACHINES.items()
}
COORDINATOR = Judge("coordinator machine", _by_machine(CoordinatorMachine), 60)
COMMIT = Judge("commit machine", _by_machine(CommitMachine), 60)
CLEANUP = Judge("clean-up machine", _by_machine(CleanupMachine), 60)
KEEPING = Judge("machine of what a clean-up keeps", _by_machine(KeepingMachine), 60)
SUBTASK = Judge("subtask machine", _by_machine(SubtaskMachine), 60)
OUTSIDE_TRANSACTIONS = Judge("machine of outside transactions", _by_machine(OutsideTransactionMachine), 60)
READERS = Judge("machine of the splits' turns", _by_machine(ReadersMachine), 60)
CUT_GROUPS = Judge("machine of cuts of other jobs", _by_machine(CutGroupsMachine), 60)
PAUSE = Judge("machine of the pause after failures", _by_machine(PauseMachine), 60)
ENTRIES = Judge("machine of entries", _by_machine(EntriesMachine), 60)
RESTORES = Judge("machine of restores", _by_machine(RestoresMachine), 60)
SPREADING = Judge("machine of what is spread", _by_machine(SpreadingMachine), 60)
GRAPHS = Judge("machine of graphs", _by_machine(GraphsMachine), 60)
SETTINGS = Judge("machine of settings", _by_machine(SettingsMachine), 60)
PLANNING = Judge("machine of plans", _by_machine(PlanMachine), 60)
REPAIRS = Judge("machine of damaged tables", _by_machine(RepairMachine), 60)
APPENDED_COLUMNS = Judge("machine of an append table's columns", _by_machine(AppendedColumnsMachine), 60)
CLAIMS = Judge("machine of claims", _by_machine(ClaimsMachine), 60)
NOTIFICATIONS = Judge("machine of what a cut tells", _by_machine(NotifyingMachine), 60)
TRACES = Judge("machine of traces", _by_machine(TraceMachine), 60)
MEANINGS = Judge("machine of changed state", _by_machine(MeaningsMachine), 60)
CHANGED_TYPES = Judge("machine of types", _by_machine(EvolvingMachine), 60)
CHANGED_TABLES = Judge("machine of a table's columns", _by_machine(ChangingTablesMachine), 60)
ROLL_FORWARDS = Judge("machine of the roll-forward", _by_machine(RollingForwardMachine), 60)
LINES = Judge("machine of the line of entries", _by_machine(LineMachine), 60)
ATTEMPTS = Judge("machine of a tick's attempts", _by_machine(AttemptsMachine), 60)
LOST_ANSWERS = Judge("machine of lost answers", _by_machine(LostAnswersMachine), 60)
SMALL_FILES = Judge("machine of compactions", _by_machine(CompactionsMachine), 60)
LARGE_ENTRIES = Judge("machine of manifests", _by_machine(ManifestsMachine), 60)
NET_FILES = Judge("machine of what an entry changes", _by_machine(NetMachine), 60)
RACING = Judge("machine of races for a job", _by_machine(RacesMachine), 60)
ENDINGS = Judge("machine of a tick's end", _by_machine(EndingMachine), 60)
COMPACTS_IN_TURN = Judge("machine of turns of compactions", _by_machine(CompactsMachine), 60)
NAMING = Judge("machine of names", _by_machine(NamesMachine), 60)
FIRST_PARTS = Judge("machine of first parts", _by_machine(FirstPartMachine), 60)
RECOVERING = Judge("machine of a holder's first steps", _by_machine(RecoveringMachine), 60)
RENAMES = Judge("machine of renames", _by_machine(RenamesMachine), 60)
PINS = Judge("machine of savepoints", _by_machine(SavepointsMachine), 60)
RUNS = Judge("machine of a vertex at work", _by_machine(RunsMachine), 60)
SPLITS = Judge("machine of splits", _by_machine(SplitsMachine), 60)
MEASURING = Judge("machine of measurements", _by_machine(MeasuringMachine), 60)


def with_long_runs(judge: Judge) -> Judge:
    """Return a judge that takes moves, with long runs only. They find a bug sooner if it needs many rows or ticks."""
    return Judge(f"{judge.name}, long runs", partial(judge.broken, long=True), SEEDS_MAX)


def directed(scene: Callable[[], bool], invariant: str) -> Judge:
    """Return a judge that drives a door through one scene. The scene returns whether the invariant held."""
    name = f"scene {scene.__name__.replace('_', ' ')!r}"
    return Judge(name, lambda _: frozenset() if scene() else frozenset({invariant}), 1)
