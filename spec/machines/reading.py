"""The machine of the splits' turns: sources with few rows an epoch, and splits that answer, are idle, fail and end.

Its reference knows no order. A split is *ready* if it is not being read, has not ended, has waited long enough, and has
credit. Every ready split is asked in each turn while its limits leave rows, and no limit is exceeded. A split is
*passed over* in a turn if it is ready, has rows left in all its limits when the turn begins, and gets none, because
others use them up. A turn in which it has no rows left counts for nothing, however many such turns an epoch has.
"""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from checkpointing.channel_items import SourceSlice
from checkpointing.graph import Vertex, VertexKind
from checkpointing.identifiers import SplitId, SubtaskId, VertexId
from checkpointing.job.polling import Pacing, SourceReaders
from checkpointing.messages import PollSource
from spec.machines.judging import expect

TAKES_TURNS = "takes-turns"
"""A split is passed over in fewer turns than there are splits before it is asked again, in one epoch or in many."""
POLLS_ALL = "polls-all"
"""In each turn, every ready split is asked for rows until a limit is used up, and no other split is."""
LIMITS_HOLD = "limits-hold"
"""In an epoch, the rows that were sent and those that are being read stay within each limit."""
SOURCES = tuple(
    Vertex(VertexId(name), VertexKind.SOURCE, splits, splits=tuple(SplitId(str(each)) for each in range(splits)))
    for name, splits in (("left", 2), ("right", 2))
)
IDLE_MS = 20
_Split = tuple[VertexId, SplitId]
SPLITS: tuple[_Split, ...] = tuple((source.id, split) for source in SOURCES for split in source.splits)
_pick = st.integers(0, 20)
_limits = st.sampled_from([None, 1, 1, 2, 3, 7])


class ReadersMachine(RuleBasedStateMachine):
    """Two sources of two splits each, what was asked of them, and what they have sent."""

    def __init__(self) -> None:
        """Begin without limits: `configure` draws them."""
        super().__init__()
        self.configure(None, None, 10, counts_all=True)

    @initialize(every=_limits, cap=_limits, slice_rows_max=st.sampled_from([1, 2, 10]), counts_all=st.booleans())
    def configure(self, every: int | None, cap: int | None, slice_rows_max: int, counts_all: bool) -> None:  # noqa: FBT001
        """Begin an epoch with limits for both sources together, or for one of them."""
        left, right = (source.id for source in SOURCES)
        counted = frozenset({left, right}) if counts_all else frozenset({left})
        caps = {} if cap is None else {right: cap}
        self.limits: list[tuple[frozenset[VertexId], int]] = [
            (frozenset({source}), rows) for source, rows in caps.items()
        ]
        self.limits += [] if every is None else [(counted, every)]
        self.slice_rows_max = slice_rows_max
        pacing = Pacing(slice_rows_max, every, counted, caps, IDLE_MS, failures_max=100)
        self.readers = SourceReaders(SOURCES, {}, pacing)
        self.now_ms = 0
        self.asked: dict[_Split, PollSource] = {}
        self.waits_until: dict[_Split, int] = {}
        self.ended: set[_Split] = set()
        self.at: Counter[_Split] = Counter()
        self.sent: Counter[VertexId] = Counter()
        self.passed_over: Counter[_Split] = Counter()

    # -------------------------------------------------------------- turns

    @rule(without_credit=st.lists(st.sampled_from(SPLITS), max_size=2))
    def take_a_turn(self, without_credit: list[_Split]) -> None:
        """Ask whom to poll, while some splits have no credit."""
        blocked = {SubtaskId(source, int(split)) for source, split in without_credit}
        ready = {split for split in SPLITS if self._is_ready(split) and split not in without_credit}
        asked: set[_Split] = set()
        spent = [self._used(sources) >= rows for sources, rows in self.limits]
        for poll in self.readers.polls(self.now_ms, lambda subtask: subtask not in blocked):
            split = (poll.source, poll.split)
            expect(split in ready - asked, POLLS_ALL, f"{split} is polled, ready are {ready - asked}")
            expect(0 < poll.max_rows <= self.slice_rows_max, LIMITS_HOLD, f"{poll} of {self.slice_rows_max} rows")
            expect(int(poll.position or 0) == self.at[split], POLLS_ALL, f"{poll}, the split is at {self.at[split]}")
            asked.add(split)
            self.asked[split] = poll
        self._judge(ready - asked, asked, spent)

    @rule(epochs=st.integers(1, 6), turns=st.integers(1, 4), barriers=st.booleans())
    def read_on(self, epochs: int, turns: int, barriers: bool) -> None:  # noqa: FBT001
        """Take turns in which each split brings a row at once. An epoch perhaps ends behind so many of them."""
        for _ in range(epochs):
            for _ in range(turns):
                self.take_a_turn([])
                while self.asked:
                    self.answer(0, 0)
            if barriers:
                self.send_barrier()

    def _is_ready(self, split: _Split) -> bool:
        return split not in self.asked and split not in self.ended and self.now_ms >= self.waits_until.get(split, 0)

    def _judge(self, passed: set[_Split], asked: set[_Split], spent: list[bool]) -> None:
        for sources, rows in self.limits:
            expect(self._used(sources) <= rows, LIMITS_HOLD, f"{self._used(sources)} rows of {sources}, {rows} may")
        for split in asked:
            self.passed_over[split] = 0
        for split in passed:
            self.passed_over[split] += not any(spent[limit] for limit in self._limiting(split))
            turns = self.passed_over[split]
            expect(turns < len(SPLITS), TAKES_TURNS, f"{split} was passed over in {turns} turns, {asked} were asked")
        for split in passed:
            full = any(self._used(sources) >= rows for sources, rows in self.limits if split[0] in sources)
            expect(full, POLLS_ALL, f"{split} is ready and has rows left, asked are {asked}")

    def _limiting(self, split: _Split) -> frozenset[int]:
        return frozenset(place for place, (sources, _) in enumerate(self.limits) if split[0] in sources)

    def _used(self, sources: frozenset[VertexId]) -> int:
        asked = sum(poll.max_rows for (source, _), poll in self.asked.items() if source in sources)
        return asked + sum(self.sent[source] for source in sources)

    # -------------------------------------------------------------- answers

    @precondition(lambda self: self.asked)
    @rule(pick=_pick, fewer=st.integers(0, 3))
    def answer(self, pick: int, fewer: int) -> None:
        """A split sends rows, perhaps fewer than it may."""
        split, poll = self._answering(pick)
        rows, at = max(1, poll.max_rows - fewer), self.at[split]
        self.at[split] += rows
        self.sent[poll.source] += rows
        self.waits_until.pop(split, None)
        self.readers.offered(SourceSlice(poll.source, poll.split, str(at), str(at + rows), "{}", rows, rows))

    @precondition(lambda self: self.asked)
    @rule(pick=_pick, fails=st.booleans())
    def answer_nothing(self, pick: int, fails: bool) -> None:  # noqa: FBT001
        """A split has no rows now, or cannot be read."""
        split, poll = self._answering(pick)
        self.waits_until[split] = self.now_ms + IDLE_MS
        (self.readers.failed if fails else self.readers.found_idle)(poll.source, poll.split, self.now_ms)

    @precondition(lambda self: self.asked)
    @rule(pick=_pick, really=st.sampled_from([False, False, True]))
    def end(self, pick: int, really: bool) -> None:  # noqa: FBT001
        """A split ends, seldom."""
        if really:
            split, poll = self._answering(pick)
            self.ended.add(split)
            self.readers.found_ended(poll.source, poll.split)

    def _answering(self, pick: int) -> tuple[_Split, PollSource]:
        split = [*self.asked][pick % len(self.asked)]
        return split, self.asked.pop(split)

    @rule()
    def send_barrier(self) -> None:
        """Begin the next epoch. What is being read belongs to it."""
        self.readers.barrier_sent()
        self.sent.clear()

    @rule(ms=st.sampled_from([1, IDLE_MS - 1, IDLE_MS]))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
