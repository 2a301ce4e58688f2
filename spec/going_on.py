"""Judges whether a pending checkpoint can still make progress.

Only work that is not done yet may hold up a barrier: a poll, a micro-batch, a suite, a hook, a store, or a vertex that
collects rows before it runs. If there is no such work, nobody sends the barrier on, and the checkpoint can only expire.
Once a newer checkpoint has completed, the barriers of older ones have passed all vertices. So an older checkpoint then
waits only for suites, hooks and stores.
"""

from checkpointing.identifiers import CheckpointId
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    CheckTables,
    CutRecorded,
    Effect,
    Fact,
    JudgementFailed,
    JudgeSuites,
    NotifyComplete,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    SuitesJudged,
    TableCheckFailed,
    TablePublished,
    TablesChecked,
)
from spec.steps import Begun
from spec.watching import DoorJudge, Watched


class GoesOn(DoorJudge):
    """Judges a door that has a pending checkpoint and waits for nothing."""

    def __init__(self, door: Watched) -> None:
        """Begin without an open request."""
        super().__init__(door)
        self._asked: set[object] = set()
        """What the door has asked of stores and suites, and what has no answer yet."""
        self._newest = CheckpointId(0)
        """The newest checkpoint that has completed."""
        self._since_ms: int | None = None
        """Since when a checkpoint has been pending without any work under way, or None."""

    def told(self, fact: Begun | Fact) -> None:
        """Note an answer."""
        match fact:
            case TablesChecked() | TableCheckFailed():
                self._asked.discard(("check", fact.checkpoint))
            case SuitesJudged() | JudgementFailed():
                self._asked.discard((fact.vertex, fact.checkpoint))
            case RowAppended() | RowRefused() | RowUnknown():
                self._asked.discard(fact.nonce)
            case TablePublished() | PublishFailed():
                self._asked.discard((fact.table, fact.checkpoint))
            case CutRecorded():
                self._asked.discard(("cut", fact.checkpoint))
            case _:
                """No checkpoint waits for it."""

    def asked(self, effect: Effect) -> None:
        """Note what the door asks for."""
        match effect:
            case CheckTables():
                self._asked.add(("check", effect.checkpoint))
            case JudgeSuites():
                self._asked.add((effect.vertex, effect.checkpoint))
            case CancelJudgement():
                self._asked.discard((effect.vertex, effect.checkpoint))
            case AppendRow():
                self._asked.add(effect.row.nonce)
            case PublishTable():
                self._asked.add((effect.publication.table, effect.checkpoint))
            case RecordCut():
                self._asked.add(("cut", effect.checkpoint))
            case NotifyComplete():
                self._newest = effect.checkpoint
            case _:
                """No checkpoint waits for it."""

    def rested(self, given: tuple[object, ...]) -> None:  # noqa: ARG002 - the form of a judge
        """Judge what the door waits for."""
        if not self._waits_for_nothing():
            self._since_ms = None
            return
        now_ms = self.door.now_ms
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if now_ms - self._since_ms > self.door.setup.linger_ms:
            self.wrong(f"checkpoint {min(self.door.pending)} waits for nothing since {self._since_ms}")

    def time_passed(self) -> None:
        """Judge a door that did nothing."""
        self.rested(())

    def _waits_for_nothing(self) -> bool:
        door = self.door
        if not door.pending or self._asked or door.asked_hooks or door.reserving or door.restoring or door.is_troubled:
            return False
        is_behind = min(door.pending) < self._newest
        return not door.is_over and (is_behind or not (door.polls or door.failed or door.running))
