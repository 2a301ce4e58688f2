"""Asks a running tick for a savepoint or to end: writes a request, and waits for the answer.

If no tick runs, this process takes a plain savepoint itself, and a stop is refused. A process that stops waiting
withdraws its request.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from checkpointing.commit.fencing import newest_claim, release_of
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import SavepointKind
from checkpointing.metadata.record import CheckpointRecord, Holder, Row
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.job_stores import (
    Activity,
    JobState,
    must_have_run,
    observe_state,
    state_of,
)
from jobs.warehouse.lease import is_alive, this_process
from jobs.warehouse.refusals import JobHeldError, NotCancelledError, SavepointRefusedError
from jobs.warehouse.requests import AnswerStatus, RequestFolder, SavepointAnswer
from jobs.warehouse.warehouse import Warehouse

POLL_S: Final = 0.1
LOOK_S: Final = 1.0
"""How often a waiting process checks whether the tick still runs."""
RELEASE_S: Final = 60.0
"""How long a stop waits after the answer until the tick has released the job."""
GOES_ON_S: Final = 5.0
"""How long a stop waits if the tick has just released the job and its process lives: it can claim the job again."""
_JUST_MS: Final = 30_000
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Taken:
    """A savepoint that was taken: its entry, and the holder of the tick that took it (None: it was taken at rest)."""

    record: CheckpointRecord
    by: Holder | None

    @property
    def how(self) -> str:
        """Who took the savepoint, as a text for the user."""
        return (
            f"taken by {self.by}, which goes on"
            if self.by
            else f"made of checkpoint {self.record.parent}, since no tick runs"
        )

    @property
    def closed_windows(self) -> str:
        """What a drain did to open windows, as a text for the user. Empty: nothing, or the job keeps no event time."""
        if not any(each.time is not None and each.time.drained for each in self.record.vertices):
            return ""
        return (
            "open windows are closed with the rows so far: if more rows of them come later, they have a second result. "
            "No table counts as complete further than its rows. --suspend keeps windows open"
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """The process that was asked, and how many seconds ago it was asked."""

    holder: Holder
    seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    """No tick runs any more. `by` is the process that was asked, and it ended or has `died`.

    `by` is None if no tick ran, and `why` says why.
    """

    by: Holder | None
    died: bool
    why: str


WaitListener = Callable[[Waiting], None]
"""A function that is called repeatedly while a process waits for an answer."""


class NothingRunsError(SavepointRefusedError):
    """No tick of the job runs, so there is nothing to stop. The message says why no tick runs."""


def take_savepoint(warehouse: Warehouse, told: WaitListener) -> Taken:
    """Ask the running tick to take a savepoint, or take it in this process if no tick runs.

    Raises NeverRunError, ClaimUnsettledError, and SavepointRefusedError saying why no savepoint was taken.
    """
    must_have_run(warehouse)
    checkpoints = CheckpointStore(warehouse)
    for _ in range(_TRIES):
        state = observe_state(warehouse, checkpoints)
        if state.activity is Activity.AT_REST:
            try:
                return Taken(savepoint_at_rest(warehouse), None)
            except JobHeldError:
                continue
        taken = _asked(warehouse, checkpoints, state, SavepointKind.PLAIN, told)
        if taken is not None:
            return taken
    raise SavepointRefusedError(f"{warehouse.paths.job}: its ticks ended before they took a savepoint; try again")


def stop(warehouse: Warehouse, kind: SavepointKind, told: WaitListener) -> Taken:
    """Stop the running tick with a savepoint, and return once it has released the job.

    Raises NeverRunError, NothingRunsError, and SavepointRefusedError saying why the stop failed.
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
    """End the running tick now, and return once it has released the job or is dead. What it committed stays (G3).

    Raises NeverRunError, and NotCancelledError if this host cannot see whether the tick lives, or if the tick runs an
    older release that does not know this request.
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
    request = folder.ask_to_cancel(this_process()).request
    answer = _waited(folder, request, lambda: _is_at_rest(warehouse, checkpoints), state.holder, told)
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
    """Return whether a tick runs.

    If a tick has just released the job, wait a while. That tick can be about to claim the job again, in order to go on
    in another trace.
    """
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
    """Ask the tick and wait. Return None if the tick ended without taking the savepoint."""
    if state.holder is None or state.activity is Activity.SILENT:
        raise SavepointRefusedError(
            f"{warehouse.paths.job}: {state.why}. If it is dead, 'tidemark run {warehouse.paths.job}' takes over"
        )
    folder = RequestFolder(warehouse)
    request = folder.ask(kind, this_process()).request
    answer = _waited(folder, request, lambda: _is_gone(warehouse, checkpoints, state), state.holder, told)
    if answer is None or answer.status is AnswerStatus.ENDED:
        return None
    if answer.status is AnswerStatus.TAKEN and answer.checkpoint is not None:
        return Taken(_record(warehouse, checkpoints, answer.checkpoint), state.holder)
    raise SavepointRefusedError(f"{warehouse.paths.job}: {state.holder} took no savepoint: {answer.message}")


def _record(warehouse: Warehouse, checkpoints: CheckpointStore, savepoint: CheckpointId) -> CheckpointRecord:
    for row in checkpoints.observe()[1]:
        if isinstance(row, CheckpointRecord) and row.checkpoint == savepoint:
            return row
    said = f"savepoint {savepoint} of {warehouse.paths.job} was taken, and has been disposed of since"
    raise SavepointRefusedError(said)


def _waited(
    folder: RequestFolder, request: str, is_gone: Callable[[], bool], holder: Holder, told: WaitListener
) -> SavepointAnswer | None:
    """Wait for the answer, and withdraw the request at the end. Return None if no tick will answer."""
    started = looked = time.monotonic()
    try:
        while (answer := folder.answer_to(request)) is None:
            now = time.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                if is_gone():
                    return folder.answer_to(request)
            told(Waiting(holder, now - started))
            time.sleep(POLL_S)
        return answer
    finally:
        folder.withdraw(request)


def _is_gone(warehouse: Warehouse, checkpoints: CheckpointStore, asked: JobState) -> bool:
    """Return whether no tick will answer. A living tick answers even after its release, and so does a later tick."""
    alive = is_alive(asked.holder) if asked.holder is not None else False
    return not alive and observe_state(warehouse, checkpoints).activity is not Activity.RUNNING


def _wait_for_release(warehouse: Warehouse, checkpoints: CheckpointStore) -> None:
    limit = time.monotonic() + RELEASE_S
    while time.monotonic() < limit:
        if _is_at_rest(warehouse, checkpoints):
            return
        time.sleep(POLL_S)
