"""Decides how a stop with a savepoint ends: first by the savepoint's result, then by how the tasks ended (F4).

Flink has `StopWithSavepointTerminationHandlerImpl`, and in front of it `StopWithSavepointTerminationManager`. The
manager puts the two events in this order, whichever comes first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from checkpointing.coordinator.task import TaskState


class StopFailure(Enum):
    """Says why a stop failed."""

    SAVEPOINT = "savepoint_error"
    """The savepoint did not complete. The job goes on."""
    STOPPING = "stopping_error"
    """The savepoint is good and stays, but a task did not finish. The whole job restarts."""


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
    """The job has stopped. It can be restarted from `path`."""

    path: str


@dataclass(frozen=True, slots=True)
class StopFailed:
    """The job has not stopped as requested. If the savepoint is good nevertheless, it lies at `savepoint`."""

    failure: StopFailure
    error: str
    savepoint: str | None = None


@dataclass(frozen=True, slots=True)
class RestartScheduler:
    """The job goes on, so trigger periodic checkpoints again."""


@dataclass(frozen=True, slots=True)
class RestartJob:
    """Some tasks have finished and others have not, so restart the whole job."""

    error: str


StopEffect = StopSucceeded | StopFailed | RestartScheduler | RestartJob


class UnsupportedStopEventError(RuntimeError):
    """This event cannot come in this state of a stop."""

    def __init__(self, fact: StopFact, state: str) -> None:
        super().__init__(f"a stop that is {state} can't take {type(fact).__name__}: the savepoint's result comes once")


class _State(Enum):
    WAITING_FOR_SAVEPOINT = "waiting for its savepoint"
    SAVEPOINT_CREATED = "waiting for its tasks to end"
    FINAL = "over"


@dataclass(slots=True)
class StopHandler:
    """Handles one stop. The caller stops the periodic scheduler before."""

    _state: _State = _State.WAITING_FOR_SAVEPOINT
    _path: str = ""

    def step(self, fact: StopFact) -> tuple[StopEffect, ...]:
        """Take an event and return the effects.

        Raise UnsupportedStopEventError, and change nothing, if it can't come now.
        """
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
    """Puts the events of a stop in the handler's order. An event that comes too early waits."""

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
