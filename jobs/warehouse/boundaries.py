"""Names the boundaries before and after a tick's effects, at which a test can stop or kill the process.

A tick crosses a boundary before and after each effect outside the process, such as `before:RunMicroBatch` and
`after:PublishTable:silver/flights`. In a real run nothing happens at a boundary.
"""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CloseHook,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.graph import JobGraph, TableMode
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CompactFiles,
    DiscardFiles,
    JudgeSuites,
    LookForRival,
    NotifyAborted,
    NotifyComplete,
    PollSource,
    PublishTable,
    RecordCut,
    RunMicroBatch,
)
from jobs.warehouse.delta_log import CommitMoment, FaultHook

KILL_VARIABLE: Final = "TIDEMARK_KILL_AT"

Boundary = Callable[[str], None]
"""Called with a boundary's name when it is crossed, from any thread."""

HookEffect = AskHook | RestoreHook | ResetHook | CloseHook
CoordinatorEffect = AskOperatorCoordinator | ResetOperatorCoordinator

CarriedOut = (
    PollSource
    | RunMicroBatch
    | JudgeSuites
    | CheckTables
    | AppendRow
    | PublishTable
    | RecordCut
    | CompactFiles
    | DiscardFiles
    | HookEffect
    | CoordinatorEffect
    | NotifyComplete
    | NotifyAborted
    | LookForRival
)
"""The effects that change or read something outside the process."""

CLAIM: Final = "Claim"
LEASE: Final = "Lease"
ENSURE_TABLES: Final = "EnsureTables"
ROLL_FORWARD: Final = "RollForward"
ROLL_FORWARD_OUTSIDE: Final = "RollForwardOutside"
PUBLISH_OUTSIDE: Final = "PublishOutside"
PRE_COMMIT: Final = "PreCommit"
ROLL_FORWARD_CUT: Final = "RollForwardCut"
PUBLISH_AGAIN: Final = "PublishAgain"
CORRECT_CUTS: Final = "CorrectCuts"
DISCARD_LEFTOVERS: Final = "DiscardLeftovers"
LINK_RENAMED: Final = "LinkRenamed"
RENAME_COLUMNS: Final = "RenameColumns"
WRITE_SUCCESSORS: Final = "WriteSuccessors"
CLEANUP: Final = "Cleanup"
RELEASE: Final = "Release"
LOG_COMMIT: Final = "LogCommit"

_SPEC: Final = re.compile(r"(?P<name>(?:before|after):[^#]+)(?:#(?P<occurrence>[1-9][0-9]*))?")


class InvalidBoundaryError(ValueError):
    """TIDEMARK_KILL_AT names no boundary. The message says how to name one."""


def cross_freely(name: str) -> None:
    """Do nothing when a boundary is crossed. Every real run uses this function."""
    del name


def boundary_of(effect: CarriedOut) -> str:
    """Return an effect's name at its boundaries: its kind, then the name of a table, a hook or a source."""
    kind = type(effect).__name__
    match effect:
        case PublishTable() if effect.publication.outside:
            return f"{PUBLISH_OUTSIDE}:{effect.publication.table}"
        case PublishTable():
            return f"{kind}:{effect.publication.table}"
        case AskHook() | RestoreHook() | ResetHook() | CloseHook():
            return f"{kind}:{effect.hook}"
        case AskOperatorCoordinator() | ResetOperatorCoordinator():
            return f"{kind}:{effect.coordinator}"
        case _:
            return kind


def boundary_names(graph: JobGraph) -> tuple[str, ...]:
    """Return the boundaries that a tick of this job can cross.

    Their order is roughly the order in which a tick crosses them if the tick first recovers. The result leaves out the
    boundaries of repairing tables (`tick.carrier`) and of renaming (`tick.renaming`).
    """
    tables = [str(table.name) for table in graph.tables()]
    outside = [str(table.name) for table in graph.tables() if table.outside]
    votes = [str(table.name) for table in graph.tables() if table.votes]
    hooks = [str(hook.name) for hook in graph.hooks]
    coordinated = [str(vertex.id) for vertex in graph.vertices if vertex.coordinated]
    asked = (ResetOperatorCoordinator, AskOperatorCoordinator)
    steps = [
        CLAIM,
        LEASE,
        ENSURE_TABLES,
        *(f"{ROLL_FORWARD}:{table}" for table in tables),
        *(f"{ROLL_FORWARD_OUTSIDE}:{table}" for table in outside),
        ROLL_FORWARD_CUT,
        DISCARD_LEFTOVERS,
        *(f"{kind.__name__}:{source}" for source in coordinated for kind in asked),
        *(f"{kind.__name__}:{hook}" for hook in hooks for kind in (ResetHook, RestoreHook, AskHook)),
        *(kind.__name__ for kind in (PollSource, RunMicroBatch, DiscardFiles)),
        *([CompactFiles.__name__] if any(table.mode is TableMode.APPEND for table in graph.tables()) else []),
        *([JudgeSuites.__name__] if any(table.judged for table in graph.tables()) else []),
        CheckTables.__name__,
        *(f"{PRE_COMMIT}:{table}" for table in votes),
        AppendRow.__name__,
        *(f"{PublishTable.__name__}:{table}" for table in tables),
        *(f"{PUBLISH_OUTSIDE}:{table}" for table in outside),
        *(kind.__name__ for kind in (RecordCut, NotifyComplete, NotifyAborted, LookForRival)),
        *(f"{LOG_COMMIT}:{log}" for log in ("checkpoints", "cuts", "tables")),
        *(f"{CloseHook.__name__}:{hook}" for hook in hooks),
        CLEANUP,
        RELEASE,
    ]
    return tuple(f"{side}:{step}" for step in steps for side in ("before", "after"))


@contextmanager
def around(boundary: Boundary, step: str) -> Iterator[None]:
    """Cross the boundary before a step, and the boundary after the step if the step succeeds."""
    boundary(f"before:{step}")
    yield
    boundary(f"after:{step}")


def log_hook(boundary: Boundary, log: str) -> FaultHook:
    """Return a hook that crosses a boundary before and after every commit to a Delta log."""

    def cross(moment: CommitMoment) -> None:
        boundary(f"{moment.value}:{LOG_COMMIT}:{log}")

    return cross


@dataclass(slots=True)
class KillAt:
    """Kills this process (SIGKILL) when a boundary is crossed for the n-th time.

    A name without a table, such as `before:PublishTable`, stands for the boundaries of all tables.
    """

    name: str
    occurrence: int = 1
    _crossed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, name: str) -> None:
        """Cross a boundary. Kill the process if this is the boundary and the occurrence to kill at."""
        if name != self.name and not name.startswith(f"{self.name}:"):
            return
        with self._lock:
            self._crossed += 1
            if self._crossed == self.occurrence:
                os.kill(os.getpid(), signal.SIGKILL)


def boundary_from_environment() -> Boundary:
    """Return the function that kills at the boundary in TIDEMARK_KILL_AT, such as `after:AppendRow#2`.

    Without the variable, the function does nothing. Raises InvalidBoundaryError for any other text.
    """
    text = os.environ.get(KILL_VARIABLE)
    if not text:
        return cross_freely
    found = _SPEC.fullmatch(text)
    if found is None:
        raise InvalidBoundaryError(f"{KILL_VARIABLE}={text!r}: write before:<step> or after:<step>, then #<n>")
    return KillAt(found["name"], int(found["occurrence"] or 1))
