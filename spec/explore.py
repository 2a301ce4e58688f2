"""Explores small worlds completely: `python -m spec.explore --world small`.

A world has two sources, a join, a sink, two checkpoints in flight, and one crash. The explorer tries every order of
answers, timers and the crash on the real doors, breadth first. Equal states are visited once. The invariants judge each
step that changes the stores. Every path must end caught up. At the end it prints the number of states and transitions.
"""

import sys
from argparse import ArgumentParser
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Final

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    Effect,
    PollSource,
    PublishTable,
    RunMicroBatch,
    SavepointKind,
    SavepointRequested,
    TickOutcome,
)
from spec.history import DoorBroke, History
from spec.reference.contents import expected, first_cuts, held, shown
from spec.reference.pipeline import MAX_PARALLELISM, ORDERS, ORDERS_TABLE, PAYMENTS_TABLE, SPLITS, differences
from spec.rules.invariants import Violation, violations
from spec.rules.savepoints import drained_rows, plain_savepoints
from spec.world.branching import branch, digest
from spec.world.faults import Faults
from spec.world.visits import to_row
from spec.world.whole_job import TELLING, DrivenJob, SmallJob, join_graph

# ------------------------------------------------------------------
# The steps that may come next in an explored world.
#
# Each has a name, so a path is a list of names that can be repeated.
#
# | step                | what happens                                                                              |
# |---------------------|-------------------------------------------------------------------------------------------|
# | `answer N`          | outstanding effect number N is carried out, and the door gets the answer                  |
# | `fail N FAULT`      | the same, and it fails in that way                                                        |
# | `fire`              | the next timer of a checkpoint is due                                                     |
# | `ask KIND N`        | somebody asks for a savepoint                                                             |
# | `overtake`          | another coordinator claims the job, recovers and dies, while this tick goes on            |
# | `crash BITS`        | the tick dies; outstanding effects with a bit set still happen; the next tick begins      |
# | `haunt BITS`        | the same, and the other effects may still happen at any later time: `late N`              |
# | `again`             | the tick was stopped or has failed, and the next one begins                               |
# | `dispose N`         | savepoint N is disposed of after the tick, and the next one begins                        |
# | `rollback N K BITS` | the tick ends, or dies as in `crash BITS`; a rollback takes the job to entry N; it dies   |
# |                     | after K effects, or not at all (K is `all`); the next tick begins                         |
# | `reset S R K BITS`  | the same for a reset: source S is read on from before row R                               |


FAULTS: Final[dict[type[Effect], tuple[str, ...]]] = {
    PollSource: ("poll_fails",),
    RunMicroBatch: ("micro_batch_fails", "micro_batch_not_staged"),
    CheckTables: ("table_problem", "check_fails"),
    AppendRow: ("reply_lost", "write_lost"),
    PublishTable: ("publish_fails",),
}
"""How an effect may fail. A refused entry comes from being overtaken."""
_SURVIVED: Final = frozenset({"check_fails", "micro_batch_not_staged"})
"""Faults that decline a checkpoint. The tick goes on with the next timer."""
EFFECTS_MAX: Final = 13
"""A rollback that also rolls an entry forward has this many: claim, three tables, cut, clean-up, entry, and those
again."""
_ALL: Final = "all"
_MOVES_ON: Final = frozenset({"answer", "fire"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """How often each thing may still happen, and what has happened in the running tick."""

    timers: int = 0
    crashes: int = 0
    savepoints: int = 0
    failures: int = 0
    overtakings: int = 0
    disposals: int = 0
    rollbacks: int = 0
    resets: int = 0
    zombies: bool = False
    """True if effects of a dead tick may still happen later."""
    troubled: bool = False
    """True if something failed in this tick, or it was overtaken. It may then fail."""
    stopping: bool = False
    """True if somebody asked this tick for the savepoint of a stop. It may then stop."""

    def afresh(self) -> "Chances":
        """Return the chances with which the next tick begins."""
        return replace(self, troubled=False, stopping=False)

    def allow(self, outcome: TickOutcome) -> bool:
        """Return whether the running tick may end like this."""
        match outcome:
            case TickOutcome.CAUGHT_UP | TickOutcome.FINISHED:
                return True
            case TickOutcome.STOPPED:
                return self.stopping
            case TickOutcome.HELD:
                return False
            case TickOutcome.FAILED:
                return self.troubled


def steps(driven: DrivenJob, left: Chances) -> Iterator[tuple[str, Chances]]:
    """Yield the name of every step that may come next, and what may still happen after it."""
    if driven.end is None:
        yield from _of_a_tick(driven, left)
    else:
        yield from _between_ticks(driven, left)
    for place in range(len(driven.ghosts)):
        yield f"late {place}", left


def moves_on(name: str) -> bool:
    """Return whether this step lets a tick go on. If no such step is left, the tick waits for ever."""
    return name.split(maxsplit=1)[0] in _MOVES_ON


def _of_a_tick(driven: DrivenJob, left: Chances) -> Iterator[tuple[str, Chances]]:
    for place in range(len(driven.outstanding)):
        yield f"answer {place}", left
    if left.failures:
        failed = replace(left, failures=left.failures - 1, troubled=True)
        for place, effect in enumerate(driven.outstanding):
            for fault in FAULTS.get(type(effect), ()):
                yield f"fail {place} {fault}", replace(failed, timers=left.timers + (fault in _SURVIVED))
    if left.timers and driven.wake_at_ms() is not None:
        yield "fire", replace(left, timers=left.timers - 1)
    if left.savepoints:
        for kind in SavepointKind:
            stops = left.stopping or kind is not SavepointKind.PLAIN
            yield f"ask {kind.value} {left.savepoints}", replace(left, savepoints=left.savepoints - 1, stopping=stops)
    if left.overtakings:
        yield "overtake", replace(left, overtakings=left.overtakings - 1, troubled=True)
    if left.crashes:
        after = replace(left, crashes=left.crashes - 1, timers=0).afresh()
        for come_true in range(2 ** len(driven.last_wishes())):
            yield f"{'haunt' if left.zombies else 'crash'} {come_true}", after
            yield from _meanwhile(driven, after, come_true)


def _between_ticks(driven: DrivenJob, left: Chances) -> Iterator[tuple[str, Chances]]:
    if driven.end is not None and driven.end.outcome is not TickOutcome.CAUGHT_UP:
        yield "again", left.afresh()
    if driven.end is not None and driven.end.outcome is TickOutcome.CAUGHT_UP:
        yield from _meanwhile(driven, left)
    if left.disposals:
        for checkpoint in driven.disposable():
            yield f"dispose {checkpoint}", replace(left, disposals=left.disposals - 1).afresh()


def _meanwhile(driven: DrivenJob, left: Chances, come_true: int = 0) -> Iterator[tuple[str, Chances]]:
    """Yield what may happen to the job while no tick runs, and where the process that does it may die."""
    deaths = [*(str(effects) for effects in range(1, EFFECTS_MAX + 1)), _ALL]
    if left.rollbacks:
        after = replace(left, rollbacks=left.rollbacks - 1).afresh()
        for checkpoint in driven.others():
            yield from ((f"rollback {checkpoint} {effects} {come_true}", after) for effects in deaths)
    if left.resets and driven.can_be_reset():
        after = replace(left, resets=left.resets - 1).afresh()
        for row in (0, driven.hands.readable[SPLITS[ORDERS][0]]):
            yield from ((f"reset {ORDERS} {row} {effects} {come_true}", after) for effects in deaths)


def take(driven: DrivenJob, name: str) -> None:
    """Take this step."""
    match name.split():
        case ["answer", place]:
            driven.answer(int(place))
        case ["fail", place, fault]:
            driven.answer(int(place), Faults(**{fault: 1.0}))
        case ["ask", kind, _]:
            driven.tell(SavepointRequested(name, SavepointKind(kind)))
        case ["overtake"]:
            driven.overtake()
        case ["crash" | "haunt" as how, come_true]:
            driven.crash(int(come_true), haunts=how == "haunt")
            driven.start()
        case ["late", place]:
            driven.come_late(int(place))
        case ["dispose", checkpoint]:
            driven.dispose(CheckpointId(int(checkpoint)))
            driven.start()
        case ["rollback" | "reset", *_, come_true] as words:
            driven.crash(int(come_true))
            _take_at_rest(driven, words)
            driven.start()
        case ["again"]:
            driven.start()
        case ["fire"]:
            driven.fire()
        case _:
            raise ValueError(f"there is no step {name!r}")


def _take_at_rest(driven: DrivenJob, words: list[str]) -> None:
    """Take a step that changes a job while no tick runs."""
    match words:
        case ["rollback", checkpoint, effects, _]:
            if int(checkpoint) in driven.others():  # an effect that still happened may have subsumed it
                driven.roll_back(CheckpointId(int(checkpoint)), _died_behind(effects))
        case ["reset", source, row, effects, _]:
            move = to_row(VertexId(source), SPLITS[VertexId(source)][:1], int(row))
            driven.reset(move, _died_behind(effects))
        case _:
            raise ValueError(f"there is no step {' '.join(words)!r}")


def _died_behind(effects: str) -> int | None:
    return None if effects == _ALL else int(effects)


BAR_WIDTH: Final = 40
SHOW_EVERY: Final = 200
_CRASHES: Final = frozenset({"crash", "haunt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallWorld:
    """What may happen in a world: how many rows there are, and how often each fault may happen."""

    orders: int
    payments: int
    slice_rows: int
    chances: Chances
    unaligned: bool = False
    retained: int = 1
    ticks_before: int = 0
    """How many ticks have run normally before anything else may happen. Each found this many more rows."""

    def job(self) -> SmallJob:
        """Return the job to drive."""
        config = CheckpointConfig(
            interval_ms=100,
            timeout_ms=600_000,
            max_concurrent=1 if self.unaligned else 2,
            tolerable_failures=100,
            tolerable_poll_failures=0,
            slice_rows_max=self.slice_rows,
            retained=self.retained,
            max_parallelism=MAX_PARALLELISM,
            unaligned=self.unaligned,
        )
        rows = {SplitId("a"): self.orders, SplitId("c"): self.payments}
        return SmallJob(graph=join_graph(), config=config, rows=rows)

    def begun(self) -> DrivenJob:
        """Return the job with its first tick begun, after the ticks that ran normally."""
        driven = DrivenJob(self.job())
        driven.start()
        for _ in range(self.ticks_before):
            while driven.end is None:
                driven.answer(0)
            for split, rows in driven.job.rows.items():
                driven.hands.readable[split] += rows
            driven.start()
        return driven


WORLDS: Final = {
    "small": SmallWorld(orders=1, payments=3, slice_rows=3, chances=Chances(timers=1, crashes=1)),
    "unaligned": SmallWorld(orders=1, payments=3, slice_rows=3, chances=Chances(timers=1, crashes=1), unaligned=True),
    "savepoint": SmallWorld(orders=1, payments=3, slice_rows=3, chances=Chances(savepoints=1, disposals=1)),
    "zombie": SmallWorld(orders=1, payments=1, slice_rows=3, chances=Chances(crashes=1, zombies=True)),
    "failing": SmallWorld(orders=1, payments=1, slice_rows=3, chances=Chances(failures=1, overtakings=1)),
    "rollback": SmallWorld(
        orders=1, payments=1, slice_rows=3, chances=Chances(crashes=1, rollbacks=1), retained=2, ticks_before=1
    ),
    "reset": SmallWorld(orders=1, payments=1, slice_rows=3, chances=Chances(crashes=1, resets=1), ticks_before=1),
    "medium": SmallWorld(orders=1, payments=3, slice_rows=3, chances=Chances(timers=2, crashes=1)),
    "large": SmallWorld(orders=2, payments=4, slice_rows=2, chances=Chances(timers=2, crashes=2)),
}


@dataclass(slots=True)
class State:
    """A state of the world, and the path to it."""

    driven: DrivenJob
    left: Chances
    path: tuple[str, ...] = ()


@dataclass(slots=True)
class Exploration:
    """What was found. Each of `violations` has the path that led to it."""

    states: int = 0
    transitions: int = 0
    merged: int = 0
    ended: int = 0
    in_flight: int = 0
    """The most checkpoints that were pending at the same time."""
    seconds: float = 0.0
    complete: bool = False
    crashes: set[tuple[int, int, int, Chances]] = field(default_factory=set)
    violations: list[tuple[Violation, tuple[str, ...]]] = field(default_factory=list)


def explore(world: SmallWorld, *, states_max: int | None = None, show: bool = False) -> Exploration:
    """Explore breadth first: to the end, to `states_max` states, or to the first path that breaks an invariant."""
    found, began = Exploration(), perf_counter()
    driven = world.begun()
    found.violations.extend((broken, ("start",)) for broken in _judge(driven.world.history, 0))
    queue = deque([State(driven, world.chances)])
    seen = {_digest(queue[0])}
    while queue and not found.violations and (states_max is None or found.states < states_max):
        state = queue.popleft()
        found.states += 1
        found.in_flight = max(found.in_flight, state.driven.pending())
        for after in _after(state, found):
            found.transitions += 1
            mark = _digest(after)
            if mark in seen:
                found.merged += 1
                continue
            seen.add(mark)
            queue.append(after)
        if show and found.states % SHOW_EVERY == 0:
            _progress(found, len(queue))
    found.complete = not queue and not found.violations
    found.seconds = perf_counter() - began
    return found


def _digest(state: State) -> int:
    driven = state.driven
    parts = (driven.door, driven.world, driven.generation, state.left, driven.end, driven.answers)
    return hash((digest(parts), digest(driven.outstanding), digest(driven.ghosts)))


# ------------------------------------------------------------------ what may come next


def _after(state: State, found: Exploration) -> Iterator[State]:
    """Yield every state that one more fact leads to; this uses the state up. A state without any must be an end."""
    end, coming = state.driven.end, list(steps(state.driven, state.left))
    if end is not None:
        found.ended += end.outcome is TickOutcome.CAUGHT_UP
        if not state.left.allow(end.outcome):
            found.violations.append((Violation("doors-hold", f"the tick ended {end}"), state.path))
    elif not any(moves_on(name) for name, _ in coming):
        found.violations.append((Violation("no-deadlock", "nothing may come next"), state.path))
    world = digest([state.driven.world]) if state.left.crashes else 0
    new = [(name, left) for name, left in coming if not _has_crashed(state, name, (world, left), found)]
    for name, left in new:
        driven = state.driven if (name, left) == new[-1] else branch(state.driven)  # the copy takes most of the time
        after = State(driven, left, (*state.path, name))
        events = len(after.driven.world.history.events)
        try:
            take(after.driven, name)
        except Exception as error:  # noqa: BLE001 - whatever a door raises is a finding
            after.driven.world.history.add(DoorBroke(after.driven.generation, f"{type(error).__name__}: {error}"))
        found.violations.extend((broken, after.path) for broken in _judge(after.driven.world.history, events))
        yield after


def _has_crashed(state: State, name: str, then: tuple[int, Chances], found: Exploration) -> bool:
    """Return whether a tick has crashed before in the same world with the same outstanding effects.

    What follows is the same.
    """
    how, come_true = name.split(maxsplit=1)[0], name.rsplit(maxsplit=1)[-1]
    if how not in _CRASHES:
        return False
    wishes: tuple[list[Effect], list[Effect]] = ([], list(state.driven.ghosts))
    for place, wish in enumerate(state.driven.last_wishes()):
        if int(come_true) >> place & 1:
            wishes[0].append(wish)
        elif how == "haunt":
            wishes[1].append(wish)
    world, left = then
    mark = (world, digest(wishes[0]), digest(wishes[1]), left)
    if mark not in found.crashes:
        found.crashes.add(mark)
        return False
    found.transitions += 1
    found.merged += 1
    return True


def replay(world: SmallWorld, path: tuple[str, ...]) -> DrivenJob:
    """Return the job at the end of a path."""
    driven = world.begun()
    for name in path:
        take(driven, name)
    return driven


# ------------------------------------------------------------------ judging


def _judge(history: History, since: int) -> Iterator[Violation]:
    """Judge a step that changed the stores. What only the door knows is judged when it shows."""
    if not any(isinstance(event, TELLING) for event in history.events[since:]):
        return
    yield from violations(history, contents=False)
    yield from _contents(history)


def _contents(history: History) -> Iterator[Violation]:
    """Compare the newest cut and its state with the replay of the sources. This graph has no tables before the join."""
    drains = drained_rows(history)
    for record, cut in (*first_cuts(history), *plain_savepoints(history)):
        due = expected(history, record, drains)
        padded = replace(cut, active=(*cut.active, (ORDERS_TABLE, frozenset()), (PAYMENTS_TABLE, frozenset())))
        tables = replace(shown(history, record, padded, due), orders=due.orders, payments=due.payments)
        yield from (Violation("cut-is-exact", what) for what in differences(due, tables))
        yield from (Violation("state-is-exact", what) for what in differences(due, held(history, record, due)))


# ------------------------------------------------------------------ the command


def main(arguments: list[str] | None = None) -> int:
    """Explore the world that the command line names. Return 0 if no invariant was broken."""
    parser = ArgumentParser(prog="python -m spec.explore", description=__doc__)
    parser.add_argument("--world", choices=list(WORLDS), default="small")
    parser.add_argument("--states", type=int, default=None, help="stop after so many states")
    options = parser.parse_args(arguments)
    found = explore(WORLDS[options.world], states_max=options.states, show=sys.stderr.isatty())
    for broken, path in found.violations[:3]:
        sys.stdout.write(f"\n{broken}\n  {' | '.join(path)}\n")
    rate = int(found.transitions / found.seconds) if found.seconds else 0
    how = "explored to the end" if found.complete else "not explored to the end"
    sys.stdout.write(
        f"\n{options.world}: {found.states} states, {found.transitions} transitions ({found.merged} merged, {rate} a "
        f"second), {found.in_flight} checkpoints in flight at most, {found.ended} ends, "
        f"{len(found.violations)} violations, {found.seconds:.1f} s, {how}\n"
    )
    return 1 if found.violations else 0


def _progress(found: Exploration, waiting: int) -> None:
    filled = BAR_WIDTH * found.states // (found.states + waiting)
    bar = "#" * filled + "." * (BAR_WIDTH - filled)
    sys.stderr.write(f"\r[{bar}] {found.states} states, {waiting} waiting, {found.transitions} transitions")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
