"""The machine of lost answers: nobody hears whether a claim or an entry is in, and the door asks again (A6).

It adds lost answers and savepoints at rest to the machine of a tick's attempts.
"""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from checkpointing.commit.at_rest import SavepointAtRest
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import NO_CHECKPOINT
from checkpointing.job.setup import TickLimits
from checkpointing.messages import RowAppended, RowUnknown
from checkpointing.metadata.record import CheckpointRecord, Release
from checkpointing.tick.attempts import Errand, NoRestart, Terms
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import (
    AppendClaim,
    AppendEntry,
    AppendRelease,
    Finish,
    RowChosen,
    TickEffect,
    TickFact,
    Unsettled,
    Worked,
)
from spec.machines.attempts import AttemptsMachine, holder
from spec.machines.attempts_model import Told
from spec.machines.judging import expect

ASKED_AGAIN = "asked-again"
"""If the outcome of an append is unknown, the same append is asked for again, `ASKED_MAX` times altogether. The user
hears if it stays unknown. No other entry gets its id, because it may have been stored."""
RELEASED = "released-at-last"
"""A process that took a savepoint releases the job, also if nobody knows whether its entry is in."""
ASKED_MAX = 5
"""So often an append is asked for altogether while its outcome is unknown."""
AT_REST = Errand(questions=(), repairs=False)

_unheard = st.lists(st.booleans(), min_size=1, max_size=ASKED_MAX - 1)
"""For each answer that is lost: whether the entry comes in."""


class LostAnswersMachine(AttemptsMachine):
    """Ticks, and savepoints between them. Answers to appends of claims and entries are lost."""

    def __init__(self) -> None:
        """Begin with no answer lost."""
        self.unheard: list[bool] = []
        """For each of the next answers, which are lost: whether the entry comes in."""
        self.unknown = 0
        """How many answers in a row were lost."""
        self.sent = NO_CHECKPOINT
        """The id of the holder's own entry, once it was sent."""
        super().__init__()

    @precondition(lambda self: isinstance(self.asked, Finish) and self.rival is None)
    @rule(comes_in=st.integers(0, ASKED_MAX))
    def begin_without_any_answer(self, comes_in: int) -> None:
        """Begin a tick whose claim stays unknown. It may come in with one of the appends, or never."""
        self.unheard = [each == comes_in for each in range(ASKED_MAX)]
        self.begin(TickLimits(), NoRestart(), waits_ms=0)
        self._is_unsettled()

    @precondition(lambda self: isinstance(self.asked, Finish) and self.rival is None)
    @rule(unheard=st.lists(st.booleans(), max_size=ASKED_MAX))
    def save_at_rest(self, unheard: list[bool]) -> None:
        """Take a savepoint while no tick runs, and lose so many answers to the append of its entry."""
        self.told = Told(TickLimits(), NoRestart(), self.now_ms)
        self.stopping = False
        self.lagging = 0
        self.door = TickDoor(AT_REST, Terms(holder=holder(1), take_over=True))
        self._carry_out(self.door.start(self._stamp()))
        newest = newest_checkpoint(tuple(self.rows))
        if newest is None:
            self._carry_out(self.door.step(Worked(), self._stamp()))
            return
        self.unheard = list(unheard)
        self._carry_out(self.door.step(RowChosen(SavepointAtRest(newest)), self._stamp()))
        own = self.rows[-1].generation
        saved = [row for row in self.rows if isinstance(row, CheckpointRecord) and row.generation == own]
        is_in = any(unheard) or len(unheard) < ASKED_MAX
        expect(len(saved) == is_in, ASKED_AGAIN, f"{saved} are in after the answers {unheard}")
        released = any(isinstance(row, Release) and row.generation == own for row in self.rows)
        expect(released, RELEASED, f"generation {own} is not released after the answers {unheard}")
        if len(unheard) == ASKED_MAX:
            self._is_unsettled()
        else:
            done = isinstance(self.asked, Finish) and self.asked.outcome in saved
            expect(done, ASKED_AGAIN, f"{self.asked}, and the savepoint is in")

    @rule(unheard=_unheard)
    def lose_answers(self, unheard: list[bool]) -> None:
        """Lose the next answers to the append of a claim."""
        self.unheard = list(unheard)

    # -------------------------------------------------------------- judging

    def _is_unsettled(self) -> None:
        unsettled = isinstance(self.asked, Finish) and isinstance(self.asked.outcome, Unsettled)
        expect(unsettled, ASKED_AGAIN, f"{self.asked}, and nobody knows whether the entry is in")

    def _told(self, fact: TickFact) -> tuple[TickEffect, ...]:
        """Judge what follows a lost answer: the same append, until it was asked for often enough."""
        effects = super()._told(fact)
        self.unknown = self.unknown + 1 if isinstance(fact, RowUnknown) else 0
        if self.unknown:
            again, due = effects == (self.asked,), self.unknown < ASKED_MAX
            expect(again is due, ASKED_AGAIN, f"{effects} after {self.unknown} lost answers to {self.asked}")
        return effects

    def _append(self, effect: AppendClaim | AppendEntry | AppendRelease) -> TickFact:
        """Append an entry once, however often it is asked for. The answer may be lost."""
        nonce = effect.row.nonce
        if isinstance(effect, AppendEntry):
            self.sent = effect.row.checkpoint
        if isinstance(effect, AppendRelease) and self.sent:
            free = effect.row.next_id
            expect(free > self.sent, ASKED_AGAIN, f"id {free} is given free, and entry {self.sent} was sent")
            self.sent = NO_CHECKPOINT
        answers = not self.unheard or isinstance(effect, AppendRelease)
        comes_in = answers or self.unheard.pop(0)
        nonces = [row.nonce for row in self.rows]
        if nonce in nonces:
            there: TickFact = RowAppended(nonce, nonces.index(nonce) + 1)
        elif comes_in:
            there = super()._append(effect)
        return there if answers else RowUnknown(nonce, "the connection broke")
