"""Asking a running tick for a savepoint or its end: write the request, wait for the answer, do without if it is gone.

A plain savepoint of a job at rest is taken here; a stop of one has nothing to do. Whoever stops waiting takes
the request back.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from checkpointing.commit.fencing import newest_claim, release_of
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import SavepointKind
from checkpointing.metadata.record import Holder, Row
from jobs.at_rest.savepoint import savepoint_at_rest
from jobs.holding.failures import JobHeldError, NotCancelledError, SavepointRefusedError
from jobs.holding.job_state import Activity, JobState, must_have_run, observe_state, state_of
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.holders import is_alive, this_process
from jobs.stores.requests import AnswerStatus, RequestFolder, SavepointAnswer
from jobs.stores.warehouse import Warehouse

POLL_S: Final = 0.1
LOOK_S: Final = 1.0
"""How often a waiting asker looks whether the tick is still there."""
RELEASE_S: Final = 60.0
"""How long a stop waits, once it is answered, until the tick has released the job."""
GOES_ON_S: Final = 5.0
"""How long a stop waits for a tick that has just released the job and whose process lives: it may go on at once."""
_JUST_MS: Final = 30_000
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Taken:
    """The savepoint of that id is there. `by` is the tick that took it, None if it was taken at rest."""

    checkpoint: CheckpointId
    by: Holder | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who has been asked, how long ago in seconds."""

    holder: Holder
    seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    """No tick runs any more: that of `by` was asked and ended, or `died` meanwhile. `by` None: none ran, for `why`."""

    by: Holder | None
    died: bool
    why: str


WaitListener = Callable[[Waiting], None]
"""Called again and again while an asker waits."""


class NothingRunsError(SavepointRefusedError):
    """A stop of a job that no tick runs: says since when."""


def take_savepoint(warehouse: Warehouse, told: WaitListener) -> Taken:
    """Take a savepoint, by the running tick or at rest.

    Raises NeverRunError; SavepointRefusedError saying why there is none; ClaimUnsettledError.
    """
    must_have_run(warehouse)
    checkpoints = CheckpointStore(warehouse)
    for _ in range(_TRIES):
        state = observe_state(warehouse, checkpoints)
        if state.activity is Activity.AT_REST:
            try:
                return Taken(savepoint_at_rest(warehouse).checkpoint, None)
            except JobHeldError:
                continue
        taken = _asked(warehouse, checkpoints, state, SavepointKind.PLAIN, told)
        if taken is not None:
            return taken
    raise SavepointRefusedError(f"{warehouse.paths.job}: its ticks ended before they took a savepoint; try again")


def stop(warehouse: Warehouse, kind: SavepointKind, told: WaitListener) -> Taken:
    """Stop the running tick with a savepoint, and return once it has released the job.

    Raises NeverRunError; NothingRunsError; SavepointRefusedError saying why the stop failed.
    """
    must_have_run(warehouse)
    checkpoints = CheckpointStore(warehouse)
    state = _observed(warehouse, checkpoints)
    if state.activity is not Activity.AT_REST:
        taken = _asked(warehouse, checkpoints, state, kind, told)
        if taken is not None:
            _wait_for_release(warehouse, checkpoints)
            return taken
        raise NothingRunsError(
            f"{state.holder} ended before it took the savepoint of the stop, and says why where it ran. What was "
            f"committed stays; 'tidemark checkpoints list {warehouse.paths.job}' shows it"
        )
    raise NothingRunsError(
        f"nothing to stop: no tick of {warehouse.paths.job} runs in {warehouse.root} ({state.why}). What was committed "
        f"stays; 'tidemark savepoint {warehouse.paths.job}' keeps the newest checkpoint"
    )


def end_now(warehouse: Warehouse, told: WaitListener) -> Ended:
    """End the running tick now, and return once it has released the job or is dead; what it committed stays (G3).

    Raises NeverRunError; NotCancelledError if nobody can tell whether its holder lives, or it does not understand.
    """
    must_have_run(warehouse)
    checkpoints = CheckpointStore(warehouse)
    state = _observed(warehouse, checkpoints)
    job = warehouse.paths.job
    if state.activity is Activity.AT_REST:
        return Ended(None, died=False, why=state.why)
    if state.holder is None or state.activity is Activity.SILENT:
        raise NotCancelledError(
            f"{job} is not cancelled: {state.why}. If it is dead, 'tidemark run {job}' takes over; cancel that one"
        )
    folder = RequestFolder(warehouse)
    request = folder.ask_to_cancel(this_process())
    try:
        answer = _waited(folder, request.request, lambda: _is_at_rest(warehouse, checkpoints), state.holder, told)
    finally:
        folder.withdraw(request.request)
    if answer is not None and answer.status is AnswerStatus.UNREADABLE:
        raise NotCancelledError(
            f"{job} is not cancelled: {state.holder} runs an older Tidemark, which cannot be asked for it. End that "
            "process with Ctrl-C or SIGTERM, and cancel again"
        )
    _wait_for_release(warehouse, checkpoints)
    after = observe_state(warehouse, checkpoints)
    died = after.activity is Activity.AT_REST and after.holder == state.holder
    return Ended(state.holder, died=died, why=after.why)


def _observed(warehouse: Warehouse, checkpoints: CheckpointStore) -> JobState:
    """Return whether a tick runs. A tick between two traces has released the job for a moment: that one runs."""
    until = time.monotonic() + GOES_ON_S
    while True:
        _, rows = checkpoints.observe()
        state = state_of(warehouse, rows)
        if state.activity is not Activity.AT_REST or not _may_go_on(warehouse, rows) or time.monotonic() >= until:
            return state
        time.sleep(POLL_S)


def _may_go_on(warehouse: Warehouse, rows: tuple[Row, ...]) -> bool:
    claim = newest_claim(rows)
    release = release_of(rows, claim.generation) if claim is not None else None
    if claim is None or release is None or warehouse.now_ms() - release.at_ms > _JUST_MS:
        return False
    return claim.holder != this_process() and is_alive(claim.holder) is True


def _is_at_rest(warehouse: Warehouse, checkpoints: CheckpointStore) -> bool:
    return observe_state(warehouse, checkpoints).activity is Activity.AT_REST


def _asked(
    warehouse: Warehouse, checkpoints: CheckpointStore, state: JobState, kind: SavepointKind, told: WaitListener
) -> Taken | None:
    """Ask the tick and wait; None if it is gone without having done it."""
    if state.holder is None or state.activity is Activity.SILENT:
        raise SavepointRefusedError(
            f"{warehouse.paths.job}: {state.why}. If it is dead, 'tidemark run {warehouse.paths.job}' takes over"
        )
    folder = RequestFolder(warehouse)
    request = folder.ask(kind, this_process())
    try:
        answer = _waited(folder, request.request, lambda: _is_gone(warehouse, checkpoints, state), state.holder, told)
    finally:
        folder.withdraw(request.request)
    if answer is None or answer.status is AnswerStatus.ENDED:
        return None
    if answer.status is AnswerStatus.TAKEN and answer.checkpoint is not None:
        return Taken(answer.checkpoint, state.holder)
    raise SavepointRefusedError(f"{warehouse.paths.job}: {state.holder} took no savepoint: {answer.message}")


def _waited(
    folder: RequestFolder, request: str, is_gone: Callable[[], bool], holder: Holder, told: WaitListener
) -> SavepointAnswer | None:
    started = looked = time.monotonic()
    while True:
        answer = folder.answer_to(request)
        if answer is not None:
            return answer
        now = time.monotonic()
        if now - looked >= LOOK_S:
            looked = now
            if is_gone():
                return folder.answer_to(request)
        told(Waiting(holder, now - started))
        time.sleep(POLL_S)


def _is_gone(warehouse: Warehouse, checkpoints: CheckpointStore, asked: JobState) -> bool:
    """Whether nobody will answer: a tick that lives answers even after its release, and another tick answers too."""
    alive = is_alive(asked.holder) if asked.holder is not None else False
    return not alive and observe_state(warehouse, checkpoints).activity is not Activity.RUNNING


def _wait_for_release(warehouse: Warehouse, checkpoints: CheckpointStore) -> None:
    limit = time.monotonic() + RELEASE_S
    while time.monotonic() < limit:
        if _is_at_rest(warehouse, checkpoints):
            return
        time.sleep(POLL_S)
