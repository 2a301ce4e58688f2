"""Tests what a tick knows of savepoints: who waits for which answer, and which files people may still need (A9, F4)."""

from itertools import count
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.coordinator.messages import RequestFailed, RequestSucceeded
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, VertexId
from checkpointing.job.tick_end import OWN_REQUEST, Savepoints
from checkpointing.messages import SavepointFailed, SavepointKind, SavepointRequested, SavepointTaken
from checkpointing.metadata.record import CheckpointRecord, RowKind, VertexRecord
from spec.machines.judging import expect
from spec.machines.plain_entry import plain_entry

ANSWERED: Final = "savepoints-answered"
"""Each request for a savepoint gets one answer. The answer has the request's own name, and the kind that was asked for.
Nobody hears of the tick's own checkpoints."""
PINNED: Final = "pins-hold"
"""A tick deletes no file of a savepoint, of a stop's savepoint or of a held cut, and none of a cut on which one of them
stands. It may delete other files."""

_NAMES: Final = ("before the release", OWN_REQUEST, "savepoint:", "")
_kinds = st.sampled_from(list(SavepointKind))
_reasons = st.sampled_from(
    [Reason.CHECKPOINT_EXPIRED, Reason.CHECKPOINT_COORDINATOR_SHUTDOWN, Reason.CHECKPOINT_COORDINATOR_SUSPEND]
)
_rows = st.lists(
    st.tuples(st.sampled_from([RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.ROLLBACK, RowKind.HELD]), st.booleans()),
    max_size=4,
)


class SavepointsMachine(RuleBasedStateMachine):
    """One tick: users ask for savepoints, entries come in, and files are no longer referenced."""

    def __init__(self) -> None:
        """Begin without entries."""
        super().__init__()
        self.numbers = count(1)
        self.asked: dict[str, tuple[str, SavepointKind]] = {}
        """For each open request: how the coordinator calls it, and what it asks for."""
        self.pinned: set[str] = set()
        self.free: set[str] = set()
        self.newest: tuple[CheckpointId, str] = NO_CHECKPOINT, ""
        """The newest committed entry and its file."""
        self.begin([], unaligned=False)

    @initialize(rows=_rows, unaligned=st.booleans())
    def begin(self, rows: list[tuple[RowKind, bool]], *, unaligned: bool) -> None:
        """Begin a tick with these entries."""
        self.unaligned = unaligned
        self.savepoints = Savepoints([self._row(*each) for each in rows], unaligned=unaligned)

    # -------------------------------------------------------------- requests

    @rule(name=st.sampled_from(_NAMES), kind=_kinds)
    def ask(self, name: str, kind: SavepointKind) -> None:
        """A user asks for a savepoint, under a name that is not in use."""
        expect(self.savepoints.is_asked(name) == (name in self.asked), ANSWERED, f"{name!r} is asked for")
        if name in self.asked:
            return
        told = self.savepoints.ask(SavepointRequested(name, kind))
        calls = told.request
        expect(calls not in (OWN_REQUEST, *(known for known, _ in self.asked.values())), ANSWERED, f"{calls} is taken")
        stops, drains = kind is not SavepointKind.PLAIN, kind is SavepointKind.DRAIN
        asked = told.properties
        said = asked.is_savepoint, asked.is_synchronous, asked.terminate, asked.forced, told.periodic
        due = True, stops, drains, not self.unaligned, False
        expect(said == due, ANSWERED, f"{told} of {kind}")
        self.asked[name] = calls, kind

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 5))
    def take(self, pick: int) -> None:
        """The savepoint of a request is taken."""
        name, (calls, kind) = self._one(pick)
        taken = CheckpointId(next(self.numbers))
        answers = self.savepoints.answered(RequestSucceeded(calls, taken))
        expect(answers == ((SavepointTaken(name, taken),), kind), ANSWERED, f"{answers} of {name!r}, a {kind}")

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 5), reason=_reasons)
    def fail(self, pick: int, reason: Reason) -> None:
        """It fails. If only the tick's end is the reason, the user hears that he may ask again."""
        name, (calls, kind) = self._one(pick)
        answers, found = self.savepoints.answered(RequestFailed(calls, reason, "it broke"))
        expect(found is kind and len(answers) == 1, ANSWERED, f"{answers} of {name!r}, a {kind}")
        failed = answers[0]
        right = isinstance(failed, SavepointFailed) and (failed.request, failed.reason) == (name, reason)
        expect(right, ANSWERED, f"{failed} of {name!r}, which failed as {reason}")
        said = "ask again" if reason is not Reason.CHECKPOINT_EXPIRED else "it broke"
        expect(isinstance(failed, SavepointFailed) and said in failed.message, ANSWERED, f"{failed}, due is {said!r}")

    @rule(fails=st.booleans())
    def end_an_own_checkpoint(self, fails: bool) -> None:  # noqa: FBT001 - drawn
        """A checkpoint that the tick has asked for itself ends."""
        ended = RequestFailed(OWN_REQUEST, Reason.CHECKPOINT_EXPIRED) if fails else RequestSucceeded(OWN_REQUEST, _ID)
        answers = self.savepoints.answered(ended)
        expect(answers == ((), None), ANSWERED, f"{answers} of the tick's own checkpoint")

    @rule()
    def end_the_tick(self) -> None:
        """The tick ends, and everybody who waits hears it."""
        due = {SavepointFailed(name, Reason.CHECKPOINT_EXPIRED, "over") for name in self.asked}
        waits, answers = self.savepoints.under_way, [*self.savepoints.give_up(Reason.CHECKPOINT_EXPIRED, "over")]
        expect(waits == bool(due), ANSWERED, f"somebody waits: {waits}, open are {self.asked}")
        expect({*answers} == due and len(answers) == len(due), ANSWERED, f"{answers}, open are {self.asked}")
        self.asked.clear()
        expect(not self.savepoints.under_way, ANSWERED, "somebody waits, and all have an answer")

    def _one(self, pick: int) -> tuple[str, tuple[str, SavepointKind]]:
        name = sorted(self.asked)[pick % len(self.asked)]
        return name, self.asked.pop(name)

    # -------------------------------------------------------------- files

    @rule(kind=st.sampled_from([RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD]), pinned=st.booleans())
    def commit(self, kind: RowKind, pinned: bool) -> None:  # noqa: FBT001 - drawn
        """An entry is in."""
        self.savepoints.stored(self._row(kind, pinned))

    @rule()
    def discard(self) -> None:
        """No checkpoint needs any file any more."""
        paths = [*sorted(self.pinned | self.free), "of nobody"]
        left = self.savepoints.unpinned(paths)
        due = tuple(path for path in paths if path not in self.pinned)
        expect(left == due, PINNED, f"{left} may go, due are {due}")

    def _row(self, kind: RowKind, pinned: bool) -> CheckpointRecord:  # noqa: FBT001 - drawn
        number, (parent, below) = CheckpointId(next(self.numbers)), self.newest
        path = f"file-{number}"
        (self.pinned if pinned or kind in (RowKind.SAVEPOINT, RowKind.HELD) else self.free).add(path)
        if kind in (RowKind.SAVEPOINT, RowKind.HELD):
            self.pinned |= {below} - {""}
            self.free.discard(below)
        else:
            self.newest = number, path
        file = KeyedFile(FileHandle(path, 1, 1, 1), KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1))
        sums = VertexRecord(vertex=VertexId("sums"), micro_batch=1, subtasks=(SubtaskSnapshot(state=(file,)),))
        return plain_entry(kind, pinned=pinned, vertices=(sums,), checkpoint=number, parent=parent)


_ID: Final = CheckpointId(7)
