"""Decides when a tick ends: caught up, limit met, asked to stop, or failed. docs/STATES.md draws the table `MOVES`."""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, assert_never

from checkpointing.commit.at_rest import waits_for_approval
from checkpointing.commit.fencing import IDS_PER_CLAIM
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.failure_policy import COUNTED
from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.coordinator.properties import CheckpointProperties, savepoint, synchronous_savepoint
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.job.setup import TickLimits
from checkpointing.messages import (
    EndTick,
    LookForRival,
    NotifyAborted,
    RivalSeen,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    StopKind,
    TickOutcome,
)
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, Claim, RowKind

OWN_REQUEST: Final = "tick"
"""The request name of checkpoints that the tick itself requests: by rows, by quota, at its end."""


class TickPhase(Enum):
    """How near to its end a tick is."""

    RUNNING = "running"
    """The tick reads and takes checkpoints."""
    FINISHING = "finishing"
    """The tick reads no more. It ends when a cut shows every row that was sent."""
    SUSPENDING = "suspending"
    """The savepoint of a stop is being taken. If the savepoint fails, the tick goes on."""
    SUSPENDING_OR_FINISHING = "suspending_or_finishing"
    """As SUSPENDING, but the tick was also asked to stop. If the savepoint fails, the tick enters FINISHING."""
    STOPPING = "stopping"
    """The tick ends as soon as no entry of `checkpoints` is in doubt."""
    FAILING = "failing"
    """As STOPPING, but the tick ends as failed."""
    ENDED = "ended"


class Cause(Enum):
    """A cause that moves a tick from one phase to the next."""

    FAILURE = "failure"
    STOP_NOW = "stop now"
    STOP_AFTER_CHECKPOINT = "stop after checkpoint"
    SAVEPOINT_ASKED = "savepoint of a stop asked for"
    SAVEPOINT_TAKEN = "savepoint taken"
    SAVEPOINT_FAILED = "savepoint failed"
    CHECKPOINTS_TAKEN = "all checkpoints taken"
    """The tick has taken as many checkpoints as its limits allow."""
    HELD = "cut held"
    """A cut waits for a person's approval, so this tick can do nothing more."""
    DURATION_OVER = "duration over"
    FINISHED = "finished"
    """Every split has ended, and the newest cut shows the effect of every row (B4)."""
    CAUGHT_UP = "caught up"
    """Every split is idle, and the newest cut shows every row that was sent."""
    SHOWN = "all rows shown"
    """The newest cut shows every row that was sent, and nothing moves."""
    SPLIT_FAILED = "split failed too often"
    """A split cannot be read.

    Rows that were read from the other splits are committed first, so that these splits move on.
    """
    SETTLED = "no entry in doubt"


_STOPS: Final = {Cause.FAILURE: TickPhase.FAILING, Cause.STOP_NOW: TickPhase.STOPPING}
_PHASES: Final[dict[TickPhase, dict[Cause, TickPhase]]] = {
    TickPhase.RUNNING: {
        **_STOPS,
        Cause.CHECKPOINTS_TAKEN: TickPhase.STOPPING,
        Cause.HELD: TickPhase.STOPPING,
        Cause.STOP_AFTER_CHECKPOINT: TickPhase.FINISHING,
        Cause.DURATION_OVER: TickPhase.FINISHING,
        Cause.SPLIT_FAILED: TickPhase.FINISHING,
        Cause.SAVEPOINT_ASKED: TickPhase.SUSPENDING,
        Cause.CAUGHT_UP: TickPhase.ENDED,
        Cause.FINISHED: TickPhase.ENDED,
    },
    TickPhase.FINISHING: {
        **_STOPS,
        Cause.CHECKPOINTS_TAKEN: TickPhase.STOPPING,
        Cause.HELD: TickPhase.STOPPING,
        Cause.SHOWN: TickPhase.ENDED,
        Cause.FINISHED: TickPhase.ENDED,
    },
    TickPhase.SUSPENDING: {
        **_STOPS,
        Cause.STOP_AFTER_CHECKPOINT: TickPhase.SUSPENDING_OR_FINISHING,
        Cause.SAVEPOINT_TAKEN: TickPhase.STOPPING,
        Cause.SAVEPOINT_FAILED: TickPhase.RUNNING,
    },
    TickPhase.SUSPENDING_OR_FINISHING: {
        **_STOPS,
        Cause.SAVEPOINT_TAKEN: TickPhase.STOPPING,
        Cause.SAVEPOINT_FAILED: TickPhase.FINISHING,
    },
    TickPhase.STOPPING: {Cause.FAILURE: TickPhase.FAILING, Cause.SETTLED: TickPhase.ENDED},
    TickPhase.FAILING: {Cause.SETTLED: TickPhase.ENDED},
}
MOVES: Final[dict[tuple[TickPhase, Cause], TickPhase]] = {
    (phase, cause): reached for phase, moves in _PHASES.items() for cause, reached in moves.items()
}
"""(phase, cause) -> the next phase. A pair that is not here changes nothing."""


class Next(Enum):
    """What the tick does next if it does not end."""

    GO_ON = "go_on"
    CHECKPOINT = "checkpoint"


class Ending:
    """Decides when the tick ends. A tick never ends while an entry is in doubt."""

    def __init__(self, limits: TickLimits) -> None:
        """Begin with nothing requested and nothing done."""
        self._limits = limits
        self._started_ms = 0
        self._completed = 0
        self._end = EndTick(TickOutcome.STOPPED)
        self.phase = TickPhase.RUNNING
        self.requested = 0
        """How many checkpoints that this tick requested itself (rows, quota, end) have not ended."""
        self.uncommitted = False
        """True if rows were sent that no completed cut shows."""

    @property
    def over(self) -> bool:
        """True if the tick has ended."""
        return self.phase is TickPhase.ENDED

    @property
    def stopping(self) -> bool:
        """True if the tick is about to end. New requests must wait for the next tick."""
        return self.phase is not TickPhase.RUNNING

    @property
    def reads(self) -> bool:
        """True if more rows may be read. A tick that stops or fails could not commit them."""
        return self.phase in (TickPhase.RUNNING, TickPhase.SUSPENDING, TickPhase.SUSPENDING_OR_FINISHING)

    @property
    def settles(self) -> bool:
        """True if the tick only waits until no entry is in doubt. It begins no more checkpoints."""
        return self.phase in (TickPhase.STOPPING, TickPhase.FAILING)

    @property
    def takes_checkpoints(self) -> bool:
        """True if the tick may ask for checkpoints of its own. During the savepoint of a stop it may not."""
        return self.phase in (TickPhase.RUNNING, TickPhase.FINISHING)

    @property
    def wake_at_ms(self) -> int | None:
        """When the tick's duration is over, or None if that ends nothing."""
        limit = self._limits.duration_ms
        counts = self.phase in (TickPhase.RUNNING, TickPhase.SUSPENDING)
        return self._started_ms + limit if counts and limit is not None else None

    def started(self, now_ms: int) -> None:
        """Record when the tick began."""
        self._started_ms = now_ms

    def stop_requested(self, kind: StopKind) -> None:
        """Record a request to stop."""
        self.told(Cause.STOP_NOW if kind is StopKind.NOW else Cause.STOP_AFTER_CHECKPOINT)

    def failed(self, reason: Reason, message: str) -> None:
        """Record that the tick cannot go on. The tick reports its first failure."""
        if self.told(Cause.FAILURE):
            self._end = EndTick(TickOutcome.FAILED, reason, message)

    def ends_for(self, reason: Reason, message: str) -> bool:
        """Return True if the tick ends as failed for this reason, and its error ends with this message."""
        end = self._end
        return end.outcome is TickOutcome.FAILED and end.reason is reason and end.message.endswith(message)

    def split_failed(self, message: str, *, at_once: bool) -> None:
        """Record that a split has failed too often.

        The tick commits what was read and ends as failed, or fails `at_once`.
        """
        if self.told(Cause.FAILURE if at_once else Cause.SPLIT_FAILED):
            self._end = EndTick(TickOutcome.FAILED, Reason.TASK_FAILURE, message)

    def saved(self, record: CheckpointRecord) -> None:
        """Record that an entry is in. A held cut ends the tick, with outcome HELD unless it ends as failed."""
        if record.kind is RowKind.HELD:
            self.told(Cause.HELD)
            if self.phase is TickPhase.STOPPING and self._end.outcome is not TickOutcome.FAILED:
                self._end = EndTick(TickOutcome.HELD, message=waits_for_approval(record))

    def completed(self, *, uncommitted: bool) -> None:
        """Count a completed checkpoint. `uncommitted`: some rows that were sent are not in its cut."""
        self._completed += 1
        self.uncommitted = uncommitted

    def answered(
        self, effect: RequestSucceeded | RequestFailed, kind: SavepointKind | None, *, behind_barrier: bool
    ) -> bool:
        """Record the result of a request. Return whether a tick that was about to stop goes on.

        `kind` is None for a checkpoint that the tick itself requested. If such a checkpoint cannot be triggered, the
        tick fails. After the barrier of a stop no rows are read any more. So if the stop then fails, the job can only
        fail (E5).
        """
        failure = effect if isinstance(effect, RequestFailed) else None
        if kind is None:
            self.requested -= 1
            if failure and (failure.reason.pre_flight or failure.reason is Reason.TRIGGER_CHECKPOINT_FAILURE):
                self.failed(failure.reason, failure.message or failure.reason.message)
        elif kind is SavepointKind.PLAIN:
            return False
        elif failure is None:
            self.told(Cause.SAVEPOINT_TAKEN)
        elif behind_barrier:
            self.failed(failure.reason, f"the savepoint of the stop failed: {failure.message}")
        else:
            return self.told(Cause.SAVEPOINT_FAILED)
        return False

    def told(self, cause: Cause) -> bool:
        """Change the phase as `MOVES` says. Return whether it changed."""
        before, self.phase = self.phase, MOVES.get((self.phase, cause), self.phase)
        return self.phase is not before

    def next(
        self, now_ms: int, *, quiet: bool, in_doubt: bool, idle: bool, spent: bool, failing: bool, ended: bool
    ) -> Next | EndTick:
        """Return what to do next. EndTick is the last answer.

        `quiet`: nothing moves. `in_doubt`: an entry is being appended, or is unpublished. `idle`: no split had anything
        to read. `spent`: a split would read more in a new epoch, or a barrier without new rows would change something.
        `failing`: the last poll of a split failed. `ended`: every split has ended, and the end of the data was sent.
        """
        if ended and quiet and not self.uncommitted and self.told(Cause.FINISHED):
            self._end = EndTick(TickOutcome.FINISHED)
        if self._has_enough():
            self.told(Cause.CHECKPOINTS_TAKEN)
        if self._is_late(now_ms):
            self.told(Cause.DURATION_OVER)
        if not in_doubt:
            self.told(Cause.SETTLED)
        if quiet and not self.uncommitted:
            self.told(Cause.SHOWN)
            caught_up = idle and not failing and self._limits.until_caught_up
            if caught_up and self.told(Cause.CAUGHT_UP):
                self._end = EndTick(TickOutcome.CAUGHT_UP)
        if self.over:
            return self._end
        due = spent or (self.uncommitted and (idle or not self.reads))
        return Next.CHECKPOINT if quiet and due and self.takes_checkpoints else Next.GO_ON

    def _has_enough(self) -> bool:
        return self._limits.checkpoints is not None and self._completed >= self._limits.checkpoints

    def _is_late(self, now_ms: int) -> bool:
        limit = self._limits.duration_ms
        return limit is not None and now_ms - self._started_ms >= limit


# ------------------------------------------------------------------
# Decides how long a tick waits after one of its own checkpoints failed, before it asks for the next one.
#
# The tick requests a checkpoint of its own when it has read everything, and when a vertex waits for a barrier. Without
# the pause it would use up `tolerable_failures` within milliseconds, before a temporary fault can pass. Periodic
# checkpoints keep their interval, and `every_rows` checkpoints still come after that many rows.


FIRST_MS: Final = 1_000
LONGEST_MS: Final = 60_000


class Pause:
    """The pause after failures of the job. It is a second at first, and doubles with each further failure in a row."""

    def __init__(self) -> None:
        """Begin without a failure."""
        self._in_a_row = 0
        self.until_ms: int | None = None
        """When the pause is over. None: the last checkpoint did not fail."""

    def is_over(self, now_ms: int) -> bool:
        """Return whether the next checkpoint may be requested."""
        return self.until_ms is None or now_ms >= self.until_ms

    def answered(
        self, effect: told.RequestSucceeded | told.RequestFailed, kind: SavepointKind | None, now_ms: int
    ) -> None:
        """Record the result of a request. A user's request for a savepoint has a `kind`, and changes nothing here."""
        if kind is not None:
            return
        if isinstance(effect, told.RequestSucceeded):
            self._in_a_row, self.until_ms = 0, None
        elif effect.reason in COUNTED:
            self.until_ms = now_ms + min(LONGEST_MS, FIRST_MS * 2**self._in_a_row)
            self._in_a_row += 1


# ------------------------------------------------------------------
# Decides when a tick checks whether another process has claimed its job (G5).
#
# Usually, a tick whose job was taken over notices it when its next entry is refused. But if each of its checkpoints
# fails before the commit, the tick sends no entry. This happens if the other process deletes the tick's files, or if
# the tables cannot be read. Without a check, the tick would go on for up to `tolerable_failures` checkpoints, with a
# longer pause after each.
#
# The rule: after each failed checkpoint that counts as a failure of the job, the tick reads the newest claim. If that
# claim is of a later generation, the tick ends as fenced.


class RivalWatch:
    """Requests the newest claim after a failed checkpoint, one request at a time."""

    def __init__(self, generation: Generation) -> None:
        """Begin without a request. `generation` is the tick's own."""
        self._generation = generation
        self._looks = False

    def failed(self, aborted: NotifyAborted) -> tuple[LookForRival, ...]:
        """Return the request that a failed checkpoint makes necessary, unless one is in progress."""
        if self._looks or aborted.reason not in COUNTED:
            return ()
        self._looks = True
        return (LookForRival(self._generation),)

    def seen(self, fact: RivalSeen) -> str | None:
        """Handle the answer. Return why the tick must end, or None if it still holds the job."""
        self._looks = False
        if fact.claim is None:
            return None
        return f"the job was claimed by {fact.claim.holder}, generation {fact.claim.generation}"


# ------------------------------------------------------------------
# The checkpoint ids of one tick. They rise strictly, and come from the block that its claim reserved (A6).


class CheckpointIds:
    """Hands out ids. When the block is used up, another claim of the same generation reserves the next one."""

    def __init__(self, claim: Claim) -> None:
        """Begin with the claim's block."""
        self._claim = claim
        self.next_id = claim.first_id

    def take(self) -> CheckpointId | None:
        """Return the next id, or None if a further block must be reserved first."""
        if self.next_id > self._claim.last_id:
            return None
        taken, self.next_id = self.next_id, CheckpointId(self.next_id + 1)
        return taken

    def further(self, now_ms: int) -> Claim:
        """Return the claim to append for the next block."""
        first = CheckpointId(self._claim.last_id + 1)
        self._claim = self._claim.model_copy(
            update={
                "first_id": first,
                "last_id": CheckpointId(first + IDS_PER_CLAIM - 1),
                "at_ms": now_ms,
                "nonce": f"{self._claim.nonce.split('+')[0]}+{first}",
            }
        )
        return self._claim


# ------------------------------------------------------------------
# Savepoints that users ask for while a tick runs. Each request gets one answer, and its files are kept (A9, F4).
#
# | kind    | its entry                      | the tick                                                  |
# |---------|--------------------------------|-----------------------------------------------------------|
# | PLAIN | pinned, publishes nothing | goes on |
# | SUSPEND | a pinned checkpoint, published | reads nothing after the barrier. Ends when the entry is in|
# | DRAIN   | the same                       | as SUSPEND, and every input ends before the barrier       |


_PREFIX = "savepoint:"
"""This prefix keeps a user's request apart from the tick's own, whatever name the user chose."""
_ENDINGS: Final = {
    Reason.CHECKPOINT_COORDINATOR_SHUTDOWN: "the tick has ended: ask again",
    Reason.CHECKPOINT_COORDINATOR_SUSPEND: "the tick is about to end: ask again when it has",
}
"""The message to a user whose savepoint fails only because the tick ends."""
HOLDS: Final = (
    "the tick holds its next checkpoint for approval and ends then, and a stop would publish one: wait for its end, or "
    "end it now with 'tidemark cancel'"
)
"""The message to a user who wants to stop a tick that publishes nothing."""


class Savepoints:
    """The requests that wait for their answer, and the files that savepoints pin."""

    def __init__(self, rows: Iterable[CheckpointRecord], *, unaligned: bool) -> None:
        """Begin with the existing entries. `unaligned` is the job's setting."""
        self._unaligned = unaligned
        self._asked: dict[str, SavepointKind] = {}
        self._files: set[str] = set()
        known = tuple(rows)
        self._committed = {row.checkpoint: row for row in known if row.commits}
        """The entries after which a plain savepoint may be or was taken."""
        for row in known:
            self.pin(row)

    # -------------------------------------------------------------- requests

    @property
    def under_way(self) -> bool:
        """True if a request waits for its answer."""
        return bool(self._asked)

    def is_asked(self, request: str) -> bool:
        """Return whether this request waits for its answer."""
        return request in self._asked

    def ask(self, fact: SavepointRequested) -> told.CheckpointRequested:
        """Record a request. Return it in the coordinator's form."""
        self._asked[fact.request] = fact.kind
        return told.CheckpointRequested(_PREFIX + fact.request, self._properties(fact.kind))

    def answered(
        self, effect: told.RequestSucceeded | told.RequestFailed
    ) -> tuple[tuple[SavepointTaken | SavepointFailed, ...], SavepointKind | None]:
        """Return the answer to a user's request, and the savepoint's kind.

        For the tick's own requests, return nothing.
        """
        if not effect.request.startswith(_PREFIX):
            return (), None
        request = effect.request.removeprefix(_PREFIX)
        kind = self._asked.pop(request)
        if isinstance(effect, told.RequestSucceeded):
            return (SavepointTaken(request, effect.checkpoint),), kind
        return (SavepointFailed(request, effect.reason, _ENDINGS.get(effect.reason, effect.message)),), kind

    def give_up(self, reason: Reason, message: str) -> Iterator[SavepointFailed]:
        """Yield a failure for every request that still waits, because the tick has ended."""
        while self._asked:
            request, _ = self._asked.popitem()
            yield SavepointFailed(request, reason, message)

    def _properties(self, kind: SavepointKind) -> CheckpointProperties:
        match kind:
            case SavepointKind.PLAIN:
                return savepoint(unaligned=self._unaligned)
            case SavepointKind.SUSPEND | SavepointKind.DRAIN:
                return synchronous_savepoint(unaligned=self._unaligned, terminate=kind is SavepointKind.DRAIN)
            case _:
                assert_never(kind)

    # -------------------------------------------------------------- files

    def stored(self, row: CheckpointRecord) -> None:
        """Record an entry that is in. If it is committed, the next plain savepoint is taken after it."""
        self.pin(row)
        if row.commits:
            self._committed = {row.checkpoint: row}

    def pin(self, row: CheckpointRecord) -> None:
        """Keep the files that a savepoint's entry names. A plain savepoint also keeps the files of the cut before it.

        Other entries pin nothing.
        """
        if row.is_savepoint:
            self._files |= files_of(row)
        if not row.commits and row.parent in self._committed:
            self._files |= files_of(self._committed[row.parent])

    def unpinned(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return the files that no savepoint names."""
        return tuple(path for path in paths if path not in self._files)


def refused(fact: SavepointRequested, *, over: bool) -> SavepointFailed:
    """Return the answer to a savepoint request that comes when the tick has ended or is about to end."""
    reason = Reason.CHECKPOINT_COORDINATOR_SHUTDOWN if over else Reason.CHECKPOINT_COORDINATOR_SUSPEND
    return SavepointFailed(fact.request, reason, _ENDINGS[reason])
