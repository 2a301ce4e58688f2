"""The pause after a failed checkpoint: a second, and twice as long after each further failure in a row, up to a minute.

It is judged only where every checkpoint is the tick's own: without an interval, a quota of rows, requests of users, and
cuts of other jobs. Then nothing else brings a checkpoint, so one comes neither before the pause is over nor later.
"""

from typing import Final

from checkpointing.identifiers import CheckpointId
from checkpointing.messages import Effect, Fact, NotifyAborted, NotifyComplete, SavepointRequested
from spec.failures_in_a_row import FLINKS_LIST
from spec.steps import Begun
from spec.watching import DoorJudge, Watched

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000


class Pauses(DoorJudge):
    """Judges when a tick tries again after its own checkpoint has failed."""

    def __init__(self, door: Watched) -> None:
        """Begin without a failure."""
        super().__init__(door)
        self._in_a_row = 0
        self._over_ms: int | None = None
        config, limits = door.setup.config, door.setup.limits
        asks_otherwise = config.interval_ms is not None or config.every_rows is not None or door.setup.cut_groups
        self._are_own = not asks_otherwise and not limits.hold

    def told(self, fact: Begun | Fact) -> None:
        """Note that a user asks for checkpoints too."""
        self._are_own &= not isinstance(fact, SavepointRequested)

    def asked(self, effect: Effect) -> None:
        """Note how a checkpoint has ended."""
        if isinstance(effect, NotifyComplete):
            self._in_a_row, self._over_ms = 0, None
        elif isinstance(effect, NotifyAborted) and effect.reason in FLINKS_LIST:
            self._over_ms = self.door.now_ms + min(MINUTE_MS, SECOND_MS << self._in_a_row)
            self._in_a_row += 1

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge a checkpoint that has begun, and one that has not."""
        if not self._are_own or self._over_ms is None:
            return
        left_ms = self._over_ms - self.door.now_ms
        if given and left_ms > 0:
            self.wrong(f"checkpoint {given[0]} begins {left_ms} ms before the pause after a failure is over")
        if not given and left_ms <= 0 and self._is_due():
            self.wrong(f"the pause after a failure is over since {-left_ms} ms, and no checkpoint begins")

    def time_passed(self) -> None:
        """Judge a door that did nothing."""
        self.rested(())

    def _is_due(self) -> bool:
        """Return whether nothing moves. A tick that shows all rows would end, so the failed checkpoint's rows wait."""
        door = self.door
        splits = ((source.id, split) for source in door.setup.graph.sources() for split in source.splits)
        idle = all(each in door.ended or (each in door.idle_since and each not in door.failed) for each in splits)
        moves = door.pending or door.running or door.held_back or any(door.channels.segments.values())
        waits = door.restoring or door.reserving or door.next_id > door.last_id
        return idle and door.reads and door.setup.limits.until_caught_up and not (moves or waits)
