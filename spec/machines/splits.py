"""Tests which splits are asked, and for how many rows: caps, credit, pauses, failures, parts and ends (A11, B4).

Its reference keeps what each split has sent and how its last polls went. Cuts of other jobs are the subject of `cuts`.
"""

from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from checkpointing.channel_items import SourceSlice
from checkpointing.graph import Vertex, VertexKind
from checkpointing.identifiers import SplitId, SubtaskId, VertexId
from checkpointing.job.polling import Pacing, SourceReaders, UnknownSplitError
from checkpointing.messages import PollSource
from spec.machines.judging import expect

ASKED: Final = "splits-are-asked"
"""A split is asked if it has credit, its pause is over, and its epoch has room for rows. Splits with one limit share
the room. Each is asked for its share, but for no more rows than a slice may have. All together never exceed the room.
A source that has reached its own cap takes no share."""
KNOWN: Final = "splits-are-known"
"""The readers keep what each split reported last: its position, its rows, its failures, and whether it is idle or has
ended."""

_IDLE_MS: Final = 100
_ORDERS, _PAYMENTS = VertexId("orders"), VertexId("payments")
_NAMES: Final = {_ORDERS: ("a1", "a2", "b1"), _PAYMENTS: ("p1",)}
_maybe = st.sampled_from([None, None, 2, 5])
_KINDS: Final = (
    "rows",
    "rows",
    "rows",
    "idle",
    "idle",
    "end",
    "end",
    "fail",
    "fail",
    "barrier",
    "time",
    "credit",
    "late",
    "sooner",
)
_event = st.tuples(
    st.sampled_from(_KINDS),
    st.integers(0, 9),
    st.integers(1, 6),
)


@dataclass
class _Split:
    """What the reference knows of one split."""

    source: VertexId
    name: SplitId
    index: int
    position: str | None = None
    asked: int = 0
    idle: bool = False
    ended: bool = False
    failures: int = 0
    until_ms: int = 0
    has_credit: bool = True


class SplitsMachine(RuleBasedStateMachine):
    """A source of three splits, perhaps in two parts, and a source of one split."""

    def __init__(self) -> None:
        """Begin without limits."""
        super().__init__()
        self.begin(5, None, {}, frozenset(), 0, parted=False, bounded=False, restored=set())

    @initialize(
        slice_max=st.integers(1, 6),
        every=_maybe,
        caps=st.fixed_dictionaries({}, optional={_ORDERS: st.integers(1, 6), _PAYMENTS: st.integers(1, 4)}),
        counted=st.sampled_from([frozenset(), frozenset({_ORDERS})]),
        failures_max=st.integers(0, 2),
        parted=st.booleans(),
        bounded=st.booleans(),
        restored=st.sets(st.sampled_from(["a1", "a2", "p1"]), max_size=2),
    )
    def begin(  # noqa: PLR0913 - what a tick is set to
        self,
        slice_max: int,
        every: int | None,
        caps: dict[VertexId, int],
        counted: frozenset[VertexId],
        failures_max: int,
        *,
        parted: bool,
        bounded: bool,
        restored: set[str],
    ) -> None:
        """Begin a tick. The splits in `restored` had ended before, if they have an end."""
        self.slice_max, self.every, self.caps, self.counted = slice_max, every, caps, counted or {*_NAMES}
        self.failures_max, self.parted, self.bounded = failures_max, parted, bounded
        self.now_ms = 0
        self.sent = dict.fromkeys(_NAMES, 0)
        self.before = 0
        self.stopped = self.after_stop = self.barrier_asked = False
        self.splits = [
            _Split(source, SplitId(name), index) for source, names in _NAMES.items() for index, name in enumerate(names)
        ]
        for split in self.splits:
            split.ended = split.idle = split.name in restored and (bounded or (parted and split.name[0] == "a"))
        sources = tuple(
            Vertex(
                source,
                VertexKind.SOURCE,
                len(names),
                splits=tuple(map(SplitId, names)),
                bounded=bounded,
                parts=("a", "b") if parted and source == _ORDERS else (),
            )
            for source, names in _NAMES.items()
        )
        positions = {SubtaskId(split.source, split.index): None for split in self.splits}
        ended = {SubtaskId(split.source, split.index) for split in self.splits if split.ended}
        pacing = Pacing(slice_max, every, counted, caps, _IDLE_MS, failures_max)
        self.readers = SourceReaders(sources, positions, pacing, ended)

    # -------------------------------------------------------------- the job

    @rule(events=st.lists(_event, max_size=8), stops=st.sampled_from([None, None, None, "tick", "barrier"]))
    def read(self, events: list[tuple[str, int, int]], stops: str | None) -> None:
        """Splits are asked and answer, barriers are sent, and at the end the tick may stop reading."""
        for kind, pick, number in events:
            self._ask()
            self._happens(kind, pick, number)
            self._judge()
        if stops == "tick":
            self.stopped = self.readers.stopped = True
        elif stops == "barrier":
            self._send_barrier(last=True)
        self._ask()
        self._judge()

    @rule(first=st.sampled_from([*_NAMES]), rows=st.integers(1, 3))
    def read_beyond_a_barrier(self, first: VertexId, rows: int) -> None:
        """One source sends rows before and after a barrier, while the other one reads. Then that other one sends."""
        for source in (first, None, first, *(other for other in _NAMES if other != first)):
            self._ask()
            if source is None:
                self._send_barrier(last=False)
            for split in self.splits:
                if split.source == source and split.asked:
                    self._sends(split, min(rows, split.asked))
            self._judge()
        self._ask()
        self._judge()

    def _happens(self, kind: str, pick: int, number: int) -> None:
        asked = [split for split in self.splits if split.asked]
        split = asked[pick % len(asked)] if asked else None
        any_split = self.splits[pick % len(self.splits)]
        match kind:
            case "time":
                self.now_ms += number * _IDLE_MS // 4
            case "credit":
                any_split.has_credit = not any_split.has_credit
            case "barrier":
                self._send_barrier(last=False)
            case "sooner" if any_split.idle and not any_split.ended and not any_split.asked:
                any_split.until_ms = self.now_ms + number
                self.readers.ask_sooner(any_split.source, any_split.name, any_split.until_ms)
            case "late" if not any_split.asked:
                self._answers_unasked(any_split)
            case "rows" if split is not None:
                self._sends(split, min(number, split.asked))
            case "idle" if split is not None:
                self.readers.found_idle(split.source, split.name, self.now_ms)
                split.asked, split.idle, split.failures, split.until_ms = 0, True, 0, self.now_ms + _IDLE_MS
            case "end" if split is not None and (self.bounded or (self.parted and split.name[0] == "a")):
                subtask = self.readers.found_ended(split.source, split.name)
                expect(subtask == SubtaskId(split.source, split.index), KNOWN, f"{subtask} ends with {split.name}")
                split.asked, split.idle, split.ended, split.failures = 0, True, True, 0
            case "fail" if split is not None:
                split.asked, split.idle, split.until_ms = 0, False, self.now_ms + _IDLE_MS
                split.failures += 1
                too_often = self.readers.failed(split.source, split.name, self.now_ms)
                expect(too_often is (split.failures > self.failures_max), KNOWN, f"{split} has failed too often")
            case _:
                """Nobody was asked."""

    def _sends(self, split: _Split, rows: int) -> None:
        position = f"{split.name}@{rows}"
        sender = self.readers.offered(SourceSlice(split.source, split.name, "0", position, "{}", rows, rows))
        split.asked = 0
        due = None if self.after_stop else SubtaskId(split.source, split.index)
        expect(sender == due, KNOWN, f"{sender} sends the rows of {split.name}, due is {due}")
        if due is not None:
            self.sent[split.source] += rows
            split.position, split.idle, split.failures, split.until_ms = position, False, 0, 0

    def _answers_unasked(self, split: _Split) -> None:
        try:
            self.readers.found_idle(split.source, split.name, self.now_ms)
        except UnknownSplitError:
            return
        expect(holds=False, invariant=KNOWN, what=f"{split.name} was not asked, and answers")

    def _send_barrier(self, *, last: bool) -> None:
        self.readers.barrier_sent(last=last)
        self.before += sum(self.sent.values())
        self.sent = dict.fromkeys(_NAMES, 0)
        self.barrier_asked = False
        self.after_stop |= last
        self.stopped |= last

    # -------------------------------------------------------------- judging

    def _ask(self) -> None:
        """Let the job ask. Judge whom it asks, and for how many rows."""
        able = [split for split in self.splits if self._may_be_asked(split)]
        polls = {(poll.source, poll.split): poll for poll in self.readers.polls(self.now_ms, self._has_credit)}
        fit = polls.keys() & {(split.source, split.name) for split in able}
        expect(fit == polls.keys(), ASKED, f"{sorted(polls.keys() - fit)} are asked, and may not be")
        by_key = {(split.source, split.name): split for split in able}
        for key, poll in polls.items():
            self._is_asked(by_key[key], poll)
        for split in able:
            expect(
                split.asked > 0 or self._room_of(split.source) <= 0, ASKED, f"{split} is not asked, and there is room"
            )
        for source in _NAMES:
            expect(self._room_of(source) >= 0, ASKED, f"{source} may send more than its epoch has room for")

    def _is_asked(self, split: _Split, poll: PollSource) -> None:
        room = self._room_of(split.source)
        able = [other for other in self.splits if self._may_be_asked(other) and self._room_of(other.source) > 0]
        sharers = sum(self._shares(split, other) for other in able)
        expect(sharers > 0, ASKED, f"{poll}, and there is no room")
        due = min(self.slice_max, -(-room // sharers))
        expect(0 < poll.max_rows == due, ASKED, f"{poll}, there is room for {room}, which {sharers} share")
        expect(poll.position == split.position, KNOWN, f"{poll} begins elsewhere than {split.position}")
        split.asked = poll.max_rows

    def _may_be_asked(self, split: _Split) -> bool:
        over = self.stopped or self.after_stop or split.ended or self._is_held(split)
        return not over and not split.asked and self.now_ms >= split.until_ms and split.has_credit

    def _has_credit(self, subtask: SubtaskId) -> bool:
        return next(each.has_credit for each in self.splits if (each.source, each.index) == subtask)

    def _is_held(self, split: _Split) -> bool:
        earlier = [each for each in self.splits if each.source == split.source and each.name[0] < split.name[0]]
        return self.parted and any(not each.ended for each in earlier)

    def _room_of(self, source: VertexId) -> int:
        """Return how many more rows a source may be asked for in this epoch."""

        def used(of: set[VertexId] | frozenset[VertexId]) -> int:
            return sum(self.sent[each] for each in of) + sum(each.asked for each in self.splits if each.source in of)

        own = self.caps.get(source, 1_000) - used({source})
        return own if self.every is None or source not in self.counted else min(own, self.every - used({*self.counted}))

    def _shares(self, one: _Split, other: _Split) -> bool:
        both = self.every is not None and one.source in self.counted and other.source in self.counted
        return one.source == other.source or both

    def _judge(self) -> None:
        """Judge what the readers say of the splits."""
        of_epoch = sum(self.sent.values())
        counted = sum(self.sent[each] for each in self.counted)
        waiting = [split for split in self.splits if not split.idle and not self._is_held(split)]
        later = [
            split.until_ms
            for split in self.splits
            if split.until_ms > self.now_ms and not split.asked
            if not (self.stopped or split.ended or self._is_held(split))
        ]
        due: dict[str, Any] = {
            "rows": of_epoch,
            "rows_sent": self.before + of_epoch,
            "polling": any(split.asked and not split.idle for split in self.splits),
            "all_idle": all(split.idle or split.failures or self._is_held(split) for split in self.splits),
            "all_ended": self.bounded and all(split.ended for split in self.splits),
            "failing": any(split.failures for split in self.splits),
            "quota_spent": any(self._room_of(split.source) <= 0 for split in waiting),
            "barrier_due": self.every is not None and counted >= self.every and not self.barrier_asked,
        }
        found = {name: getattr(self.readers, name) for name in due}
        expect(found == due, KNOWN, f"{found}, due are {due}")
        next_ms = self.readers.next_poll_ms(self.now_ms)
        expect(next_ms == min(later, default=None), KNOWN, f"the next poll is at {next_ms}, not at {later}")
        for split in self.splits:
            position = self.readers.position(SubtaskId(split.source, split.index))
            expect(position == split.position, KNOWN, f"{split.name} stands at {position}, not at {split.position}")
        for source in _NAMES:
            reads = any(split.asked for split in self.splits if split.source == source)
            expect(self.readers.is_polling(source) is reads, KNOWN, f"{source} is polled: {not reads}")
        if due["barrier_due"]:
            self.readers.barrier_asked()
            self.barrier_asked = True
