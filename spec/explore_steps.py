"""What may come next in an explored world. Every step has a name, so a path is a list of names and can be told again.

| step                | what happens                                                                              |
|---------------------|-------------------------------------------------------------------------------------------|
| `answer N`          | the effect at place N of what is outstanding is carried out, and the door is told         |
| `fail N FAULT`      | the same, and it goes wrong in that way                                                   |
| `fire`              | the next timer of a checkpoint is due                                                     |
| `ask KIND N`        | somebody asks for a savepoint                                                             |
| `overtake`          | another coordinator claims the job, recovers and dies, while this tick goes on            |
| `crash BITS`        | the tick dies, what it wanted of the stores comes true where a bit is set; the next begins|
| `haunt BITS`        | the same, and what did not come true may still come at any later time: `late N`           |
| `again`             | the tick was stopped or has failed, and the next one begins                               |
| `dispose N`         | savepoint N is disposed of when the tick is over, and the next one begins                 |
| `rollback N K BITS` | the tick is over, or dies as in `crash BITS`; the job goes back to row N, and who takes it |
|                     | there dies behind K effects, or does not (K is `all`); the next tick begins               |
| `reset S R K BITS`  | the same with source S, which is read on from before row R                                |
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from checkpointing.identifiers import CheckpointId, VertexId
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
from spec.explore_job import DrivenJob
from spec.faults import Faults
from spec.pipeline import ORDERS, SPLITS
from spec.resetting import to_row

FAULTS: Final[dict[type[Effect], tuple[str, ...]]] = {
    PollSource: ("poll_fails",),
    RunMicroBatch: ("micro_batch_fails", "micro_batch_not_staged"),
    CheckTables: ("table_problem", "check_fails"),
    AppendRow: ("reply_lost", "write_lost"),
    PublishTable: ("publish_fails",),
}
"""How an effect may go wrong; that a row is refused comes of being overtaken."""
_SURVIVED: Final = frozenset({"check_fails", "micro_batch_not_staged"})
"""Faults that decline a checkpoint: the tick goes on with the next timer."""
EFFECTS_MAX: Final = 13
"""As many as a rollback has with a row to roll forward: claim, three tables, a cut, clean-up, its row, those again."""
_ALL: Final = "all"
_MOVES_ON: Final = frozenset({"answer", "fire"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """How often what may still happen, and what has happened in the tick that runs."""

    timers: int = 0
    crashes: int = 0
    savepoints: int = 0
    failures: int = 0
    overtakings: int = 0
    disposals: int = 0
    rollbacks: int = 0
    resets: int = 0
    zombies: bool = False
    """Whether what a dead tick wanted may come true later."""
    troubled: bool = False
    """Something failed in this tick, or it was overtaken: it may fail."""
    stopping: bool = False
    """Somebody asked this tick for the savepoint of a stop: it may stop."""

    def afresh(self) -> "Chances":
        """Return what the next tick begins with."""
        return replace(self, troubled=False, stopping=False)

    def allow(self, outcome: TickOutcome) -> bool:
        """Return whether the tick that runs may end so."""
        match outcome:
            case TickOutcome.CAUGHT_UP:
                return True
            case TickOutcome.STOPPED:
                return self.stopping
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
    """Return whether a tick goes on by that step; if none is left, it waits for ever."""
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
    """Yield what somebody may do to the rows of a job while no tick runs, and where he may die over it."""
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
    """Let a step happen."""
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
    """Let happen what happens to the rows of a job while no tick runs."""
    match words:
        case ["rollback", checkpoint, effects, _]:
            if int(checkpoint) in driven.others():  # a wish that came true may have subsumed it
                driven.roll_back(CheckpointId(int(checkpoint)), _died_behind(effects))
        case ["reset", source, row, effects, _]:
            move = to_row(VertexId(source), SPLITS[VertexId(source)][:1], int(row))
            driven.reset(move, _died_behind(effects))
        case _:
            raise ValueError(f"there is no step {' '.join(words)!r}")


def _died_behind(effects: str) -> int | None:
    return None if effects == _ALL else int(effects)
