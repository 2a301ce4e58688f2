"""Tests that reading of Debezium's topics always stops between two transactions, in whatever order records arrive."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.sources.debezium.envelope import Boundary, SourceTransaction
from jobs.sources.kafka.position import TopicPartition
from jobs.sources.kafka.transactions import DebeziumTransactions, SeenAt, TransactionWindow
from jobs.sources.port import SourceError

ENDS = TopicPartition("bank.transaction", 0)
PLACES = [TopicPartition(f"bank.public.{table}", number) for table in ("giro", "savings") for number in range(2)]
PATIENCE_MS = 600_000
HOUR_MS = 3_600_000


@dataclass
class Connector:
    """Writes transactions as Debezium does. After a crash, it continues from an earlier place.

    `counts_on` is the behaviour of newer versions, which keep the counts of a transaction in the offset.
    """

    counts_on: bool
    logs: dict = field(default_factory=lambda: {place: [] for place in [ENDS, *PLACES]})
    ms: int = 0

    def run(self, stream, first, end, lose):
        """Send steps `first` to `end` of the stream. Some logs lose their last records, from step `lose` on."""
        sent_at, counts, inside = {}, {}, None
        if first and self.counts_on and stream[first][0] != "begin" and stream[first][1] is not None:
            inside = stream[first][1]
            counts = _counts(stream, inside, first)
        for step in range(first, end):
            kind, number, place = stream[step]
            if kind in ("event", "end") and number is not None and inside != number:
                inside, counts = number, {}
                self._send(ENDS, ("begin", number, {}), sent_at, step)
            match kind:
                case "begin":
                    inside, counts = number, {}
                    self._send(ENDS, ("begin", number, {}), sent_at, step)
                case "event":
                    counts[place.topic] = counts.get(place.topic, 0) + 1
                    self._send(place, ("event", number, sum(counts.values()), step), sent_at, step)
                case "read":
                    self._send(place, ("read", None, 0, step), sent_at, step)
                case "end":
                    self._send(ENDS, ("end", number, dict(counts)), sent_at, step)
                    inside = None
        for place, keep in lose.items():
            while self.logs[place] and sent_at.get((place, len(self.logs[place]) - 1), -1) >= keep:
                self.logs[place].pop()
        self.ms += HOUR_MS // 3600

    def _send(self, place, said, sent_at, step):
        self.ms += 1
        sent_at[place, len(self.logs[place])] = step
        self.logs[place].append((self.ms, said))


def _counts(stream, number, before):
    counts = {}
    for kind, of, place in stream[:before]:
        if kind == "event" and of == number:
            counts[place.topic] = counts.get(place.topic, 0) + 1
    return counts


def stream_of(transactions):
    for number, places in enumerate(transactions):
        if number % 3 == 2:
            yield "read", None, PLACES[number % 4]
        yield "begin", number, None
        yield from (("event", number, place) for place in places)
        yield "end", number, None


class Reader:
    """Reads the logs up to cuts. After each crash there is a new reader."""

    def __init__(self, logs):
        self.logs, self.starts, self.on_from = logs, dict.fromkeys(PLACES, 0), {ENDS: 0}
        self.begin()

    def begin(self):
        self.window = TransactionWindow(self.starts, self.on_from, PATIENCE_MS)

    def look(self, place, end):
        first, ms = self.window.looked_at[place], None
        for offset in range(first, end):
            ms, said = self.logs[place][offset]
            at = SeenAt(place, offset, ms)
            if place == ENDS:
                kind, number, counts = said
                self.window.boundary(at, Boundary(str(number), kind == "end", {}), counts)
            elif said[0] == "event":
                self.window.event(at, SourceTransaction(str(said[1]), said[2]))
        if end > first:
            self.window.looked(place, end, ms, at_end=end == len(self.logs[place]), appended=False)

    def cut(self):
        found = self.window.cut()
        self.on_from = self.window.read_on_from(found)
        self.window.advance(found)
        self.starts = found

    def must_have_whole_transactions(self, stream):
        read = {said[3] for place, end in self.starts.items() for _, said in self.logs[place][:end]}
        for number in {number for kind, number, _ in stream if kind == "event"}:
            steps = {step for step, each in enumerate(stream) if each[:2] == ("event", number)}
            assert steps <= read or not steps & read, f"{len(steps & read)} of {len(steps)} events of {number} are read"


@settings(max_examples=300)
@given(st.data())
def test_a_transaction_is_read_whole_or_not_at_all(data):
    """The connector crashes and repeats itself, logs become visible in any order, and readers die between cuts."""
    drawn = st.lists(st.lists(st.sampled_from(PLACES), max_size=5), min_size=1, max_size=6)
    stream = list(stream_of(data.draw(drawn, "transactions")))
    connector = Connector(data.draw(st.booleans(), "counts on"))
    reader, first, died = Reader(connector.logs), 0, False
    ends = [*data.draw(st.lists(st.integers(0, len(stream)), max_size=3), "crashes"), len(stream)]
    for run, end in enumerate(ends):
        is_last = run == len(ends) - 1
        offset = end if is_last else data.draw(st.integers(min(first, end), end), "offset")
        visible = {place: len(log) for place, log in connector.logs.items()}
        lost = {} if is_last else {p: data.draw(st.integers(offset, len(stream)), f"lost {p}") for p in connector.logs}
        connector.run(stream, first, max(first, end), lost)
        first = min(offset, len(stream) - 1)
        for _ in range(data.draw(st.integers(0, 4), "looks")):
            for place in data.draw(st.permutations(list(connector.logs)), "order"):
                visible[place] = data.draw(st.integers(visible[place], len(connector.logs[place])), f"{place}")
                reader.look(place, max(visible[place], reader.window.looked_at[place]))
            reader.cut()
            reader.must_have_whole_transactions(stream)
            if data.draw(st.booleans(), "dies"):
                died = True
                reader.begin()
    for place, log in connector.logs.items():
        reader.look(place, len(log))
    reader.cut()
    assert not reader.window.given_up
    if died:  # the new reader does not know which repeated events belong to a transaction that was read
        reader.window.boundary(SeenAt(ENDS, 10**6, connector.ms + PATIENCE_MS), Boundary("z", True, {}), {})
        reader.cut()
    assert {place: len(log) for place, log in connector.logs.items() if place != ENDS} == reader.starts


def window(patience_ms=PATIENCE_MS):
    return TransactionWindow(dict.fromkeys(PLACES, 0), {ENDS: 0}, patience_ms)


GIRO, OTHER, SAVINGS, _ = PLACES


def test_a_transaction_without_its_end_is_given_up_once_others_have_ended_much_later():
    """Until then it holds back only records after its first event.

    It is given up only after all logs were looked at.
    """
    reads = window()
    reads.boundary(SeenAt(ENDS, 0, 0), Boundary("1", False, {}), {})
    reads.event(SeenAt(GIRO, 5, 1), SourceTransaction("1", 1))
    reads.looked(GIRO, 9, 1, at_end=True, appended=False)
    reads.looked(SAVINGS, 3, 1, at_end=True, appended=False)
    reads.looked(OTHER, 1, 1, at_end=False, appended=False)
    reads.looked(PLACES[3], 0, None, at_end=True, appended=False)
    reads.boundary(SeenAt(ENDS, 1, 2), Boundary("2", False, {}), {})
    reads.boundary(SeenAt(ENDS, 2, 1 + PATIENCE_MS), Boundary("2", True, {}), {})
    reads.looked(ENDS, 3, 1 + PATIENCE_MS, at_end=True, appended=False)
    assert {GIRO: 5, SAVINGS: 3, OTHER: 1, PLACES[3]: 0} == (waits := reads.cut())
    assert {ENDS: 0} == reads.read_on_from(waits)
    reads.boundary(SeenAt(ENDS, 3, 2 + PATIENCE_MS), Boundary("3", True, {}), {})
    assert waits == reads.cut(), "its other events may lie where nobody has looked"
    reads.looked(OTHER, 2, 2 + PATIENCE_MS, at_end=True, appended=False)
    assert {GIRO: 9, SAVINGS: 3, OTHER: 2, PLACES[3]: 0} == reads.cut()
    assert {"1": "its end"} == reads.given_up


def test_what_an_event_lacks_is_said_when_its_transaction_is_given_up():
    reads = window()
    reads.boundary(SeenAt(ENDS, 0, 0), Boundary("1", False, {}), {})
    reads.boundary(SeenAt(ENDS, 1, 1), Boundary("1", True, {}), {GIRO.topic: 3})
    reads.event(SeenAt(GIRO, 0, 1), SourceTransaction("1", 2))
    for place in [*PLACES, ENDS]:
        reads.looked(place, 1, 0, at_end=True, appended=False)
    assert 0 == reads.cut()[GIRO]
    reads.boundary(SeenAt(ENDS, 2, 2 + PATIENCE_MS), Boundary("2", True, {}), {})
    assert 1 == reads.cut()[GIRO]
    assert {"1": f"2 of {GIRO.topic}"} == reads.given_up


def test_a_topic_belongs_to_the_table_that_it_is_named_after():
    """Debezium writes `_` for characters that a topic's name cannot have.

    A topic with another name must be declared.
    """
    named = DebeziumTransactions("bank.transaction", tables={"odd": "public.giro"})
    counts = {"public.giro": 2, "public.sa vings": 3, "public.audit": 4}
    assert {"odd": 2, "x.public.sa_vings": 3} == named.expected(
        counts, ["odd", "x.public.sa_vings", "x.republic.audit"]
    )
    reads = window()
    reads.boundary(SeenAt(ENDS, 0, 0), Boundary("1", False, {}), {})
    reads.boundary(SeenAt(ENDS, 1, 0), Boundary("1", True, {}), {SAVINGS.topic: 1})
    reads.event(SeenAt(GIRO, 0, 0), SourceTransaction("1", 1))
    with pytest.raises(SourceError, match=r"tables=\{'bank.public.giro': 'public.giro'\}"):
        reads.cut()
