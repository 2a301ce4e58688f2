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
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from checkpointing.identifiers import CheckpointId
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

FAULTS: Final[dict[type[Effect], tuple[str, ...]]] = {
    PollSource: ("poll_fails",),
    RunMicroBatch: ("micro_batch_fails",),
    CheckTables: ("table_problem",),
    AppendRow: ("reply_lost", "write_lost"),
    PublishTable: ("publish_fails",),
}
"""How an effect may go wrong; that a row is refused comes of being overtaken."""
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
                yield f"fail {place} {fault}", failed
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


def _between_ticks(driven: DrivenJob, left: Chances) -> Iterator[tuple[str, Chances]]:
    if driven.end is not None and driven.end.outcome is not TickOutcome.CAUGHT_UP:
        yield "again", left.afresh()
    if left.disposals:
        for checkpoint in driven.disposable():
            yield f"dispose {checkpoint}", replace(left, disposals=left.disposals - 1).afresh()


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
        case ["again"]:
            driven.start()
        case ["fire"]:
            driven.fire()
        case _:
            raise ValueError(f"there is no step {name!r}")
