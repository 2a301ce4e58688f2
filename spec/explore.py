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
from checkpointing.identifiers import SplitId
from checkpointing.messages import Effect, TickOutcome
from spec.cut_contents import expected, first_cuts, held, shown
from spec.explore_branching import branch, digest
from spec.explore_job import TELLING, DrivenJob, SmallJob, join_graph
from spec.explore_steps import Chances, moves_on, steps, take
from spec.history import DoorBroke, History
from spec.invariants import Violation, violations
from spec.model import differences
from spec.pipeline import MAX_PARALLELISM, ORDERS_TABLE, PAYMENTS_TABLE
from spec.savepoints import drained_rows, plain_savepoints

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
