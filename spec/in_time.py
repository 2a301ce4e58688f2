"""Judges time limits. A late hook must fail its checkpoint, or the restore, at its limit and not before (A8).

The door must also ask to be woken when a hook becomes late and when a checkpoint expires. Otherwise it would notice
either only with the next fact. And after each fact it must do at once all that it can. If then only time passes, it
must do nothing until its timer is due.
"""

from typing import Final

from checkpointing.coordinator.messages import AskHook, ResetHook, RestoreHook
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import Effect, Fact, NotifyAborted, TimeAdvanced
from spec.steps import Begun
from spec.watching import DoorJudge, Watched, begins_commit

_EXPIRED: Final = Reason.CHECKPOINT_EXPIRED


class HooksInTime(DoorJudge):
    """Judges what becomes of a hook that does not answer."""

    def __init__(self, door: Watched) -> None:
        """Begin without a question to any hook."""
        super().__init__(door)
        self._limits: dict[str, int] = {hook.name: hook.timeout_ms for hook in door.setup.graph.hooks}
        self._restore_ms: dict[str, int] = {}
        self._asked_ms: dict[tuple[str, CheckpointId], int] = {}
        self._given_ms: dict[CheckpointId, int] = {}

    @property
    def applies(self) -> bool:
        """Return whether the job has hooks."""
        return bool(self._limits)

    def asked(self, effect: Effect) -> None:
        """Note when the time of a hook is over, and judge an expiry."""
        match effect:
            case RestoreHook() | ResetHook():
                self._restore_ms[effect.hook] = self.door.now_ms + self._limits[effect.hook]
            case AskHook():
                self._asked_ms[effect.hook, effect.checkpoint] = self.door.now_ms + self._limits[effect.hook]
            case NotifyAborted(checkpoint, reason) if reason is _EXPIRED:
                self._judge_expiry(checkpoint, effect.message)
            case _:
                pass

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Note the triggers, and judge the hooks that are late."""
        for checkpoint in given:
            self._given_ms[checkpoint] = self.door.now_ms
        self._judge_late()

    def time_passed(self) -> None:
        """Judge the hooks that are late."""
        self._judge_late()

    def _judge_late(self) -> None:
        door = self.door
        if door.is_over:
            return
        for hook, due_ms in self._restore_ms.items():
            if due_ms <= door.now_ms and hook in door.restoring:
                self.wrong(f"hook {hook} had to be restored until {due_ms}, and the tick still waits")
        for asked, due_ms in self._asked_ms.items():
            if due_ms <= door.now_ms and asked in door.asked_hooks and asked[1] in door.pending:
                self.wrong(f"hook {asked[0]} had to answer for {asked[1]} until {due_ms}, and it is still awaited")

    def _judge_expiry(self, checkpoint: CheckpointId, message: str) -> None:
        """Judge a checkpoint that took too long. If a hook is late, the message names it."""
        door = self.door
        late = [hook for (hook, of), due_ms in self._asked_ms.items() if of == checkpoint and due_ms <= door.now_ms]
        given_ms = self._given_ms.get(checkpoint)
        over = given_ms is not None and door.now_ms >= given_ms + door.setup.config.timeout_ms
        awaited = [hook for hook in late if (hook, checkpoint) in door.asked_hooks]
        if not over and not awaited:
            self.wrong(f"checkpoint {checkpoint} expired before its time, and no hook is late")
        if awaited and not over and not any(repr(hook) in message for hook in awaited):
            self.wrong(f"hook {awaited[0]} was late for checkpoint {checkpoint}, and the listeners heard {message!r}")


class Wakes(DoorJudge):
    """Judges when the door asks to be woken."""

    def __init__(self, door: Watched) -> None:
        """Begin without a timer."""
        super().__init__(door)
        self._limits: dict[str, int] = {hook.name: hook.timeout_ms for hook in door.setup.graph.hooks}
        self._due_ms: dict[object, int] = {}
        """When each asked hook becomes late, and when each checkpoint expires."""
        self._committing: set[object] = set()

    def asked(self, effect: Effect) -> None:
        """Note when the time of a hook is over. A checkpoint that is being committed does not expire."""
        match effect:
            case RestoreHook() | ResetHook():
                self._due_ms[effect.hook] = self.door.now_ms + self._limits[effect.hook]
            case AskHook():
                self._due_ms[effect.hook, effect.checkpoint] = self.door.now_ms + self._limits[effect.hook]
            case _:
                commits = begins_commit(effect)
                self._committing |= set() if commits is None else {commits}

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge the timer of a door at rest."""
        door = self.door
        for checkpoint in given:
            self._due_ms[checkpoint] = door.now_ms + door.setup.config.timeout_ms
        if door.is_over or not self._due_ms:
            return
        awaited = {*door.restoring, *door.asked_hooks, *door.pending}
        self._due_ms = {what: due_ms for what, due_ms in self._due_ms.items() if what in awaited - self._committing}
        # a checkpoint that waits for another one's commit may have all its answers already
        stands_behind = door.pending if door.reserving or not self._committing.isdisjoint(door.pending) else ()
        first = min((due_ms for what, due_ms in self._due_ms.items() if what not in stands_behind), default=None)
        if first is not None and first > door.now_ms and (door.wake_ms is None or door.wake_ms > first):
            what = next(what for what, due_ms in self._due_ms.items() if due_ms == first)
            self.wrong(f"{what} is late from {first} on, and the door wakes at {door.wake_ms}")


class AtRest(DoorJudge):
    """Judges that a door has done all that it can after each fact. Otherwise work would wait for the next fact."""

    def __init__(self, door: Watched) -> None:
        """Begin with a door that has not done anything."""
        super().__init__(door)
        self._wake_ms: int | None = None
        self._is_early = False

    def told(self, fact: Begun | Fact) -> None:
        """Note whether this fact only tells the time, and the door's timer is not due yet."""
        due = self._wake_ms is not None and self._wake_ms <= self.door.now_ms
        self._is_early = isinstance(fact, TimeAdvanced) and not due

    def asked(self, effect: Effect) -> None:
        """Judge what the door does."""
        if self._is_early:
            self.wrong(f"time alone sets {effect} off, and the door wakes at {self._wake_ms}")

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge the triggers, and note the timer."""
        if self._is_early and given:
            self.wrong(f"time alone triggers {given}, and the door wakes at {self._wake_ms}")
        self._wake_ms = self.door.wake_ms

    def time_passed(self) -> None:
        """Forget a timer that has run out."""
        self._wake_ms = self.door.wake_ms
