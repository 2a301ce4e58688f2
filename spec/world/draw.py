"""Power cuts and lost log entries in a simulated warehouse, in addition to the faults of its ticks.

They are drawn from a seed of their own, so that all other runs stay as they were.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from checkpointing.identifiers import SplitId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, SavepointRequested, StopKind, StopRequested
from checkpointing.tick.attempts import FixedDelay, NoRestart, RestartStrategy
from spec.reference.pipeline import LATER, ORDERS, RELEASES, SPLITS
from spec.world.faults import EVENLY as EVENLY_OF_DRAWING_PLANS
from spec.world.faults import (
    NONE,
    Faults,
    Scenario,
    backed_up,
    compacting,
    declining,
    draw,
    ending,
    hooked,
    limited,
    of_cuts,
    paced,
    strict,
    unreadable,
)
from spec.world.stores import World, optimize
from spec.world.tick_door import Eyes, Jump

SURVIVES: Final = 0.5
"""The probability that an entry or file that was not synced survives a power cut."""
LOST_MAX: Final = 3
"""The most entries that a table loses at a time."""


@dataclass(frozen=True, slots=True)
class Mishaps:
    """How often the power may fail in a tick, and how often tables may lose entries after a tick."""

    power_cuts_max: int = 0
    losses_max: int = 0


NO_MISHAPS: Final = Mishaps()


class Chance:
    """Decides when a mishap strikes, and what it destroys."""

    def __init__(self, seed: int, mishaps: Mishaps) -> None:
        self._random = Random(f"mishaps of {seed}")  # noqa: S311 - a run must be repeatable
        self._mishaps = mishaps

    def power_cut_ms(self) -> int | None:
        """Return when the power fails in the tick that begins now, or None if it does not."""
        if not self._mishaps.power_cuts_max or self._random.random() < SURVIVES:
            return None
        return self._random.choice([100, 500, 2_000]) * self._random.randint(1, 4)

    def survives(self) -> bool:
        """Return whether something that was not synced survives."""
        return self._random.random() < SURVIVES

    def lose(self, world: World) -> list[str]:
        """Remove the newest entries from some tables' logs, and let a neighbour write into the gap.

        Return a line of text for each such table. A neighbour is another program that writes to the job's tables.
        """
        told = []
        for _ in range(self._random.randint(0, self._mishaps.losses_max)):
            name = self._random.choice(sorted(world.tables) or [None])
            entries = self._random.randint(1, LOST_MAX)
            if name is None or not world.lose(name, entries):
                continue
            if self._random.random() < SURVIVES:
                optimize(world, name)
            told.append(f"{name} lost its newest {entries} entries")
        return told


# ------------------------------------------------------------------
# Draws what happens to a job besides its ticks: savepoints, rollbacks, resets, imports, releases, mishaps.
#
# Each seed has a random subset of these moves (swarm testing). The moves have their own random numbers. A caller may
# set any of them: `drawn(seed, rollbacks_max=2)`.


SOMETIMES: Final = 0.35
"""The probability that a seed has a move."""
SELDOM: Final = 0.15
MISHAPS: Final = 0.17
EVENLY: Final = 0.5
MOSTLY: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The moves that a run makes besides its ticks. By default it makes none."""

    savepoints_max: int = 0
    """For each tick: how often somebody may ask for a savepoint, a drain or a suspension."""
    rollbacks_max: int = 0
    """After each tick: how often somebody may roll the job back to another entry."""
    resets_max: int = 0
    """After each tick: how often somebody may reset a source."""
    forgets_max: int = 0
    """After each tick: how often somebody may erase the rows of a key."""
    imports: bool = False
    """True if the job begins with an entry imported from another warehouse."""
    savepoints_at_rest_max: int = 0
    """After each tick: how often somebody may take a savepoint or dispose of one."""
    clean_ups_max: int = 0
    """After each tick, or during it: how often somebody may clean up. Ticks then also clean up at their end."""
    readers_max: int = 0
    """During each tick: how many readers may reserve a cut."""
    arrivals_max: int = 0
    """During each tick: how often more rows may become readable."""
    releases: bool = False
    """True if ticks run different releases of the pipeline, with other columns and names."""
    splits: bool = False
    """True if from tick to tick a source finds other splits, in another order."""
    vertices: bool = False
    """True if a vertex and its table come and go from tick to tick."""
    leases: bool = False
    """True if some ticks see only a holder's lease and not whether the holder lives, and leases run out."""
    clocks_jump: bool = False
    """True if clocks differ from tick to tick, and jump during a tick."""
    long: bool = False
    """True if every run is long. Otherwise each seed draws whether its run is long."""
    lists_lag: bool = False
    """True if lists of files and of entries may lag behind."""
    stores_fail: bool = False
    """True if writes and replies of stores may be lost, answers come late, and lists are stale."""
    older_formats: bool = False
    """True if the codec writes and reads the entries, some in an older format."""
    manifests: bool = False
    """True if entries keep most of their handles in manifests."""
    limits: bool = False
    """True if expiries and limits of failures are drawn from more values."""
    hooks: bool = False
    """True if the pipeline has master hooks."""
    restarts: bool = False
    """True if ticks restart a job that fails."""
    declines: bool = False
    """True if checkpoints fail in ways that the job may survive."""
    rejects: bool = False
    """True if suites reject epochs, and tables have problems, more often."""
    held_bytes_max: int | None = None
    """How many bytes an alignment may hold. Then gates hold rows back, and micro-batches are slow."""
    backs_up: bool = False
    """True if checkpoints are unaligned, and rows often wait while one is taken."""
    stops: bool = False
    """True if ticks are often stopped with a savepoint, which may fail."""
    dries_up: bool = False
    """True if no more rows become readable before the last tick."""
    rests: bool = False
    """True if time passes between ticks, so that leases run out."""
    polls_fail: bool = False
    """True if splits often cannot be read."""
    outside: bool = False
    """True if outside sinks get the rows of some append tables."""
    votes: bool = False
    """True if these sinks vote on each checkpoint."""
    compacts: int = 0
    """How many small files of an append table ticks compact into one. With 0 they compact none."""
    broadcasts: bool = False
    """True if a vertex has broadcast state."""
    holds: bool = False
    """True if ticks may hold their checkpoint, which a person then approves or rejects."""
    cuts: bool = False
    """True if the sources read cuts of another job. Each cut makes its source ask for a checkpoint."""
    sources_end: int = 0
    """How many of the two sources are bounded: none, the payments, or both."""
    reopens: bool = False
    """True if a finished job goes on later, with sources that never end."""
    parts: bool = False
    """True if the orders are read in parts: some splits to their end, and only then the others (B4)."""
    overwrites: bool = False
    """True if the pipeline has an overwrite table."""
    counts: bool = False
    """True if suites count rows, so that they also judge an epoch without rows.

    No seed draws this move, so that known seeds keep their runs. Only callers set it."""
    times: bool = False
    """True if rows have times, and a vertex has windows."""
    closes: bool = False
    """True if event time goes on by the clock while a source is at rest."""
    mishaps: Mishaps = NO_MISHAPS
    pause_ms: int = 0
    """The minimum pause, if the seed's job has an interval and one checkpoint at a time."""
    transaction_rows: int = 1
    """How many rows each transaction of the sources has.

    A slice ends at the end of a transaction, and may have more rows than its poll asked for.
    """
    orders_max: int | None = None
    """How many rows of the source with two splits an epoch may have."""


NO_MOVES: Final = Moves()


def _chance(what: str, seed: int) -> float:
    """Return the seed's chance of this move.

    It has its own random numbers, so that all other moves stay as they were.
    """
    return Random(f"{what} of {seed}").random()  # noqa: S311 - a run must be repeatable


def drawn(seed: int, **forced: Any) -> Moves:  # noqa: ANN401 - fields of Moves
    """Return the moves of a seed. The caller's values replace those that the seed draws."""
    random = Random(f"moves of {seed}")  # noqa: S311 - a run must be repeatable
    later = Random(f"later moves of {seed}")  # noqa: S311 - as above
    transactions = Random(f"transactions of {seed}")  # noqa: S311 - as above
    ends = Random(f"ends of {seed}")  # noqa: S311 - as above
    arrivals = Random(f"arrivals of {seed}")  # noqa: S311 - as above
    outside = Random(f"outside sinks of {seed}")  # noqa: S311 - as above
    imports = Random(f"imports of {seed}")  # noqa: S311 - as above
    compactions = Random(f"compactions of {seed}")  # noqa: S311 - as above
    moves = Moves(
        savepoints_max=random.choice([0, 0, 0, 4]),
        rollbacks_max=random.choice([0, 0, 4, 4, 4]),
        resets_max=random.choice([0, 0, 0, 1, 2]),
        savepoints_at_rest_max=random.choice([0, 1, 2, 2]),
        clean_ups_max=random.choice([0, 0, 1, 2]),
        readers_max=later.choice([0, 5, 8]),
        arrivals_max=arrivals.choice([0, 0, 3]),
        releases=random.random() < MOSTLY,
        splits=random.random() < SOMETIMES,
        vertices=random.random() < SOMETIMES,
        leases=random.random() < SOMETIMES,
        clocks_jump=random.random() < SOMETIMES,
        lists_lag=random.random() < SOMETIMES,
        stores_fail=_chance("stores", seed) < SELDOM,
        older_formats=random.random() < SELDOM,
        manifests=_chance("manifests", seed) < SOMETIMES,
        limits=random.random() < SOMETIMES,
        hooks=random.random() < SELDOM,
        restarts=random.random() < SOMETIMES,
        declines=_chance("declines", seed) < SOMETIMES,
        rejects=later.random() < SOMETIMES,
        held_bytes_max=later.choice([None, None, 1, 1]),
        backs_up=_chance("rows that wait", seed) < SOMETIMES,
        stops=_chance("stops", seed) < SELDOM,
        dries_up=_chance("quiet", seed) < SELDOM,
        rests=later.random() < EVENLY,
        polls_fail=_chance("unreadable splits", seed) < SELDOM,
        sources_end=ends.choice([1, 2]) if ends.random() < SELDOM else 0,
        reopens=_chance("reopened", seed) < EVENLY,
        parts=_chance("parts", seed) < SELDOM,
        mishaps=Mishaps(1, random.choice([2, 3])) if random.random() < MISHAPS else NO_MISHAPS,
        pause_ms=random.choice([0, 0, 40, 150]),
        transaction_rows=transactions.choice([1, 1, 1, 1, 3, 5]),
        orders_max=random.choice([None, None, None, 6]),
        cuts=_chance("cuts", seed) < SELDOM,
        outside=outside.random() < SELDOM,
        votes=outside.random() < EVENLY,
        imports=imports.choice([True, *[False] * 6]),
        holds=_chance("held cuts", seed) < SELDOM,
        compacts=compactions.choice([0, 2, 2, 3]),
        broadcasts=_chance("broadcasts", seed) < SELDOM,
        overwrites=_chance("overwrite tables", seed) < SOMETIMES,
        times=_chance("event times", seed) < SOMETIMES,
        closes=_chance("sources at rest", seed) < EVENLY,
        forgets_max=2 if _chance("erasures", seed) < EVENLY else 0,
    )
    return _fitting(replace(_with_a_way_back(moves), **forced))


def _with_a_way_back(moves: Moves) -> Moves:
    """Add savepoints between ticks, if the seed has rollbacks and no savepoints during ticks."""
    goes_back = moves.rollbacks_max and not moves.savepoints_max
    return replace(moves, savepoints_at_rest_max=max(1, moves.savepoints_at_rest_max)) if goes_back else moves


def _fitting(moves: Moves) -> Moves:
    """Return the moves without those that cannot be combined."""
    is_ending = moves.sources_end or moves.parts
    # the references of times, overwrite tables, sinks and imports cannot handle a row that was erased
    knows = not (moves.times or moves.overwrites or moves.outside or moves.imports)
    moves = moves if knows else replace(moves, forgets_max=0)
    if moves.held_bytes_max is not None or moves.rejects:  # gates that put rows aside, and two checkpoints at a time
        moves = replace(moves, backs_up=False)
    moves = replace(moves, savepoints_max=max(2, moves.savepoints_max), hooks=True) if moves.stops else moves
    moves = replace(moves, arrivals_max=0) if is_ending else moves  # a split that has ended gets no more rows
    # all sources read a cut whole, and the other job decides when its rows come
    without = replace(moves, resets_max=0, orders_max=None, arrivals_max=0, parts=False)
    return replace(without, savepoints_max=max(2, moves.savepoints_max)) if moves.cuts else moves


# ------------------------------------------------------------------
# Draws moves that a seed must have, so that many occur together: `python -m spec.simulate --crowd`.
#
# Most seeds lack most moves, so few seeds have two rare ones. A crowd is two to twelve moves that are forced on a seed.
# The seed draws all other moves as usual. Run the command overnight, with seeds that have not been run yet.


FORCED: Final[Mapping[str, tuple[Any, ...]]] = {
    "savepoints_max": (2, 4),
    "rollbacks_max": (2, 4),
    "resets_max": (1, 2),
    "forgets_max": (1, 2),
    "imports": (True,),
    "savepoints_at_rest_max": (1, 3),
    "clean_ups_max": (1, 3),
    "readers_max": (5, 8),
    "arrivals_max": (3,),
    "releases": (True,),
    "splits": (True,),
    "vertices": (True,),
    "leases": (True,),
    "clocks_jump": (True,),
    "long": (True,),
    "lists_lag": (True,),
    "stores_fail": (True,),
    "older_formats": (True,),
    "manifests": (True,),
    "limits": (True,),
    "hooks": (True,),
    "restarts": (True,),
    "declines": (True,),
    "rejects": (True,),
    "held_bytes_max": (1, None),
    "backs_up": (True,),
    "stops": (True,),
    "dries_up": (True,),
    "rests": (True,),
    "polls_fail": (True,),
    "sources_end": (1, 2),
    "reopens": (True,),
    "parts": (True,),
    "mishaps": (Mishaps(1, 2), Mishaps(1, 3), Mishaps(2, 2)),
    "pause_ms": (40, 150),
    "transaction_rows": (3, 5),
    "cuts": (True,),
    "outside": (True,),
    "votes": (True,),
    "compacts": (2, 3),
    "broadcasts": (True,),
    "holds": (True,),
    "overwrites": (True,),
    "times": (True,),
    "closes": (True,),
    "orders_max": (6,),
}
"""The moves that a crowd may force, each with its values."""
_OFTEN: Final = frozenset({"stores_fail", "lists_lag", "leases", "restarts", "mishaps", "clocks_jump"})
"""The moves that a crowd chooses more often.

With them, a process often sees something other than what the stores hold. Most real bugs needed one of them."""
_WEIGHTS: Final = {name: 3.0 if name in _OFTEN else 0.15 if name == "long" else 1.0 for name in FORCED}
"""How likely a crowd is to choose a move, compared with the others. Long runs are seldom chosen, as they take long."""


def crowd(seed: int) -> dict[str, Any]:
    """Return a dict from names to values of two to twelve moves that the run of this seed must have."""
    random = Random(f"crowd of {seed}")  # noqa: S311 - a run must be repeatable
    most = random.choice([2, 3, 4, 5, 6, 8, 12])
    names: set[str] = set()
    while len(names) < most:
        names.update(random.choices(list(FORCED), list(_WEIGHTS.values())))
    return {name: random.choice(FORCED[name]) for name in sorted(names)}


# ------------------------------------------------------------------
# Draws the scenario of a seed: its faults, and how the moves of the run change them.


def scenario_of(seed: int, moves: Moves, random: Random, shapes: Random) -> Scenario:
    """Return the scenario of a run with these moves. It uses up random numbers of both generators."""
    scenario = paced(
        ending(draw(random, long=moves.long), moves.sources_end, parted=moves.parts), moves.pause_ms, moves.orders_max
    )
    voters = Random(f"voters of {seed}").choice([2, 3, 3, 3]) if moves.votes else 0  # noqa: S311 - must be repeatable
    scenario = replace(scenario, outside=moves.outside, voters=voters)
    scenario = replace(scenario, broadcasts=moves.broadcasts, overwrites=moves.overwrites)
    scenario = replace(scenario, counts=moves.counts, times=moves.times, closes=moves.closes)
    scenario = limited(scenario, shapes) if moves.limits else scenario
    scenario = hooked(scenario, seed) if moves.hooks else scenario
    scenario = declining(scenario, seed) if moves.declines else scenario
    scenario = strict(scenario, rejects=moves.rejects, held_bytes_max=moves.held_bytes_max)
    scenario = backed_up(scenario, seed) if moves.backs_up else scenario
    scenario = unreadable(scenario, seed) if moves.polls_fail else scenario
    scenario = compacting(scenario, moves.compacts) if moves.compacts else scenario
    return of_cuts(scenario, seed) if moves.cuts else scenario


# ------------------------------------------------------------------
# What differs from tick to tick.


@dataclass(frozen=True, slots=True, kw_only=True)
class TickPlan:
    """What differs from tick to tick."""

    number: int
    faults: Faults
    parallelism: int
    limits: TickLimits
    patient: bool
    take_over: bool
    stop: StopRequested | None = None
    stop_after_ms: int = 0
    release: int = 0
    """The release of the pipeline that the tick runs."""
    strategy: RestartStrategy = field(default_factory=NoRestart)
    """Whether and how the tick restarts a failed job."""
    savepoints: tuple[tuple[int, SavepointRequested], ...] = ()
    """The requests for savepoints, in order, each with its time after the start (ms)."""
    orders: tuple[SplitId, ...] = SPLITS[ORDERS]
    """The splits of the orders' source, in addition to those of the cut from which the tick begins."""
    audited: bool = False
    """True if the tick's release has the vertex that comes and goes."""
    eyes: Eyes = field(default_factory=Eyes)
    """What the tick sees of the world when it begins."""
    clock_jump: Jump | None = None
    grace_ms: int | None = None
    """The grace for readers in a clean-up at the tick's end. None if there is no clean-up."""


# ------------------------------------------------------------------
# Draws the plan of each tick: its limits, requests, release, splits, clock, and which processes it can see.


SKEWS_MS = (0, 0, 200, -200, -900, 3_000, 90_000_000)
"""By how much a clock is fast (or slow, if negative)."""
RESTART_DELAY_MS = 100


class Plans:
    """Draws the plans of a run's ticks.

    Each new move has random numbers of its own, so that known seeds keep their runs.
    """

    def __init__(
        self, seed: int, moves: Moves, scenario: Scenario, *, random: Random, shapes: Random, visiting: Random
    ) -> None:
        self._moves = moves
        self._scenario = scenario
        self._random = random
        self._shapes = shapes
        self._visiting = visiting
        self._releases = Random(f"releases of {seed}")  # noqa: S311 - a run must be repeatable
        self._restarts = Random(f"restarts of {seed}")  # noqa: S311 - as above
        self._holds = Random(f"ticks of {seed} that hold")  # noqa: S311 - as above

    def drawn(self, number: int) -> TickPlan:
        """Return the plan of a tick with faults."""
        random, faults = self._random, self._scenario.faults
        limits = random.choice(
            [TickLimits(), TickLimits(), TickLimits(checkpoints=2), TickLimits(duration_ms=random.choice([50, 700]))]
        )
        stop = StopRequested(random.choice(list(StopKind))) if random.random() < faults.stop else None
        return TickPlan(
            number=number,
            faults=faults,
            parallelism=random.choice(self._scenario.parallelisms),
            limits=replace(limits, hold=self._moves.holds and self._holds.random() < EVENLY_OF_DRAWING_PLANS),
            patient=False,
            take_over=False,
            stop=stop,
            stop_after_ms=random.randint(0, 1_000),
            savepoints=self._drawn_savepoints(),
            release=self._release(),
            strategy=self._strategy(),
            grace_ms=self._grace_ms(),
            orders=self._orders(),
            audited=self._audited(),
            eyes=self._eyes(),
            clock_jump=self._clock_jump(),
        )

    def _drawn_savepoints(self) -> tuple[tuple[int, SavepointRequested], ...]:
        """Draw requests for savepoints. Some come at the same moment. Most requests after a stop come too late."""
        most = self._moves.savepoints_max
        if not most:
            return ()
        times = sorted(self._random.choice([0, 100, 1_000]) * self._random.randint(0, 3) for _ in range(most))
        kinds = self._random.choices(
            list(SavepointKind), [2, 1, 1] if self._moves.stops else [6, 1, 1], k=self._random.randint(0, most)
        )
        return tuple(
            (after_ms, SavepointRequested(f"savepoint {number}", kind))
            for number, (after_ms, kind) in enumerate(zip(times, kinds, strict=False))
        )

    def healing(self, number: int) -> TickPlan:
        """Return the plan of the last tick. It has no faults, and takes over from any other process."""
        parallelism = self._random.choice(self._scenario.parallelisms)
        return TickPlan(
            number=number,
            faults=NONE,
            parallelism=parallelism,
            limits=TickLimits(),
            patient=True,
            take_over=True,
            release=self._release(),
            grace_ms=self._grace_ms(),
            orders=self._orders(),
            audited=self._audited(),
            eyes=Eyes(self._skew_ms()),
        )

    def _orders(self) -> tuple[SplitId, ...]:
        """Return the splits that a tick finds, in random order."""
        if not self._moves.splits:
            return SPLITS[ORDERS]
        known = [*SPLITS[ORDERS], LATER]
        if self._moves.parts:  # each part has a split
            known = known[: self._shapes.randint(2, len(known))]
            return tuple(self._shapes.sample(known, len(known)))
        return tuple(self._shapes.sample(known, self._shapes.randint(1, len(known))))

    def _eyes(self) -> Eyes:
        unseen = self._moves.leases and self._shapes.random() < EVENLY_OF_DRAWING_PLANS
        return Eyes(self._skew_ms(), not unseen, self._shapes if self._moves.lists_lag else None)

    def _skew_ms(self) -> int:
        return self._shapes.choice(SKEWS_MS) if self._moves.clocks_jump else 0

    def _clock_jump(self) -> Jump | None:
        jumps = self._moves.clocks_jump and self._shapes.random() < EVENLY_OF_DRAWING_PLANS
        after_ms, by_ms = self._shapes.randint(0, 1_000), self._shapes.choice(SKEWS_MS)
        # the rule on intervals would count a leap forward as time in which no checkpoint was triggered
        by_ms = min(by_ms, 0) if "interval_ms" in self._scenario.config else by_ms
        return Jump(after_ms, by_ms) if jumps else None

    def _audited(self) -> bool:
        return self._moves.vertices and self._shapes.random() < EVENLY_OF_DRAWING_PLANS

    def _grace_ms(self) -> int | None:
        return self._visiting.choice([0, 300]) if self._moves.clean_ups_max else None

    def _release(self) -> int:
        """Return the release of the pipeline that a tick runs.

        The choice has random numbers of its own, so that a seed's other choices stay the same.
        """
        return self._releases.randrange(len(RELEASES)) if self._moves.releases else 0

    def _strategy(self) -> RestartStrategy:
        """Return how often a tick restarts a failed job. The choice has random numbers of its own."""
        attempts = self._restarts.randrange(4)
        return FixedDelay(attempts, RESTART_DELAY_MS) if self._moves.restarts and attempts else NoRestart()
