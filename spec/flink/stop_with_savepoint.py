"""Stop with savepoint: first the savepoint's result, then how the tasks ended (F4).

Flink: `StopWithSavepointTerminationHandlerImpl` and, in front of it, `StopWithSavepointTerminationManager`,
which puts the two events in this order whichever comes first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from checkpointing.coordinator.task import TaskState


class StopFailure(Enum):
    """Why a stop failed."""

    SAVEPOINT = "savepoint_error"
    """The savepoint was not completed: the job goes on."""
    STOPPING = "stopping_error"
    """The savepoint is good, but a task did not finish: the job restarts as a whole, the savepoint stays."""


# ------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True)
class SavepointCompleted:
    """The savepoint of the stop is complete and lies at `path`."""

    path: str


@dataclass(frozen=True, slots=True)
class SavepointFailed:
    """The savepoint of the stop failed; `error` says why."""

    error: str


@dataclass(frozen=True, slots=True)
class TasksEnded:
    """All tasks have ended, in these states."""

    states: tuple[TaskState, ...]


StopFact = SavepointCompleted | SavepointFailed | TasksEnded

# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class StopSucceeded:
    """The job has stopped; restart it from `path`."""

    path: str


@dataclass(frozen=True, slots=True)
class StopFailed:
    """The job has not stopped as asked; `savepoint` is where a good savepoint lies nevertheless."""

    failure: StopFailure
    error: str
    savepoint: str | None = None


@dataclass(frozen=True, slots=True)
class RestartScheduler:
    """The job goes on: trigger periodically again."""


@dataclass(frozen=True, slots=True)
class RestartJob:
    """Some tasks have finished, some have not: restart the job as a whole."""

    error: str


StopEffect = StopSucceeded | StopFailed | RestartScheduler | RestartJob


class UnsupportedStopEventError(RuntimeError):
    """An event that cannot come in this state of a stop."""

    def __init__(self, fact: StopFact, state: str) -> None:
        super().__init__(f"a stop that is {state} can't take {type(fact).__name__}: the savepoint's result comes once")


class _State(Enum):
    WAITING_FOR_SAVEPOINT = "waiting for its savepoint"
    SAVEPOINT_CREATED = "waiting for its tasks to end"
    FINAL = "over"


@dataclass(slots=True)
class StopHandler:
    """One stop. The periodic scheduler was stopped before it begins."""

    _state: _State = _State.WAITING_FOR_SAVEPOINT
    _path: str = ""

    def step(self, fact: StopFact) -> tuple[StopEffect, ...]:
        """Take an event; raise UnsupportedStopEventError, changing nothing, if it can't come now."""
        match self._state:
            case _State.WAITING_FOR_SAVEPOINT:
                return self._savepoint(fact)
            case _State.SAVEPOINT_CREATED:
                return self._ended(fact)
            case _State.FINAL:
                if isinstance(fact, TasksEnded):
                    return ()
                raise UnsupportedStopEventError(fact, self._state.value)
            case _:
                assert_never(self._state)

    def _savepoint(self, fact: StopFact) -> tuple[StopEffect, ...]:
        match fact:
            case SavepointCompleted():
                self._state, self._path = _State.SAVEPOINT_CREATED, fact.path
                return ()
            case SavepointFailed():
                self._state = _State.FINAL
                return (RestartScheduler(), StopFailed(StopFailure.SAVEPOINT, fact.error))
            case TasksEnded():
                raise UnsupportedStopEventError(fact, self._state.value)
            case _:
                assert_never(fact)

    def _ended(self, fact: StopFact) -> tuple[StopEffect, ...]:
        if not isinstance(fact, TasksEnded):
            raise UnsupportedStopEventError(fact, self._state.value)
        self._state = _State.FINAL
        unfinished = _unfinished(fact.states)
        if not unfinished:
            return (StopSucceeded(self._path),)
        error = f"tasks ended {', '.join(unfinished)} instead of FINISHED; the savepoint at {self._path} is good"
        return (RestartJob(error), StopFailed(StopFailure.STOPPING, error, self._path))


def _unfinished(states: Iterable[TaskState]) -> list[str]:
    return sorted({state.value for state in states if state is not TaskState.FINISHED})


@dataclass(slots=True)
class StopOrder:
    """The events of a stop in the handler's order: what comes too early waits."""

    _savepoint_known: bool = False
    _early: TasksEnded | None = None

    def step(self, fact: StopFact) -> tuple[StopFact, ...]:
        """Return the events that the handler may take now, in order."""
        match fact:
            case SavepointCompleted() | SavepointFailed():
                self._savepoint_known = True
                early, self._early = self._early, None
                return (fact,) if early is None else (fact, early)
            case TasksEnded():
                if self._savepoint_known:
                    return (fact,)
                self._early = fact
                return ()
            case _:
                assert_never(fact)
