"""The steps that may come next in an explored world.

Each has a name, so a path is a list of names that can be repeated.

| step                | what happens                                                                              |
|---------------------|-------------------------------------------------------------------------------------------|
| `answer N`          | outstanding effect number N is carried out, and the door gets the answer                  |
| `fail N FAULT`      | the same, and it fails in that way                                                        |
| `fire`              | the next timer of a checkpoint is due                                                     |
| `ask KIND N`        | somebody asks for a savepoint                                                             |
| `overtake`          | another coordinator claims the job, recovers and dies, while this tick goes on            |
| `crash BITS`        | the tick dies; outstanding effects with a bit set still happen; the next tick begins      |
| `haunt BITS`        | the same, and the other effects may still happen at any later time: `late N`              |
| `again`             | the tick was stopped or has failed, and the next one begins                               |
| `dispose N`         | savepoint N is disposed of after the tick, and the next one begins                        |
| `rollback N K BITS` | the tick ends, or dies as in `crash BITS`; a rollback takes the job to entry N; it dies   |
|                     | after K effects, or not at all (K is `all`); the next tick begins                         |
| `reset S R K BITS`  | the same for a reset: source S is read on from before row R                               |
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
