"""Draws what happens to a job besides its ticks: savepoints, rollbacks, resets, imports, releases, mishaps.

Each seed has some of these moves and not the others (swarm testing). They have their own random numbers. A caller may
replace any of them: `drawn(seed, rollbacks_max=2)`.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from spec.mishaps import NO_MISHAPS, Mishaps

SOMETIMES: Final = 0.35
"""The probability that a seed has a move."""
SELDOM: Final = 0.15
MISHAPS: Final = 0.17
EVENLY: Final = 0.5
MOSTLY: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What a run has besides its ticks. By default it has nothing."""

    savepoints_max: int = 0
    """For each tick: how often somebody may ask for a savepoint, a drain or a suspension."""
    rollbacks_max: int = 0
    """After each tick: how often somebody may roll the job back to another entry."""
    resets_max: int = 0
    """After each tick: how often somebody may move the position of a source."""
    imports: bool = False
    """True if the job begins with an entry of another warehouse, in which it has run before."""
    savepoints_at_rest_max: int = 0
    """After each tick: how often somebody may take a savepoint or dispose of one."""
    clean_ups_max: int = 0
    """After each tick, or during it: how often somebody may clean up. Ticks then also clean up at their end."""
    readers_max: int = 0
    """During each tick: how many readers may reserve a cut."""
    arrivals_max: int = 0
    """During each tick: how often more rows may become readable."""
    releases: bool = False
    """True if ticks run releases of the pipeline that declare other columns and names."""
    splits: bool = False
    """True if a source finds other splits from tick to tick, in another order."""
    vertices: bool = False
    """True if a vertex and its table come and go from tick to tick."""
    leases: bool = False
    """True if some ticks see only the lease of a holder, and leases run out."""
    clocks_jump: bool = False
    """True if clocks differ from tick to tick, and jump during a tick."""
    long: bool = False
    """True if every run is long. Otherwise each seed draws whether its run is long."""
    lists_lag: bool = False
    """True if lists of files and of entries may lag behind."""
    stores_fail: bool = False
    """True if writes and replies of stores may be lost, answers come late, and lists are stale."""
    older_formats: bool = False
    """True if entries are written and read by the codec, some in an older format."""
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
    """How many bytes an alignment may hold. The gates of the seed then put rows aside, and micro-batches are slow."""
    backs_up: bool = False
    """True if checkpoints are unaligned, and rows often wait while one is taken."""
    stops: bool = False
    """True if ticks are often stopped with a savepoint, which may fail."""
    dries_up: bool = False
    """True if no more rows come before the last tick."""
    rests: bool = False
    """True if time passes between ticks, so that leases run out."""
    polls_fail: bool = False
    """True if splits often cannot be read."""
    outside: bool = False
    """True if outside sinks get the rows of some append tables."""
    votes: bool = False
    """True if these sinks vote on each checkpoint."""
    compacts: int = 0
    """How many small files of an append table ticks compact into one. 0: they compact none."""
    broadcasts: bool = False
    """True if a vertex has broadcast state."""
    holds: bool = False
    """True if ticks may hold their checkpoint, and people approve or reject it."""
    cuts: bool = False
    """True if the sources read cuts of another job. Each of these asks for a checkpoint."""
    sources_end: int = 0
    """How many of the two sources are bounded: none, the payments, or both."""
    reopens: bool = False
    """True if a job that has finished goes on with sources that never end."""
    parts: bool = False
    """True if the orders are read in parts: some splits to their end, and then the others (B4)."""
    overwrites: bool = False
    """True if the pipeline has an overwrite table."""
    counts: bool = False
    """True if suites count rows, so that they also judge an epoch without rows. Only a judge asks for it, so that the
    other seeds keep their runs."""
    mishaps: Mishaps = NO_MISHAPS
    pause_ms: int = 0
    """The minimum pause, if the seed's job has an interval and one checkpoint at a time."""
    transaction_rows: int = 1
    """How many rows each transaction of the sources has. A slice ends where one ends, and may have more than asked."""
    orders_max: int | None = None
    """How many rows of the source with two splits an epoch may have."""


NO_MOVES: Final = Moves()


def _chance(what: str, seed: int) -> float:
    """Return the seed's chance of this move. It is drawn apart, so that all other moves stay what they were."""
    return Random(f"{what} of {seed}").random()  # noqa: S311 - a run must be repeatable


def drawn(seed: int, **forced: Any) -> Moves:  # noqa: ANN401 - fields of Moves
    """Return the moves of a seed. Named ones are as the caller says."""
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
    )
    return _fitting(replace(_with_a_way_back(moves), **forced))


def _with_a_way_back(moves: Moves) -> Moves:
    """Let users take savepoints between ticks, if they roll the job back and its ticks take none."""
    goes_back = moves.rollbacks_max and not moves.savepoints_max
    return replace(moves, savepoints_at_rest_max=max(1, moves.savepoints_at_rest_max)) if goes_back else moves


def _fitting(moves: Moves) -> Moves:
    """Return the moves without those that do not go together."""
    is_ending = moves.sources_end or moves.parts
    if moves.held_bytes_max is not None or moves.rejects:  # gates that put rows aside, and two checkpoints at a time
        moves = replace(moves, backs_up=False)
    moves = replace(moves, savepoints_max=max(2, moves.savepoints_max), hooks=True) if moves.stops else moves
    moves = replace(moves, arrivals_max=0) if is_ending else moves  # a split that has ended gets no more rows
    # a cut is read whole, by all, and the other job decides when its rows come
    without = replace(moves, resets_max=0, orders_max=None, arrivals_max=0, parts=False)
    return replace(without, savepoints_max=max(2, moves.savepoints_max)) if moves.cuts else moves
