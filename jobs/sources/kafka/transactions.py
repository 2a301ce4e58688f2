"""Makes each cut of Debezium's topics end between two transactions of the database (ADR 26).

With `provide.transaction.metadata=true`, Debezium records in each event the event's transaction, and writes the begin
and the end of each transaction to a separate topic. The end has the number of events of each table. So a reader can
decide which transactions are complete, and whether it has seen all of their events.

What Debezium does in detail (`TransactionMonitor`, `TransactionContext`), and what follows from it:

- Begin, events and end go to different Kafka partitions, which are not synchronized. So a reader can see any of them
  first.
- Records are sent at least once. After a crash, the connector sends again all records after its last offset. Older
  versions of Debezium then write a second BEGIN and count from 1 again, and the END has the number of events since the
  second BEGIN. Newer versions continue to count, without a second BEGIN. So only events since the last BEGIN are
  counted, each `total_order` once.
- The repetition of a complete transaction can begin in its middle, without a BEGIN. Such a repetition is not waited
  for.
- Reads of a snapshot, tombstones and heartbeats belong to no transaction.
- If the connector's offset is lost, an END can never be written. A transform of the connector can drop events after
  they were counted, and compaction removes events. A transaction with such a loss is given up once other transactions
  have ended so much later that the connector must have continued without it.
"""

import re
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from jobs.sources.debezium.connect_types import NoEventError
from jobs.sources.debezium.envelope import Boundary, SourceTransaction, boundary_of, transaction_of
from jobs.sources.kafka.client_settings import ClientSettings
from jobs.sources.kafka.cluster import Cluster, ClusterLook, Extent
from jobs.sources.kafka.position import KafkaPosition, TopicPartition, TransactionsRead
from jobs.sources.kafka.readers import messages
from jobs.sources.port import SourceError

if TYPE_CHECKING:
    from confluent_kafka import Message

_log = structlog.get_logger(__name__)

PATIENCE: Final = timedelta(minutes=10)
_CHUNK_MIN: Final = 100
_CHUNK: Final = 5_000
"""`_CHUNK_MIN` and `_CHUNK` are the least and the most offsets of a Kafka partition that are read at once."""
_DONE_MAX: Final = 1_000
_STEP_MS: Final = 500
"""By how many milliseconds the connector's clock may be set back. A restart of the connector takes longer."""
_ROUND_S: Final = 0.05
"""For how many seconds a look that found no cut answers further polls. The splits are polled in turn."""
_HEALTH: Final = 10_000
"""The most begins and ends of transactions that `doctor` reads."""
_LOG_APPEND_TIME: Final = 2
_NEVER: Final = -(2**62)
_NOT_IN_A_TOPIC: Final = re.compile(r"[^A-Za-z0-9._-]")


class SeenAt(NamedTuple):
    """The place of a record, and its time in milliseconds."""

    place: TopicPartition
    offset: int
    ms: int


@dataclass(slots=True)
class _Transaction:
    """What was read of a transaction. `expected` has the END's count of events for each topic.

    A transaction is `whole` once none of its records is missing, or once it was given up.
    """

    id: str
    known_at: SeenAt | None = None
    """The transaction's first record in the topic of transactions."""
    begins: int = 0
    since_ms: int = _NEVER
    until_ms: int = _NEVER
    last_ms: int = _NEVER
    ended: bool = False
    expected: Mapping[str, int] | None = None
    orders: dict[TopicPartition, "array[int]"] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    times: dict[TopicPartition, "array[int]"] = field(default_factory=lambda: defaultdict(lambda: array("q")))
    first: dict[TopicPartition, int] = field(default_factory=dict)
    last: dict[TopicPartition, int] = field(default_factory=dict)
    whole: bool = False

    def seen(self, *, by_time: bool) -> dict[str, int]:
        """Return for each topic the number of events to compare with the END's count.

        With `by_time`, these are the events that were sent between the last BEGIN and the last END.
        """
        since = self.since_ms - _STEP_MS if by_time or self.begins > 1 else _NEVER
        until = self.until_ms + _STEP_MS if by_time else -_NEVER
        found: dict[str, set[int]] = defaultdict(set)
        for place, orders in self.orders.items():
            times = self.times[place]
            found[place.topic].update(n for n, ms in zip(orders, times, strict=True) if since <= ms <= until)
        return {topic: len(numbers) for topic, numbers in found.items() if numbers}

    def missing(self, *, by_time: bool) -> dict[str, int] | None:
        """Return for each topic how many events are missing. Return None if the END was not read yet.

        Raises SourceError for events in a topic that has no events according to the END.
        """
        if not self.ended:
            return None
        if self.expected is None:
            return {}
        seen = self.seen(by_time=by_time)
        if self.begins == 1 and seen.keys() - self.expected.keys():
            raise _not_named(self.id, min(seen.keys() - self.expected.keys()))
        return {topic: n - seen.get(topic, 0) for topic, n in self.expected.items() if n > seen.get(topic, 0)}


class TransactionWindow:
    """The transactions between two places in each Kafka partition of a group: the read one and the looked-at one.

    `starts` are the places up to which the Kafka partitions were read, and `looked_at` those up to which their records
    were seen. Begins, ends and events must be passed in the order of their Kafka partition, and in any order among
    Kafka partitions.
    """

    def __init__(
        self, starts: Mapping[TopicPartition, int], ends_at: Mapping[TopicPartition, int], patience_ms: int
    ) -> None:
        """Begin at these offsets: `starts` in the topics of changes, `ends_at` in the topic of transactions."""
        self.starts = dict(starts)
        self.looked_at = {**starts, **ends_at}
        self.given_up: dict[str, str] = {}
        """From the id of each transaction that was given up to what is missing of it."""
        self._boundaries = tuple(ends_at)
        self._patience_ms = patience_ms
        self._by_id: dict[str, list[_Transaction]] = {}
        self._done: dict[str, int] = {}
        """The newest transactions that were read, with the times of their ENDs. Repeated events may still come."""
        self._ms: dict[TopicPartition, int] = dict.fromkeys(self.looked_at, _NEVER)
        self._at_end: set[TopicPartition] = set()
        self._newest_end_ms = _NEVER
        self._by_time = True

    @property
    def rows(self) -> int:
        """Return how many offsets of changes lie between `starts` and `looked_at`."""
        return sum(self.looked_at[place] - start for place, start in self.starts.items())

    def hindmost(self, ends: Mapping[TopicPartition, int]) -> TopicPartition | None:
        """Return the Kafka partition to look at next, whose newest seen record is oldest, or None if none is left."""
        behind = [place for place in self.looked_at if self.looked_at[place] < ends.get(place, 0)]
        return min(behind, key=lambda place: (self._ms[place], place), default=None)

    def boundary(self, at: SeenAt, said: Boundary, expected: Mapping[str, int]) -> None:
        """Process the begin or the end of a transaction. At the end, `expected` has each topic's number of events."""
        known = self._by_id.setdefault(said.id, [])
        if not known or (not said.is_end and self._is_whole(known[-1])):
            known.append(_Transaction(said.id))
        now = known[-1]
        now.known_at = now.known_at or at
        now.last_ms = max(now.last_ms, at.ms)
        if said.is_end:
            now.expected = expected if now.begins and not now.ended else now.expected
            now.ended, now.until_ms = True, at.ms
            self._newest_end_ms = max(self._newest_end_ms, at.ms)
        else:  # if one is there that is not whole, its events come again behind this BEGIN
            now.begins, now.since_ms, now.ended, now.expected = now.begins + 1, at.ms, False, None

    def event(self, at: SeenAt, of: SourceTransaction) -> None:
        """Process an event of a transaction."""
        if at.ms <= self._done.get(of.id, _NEVER) + _STEP_MS:
            return
        known = self._by_id.setdefault(of.id, [])
        if not known:
            known.append(_Transaction(of.id))
        now = next((each for each in reversed(known) if each.since_ms - _STEP_MS <= at.ms), known[0])
        now.last_ms = max(now.last_ms, at.ms)
        now.first.setdefault(at.place, at.offset)
        now.last[at.place] = at.offset
        if not now.whole:
            now.orders[at.place].append(of.total_order)
            now.times[at.place].append(at.ms)

    def looked(self, place: TopicPartition, offset: int, ms: int | None, *, at_end: bool, appended: bool) -> None:
        """Record that all records of a Kafka partition before this offset were seen. `ms` is the time of the last one.

        `appended` says that the times are the brokers' times, from which the order of two records is known only
        roughly.
        """
        self.looked_at[place] = offset
        self._ms[place] = max(self._ms[place], _NEVER if ms is None else ms)
        self._at_end = self._at_end | {place} if at_end else self._at_end - {place}
        self._by_time = self._by_time and not appended

    def cut(self) -> dict[TopicPartition, int]:
        """Return the last places up to which every transaction is read whole or not at all.

        Raises SourceError if a topic has an event of a transaction that has no events in this topic according to its
        END.
        """
        self._settle()
        ends = {place: self.looked_at[place] for place in self.starts}
        free = list(self._all())
        behind = [each for each in free if not each.whole]
        free = [each for each in free if each.whole]
        while behind:
            for each in behind:
                for place, first in each.first.items():
                    ends[place] = min(ends[place], first)
            behind = [each for each in free if any(last >= ends[place] for place, last in each.last.items())]
            beyond = set(map(id, behind))
            free = [each for each in free if id(each) not in beyond]
        return ends

    def read_on_from(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return from where the topic of transactions must be read after all changes before `ends` are read."""
        found = {place: self.looked_at[place] for place in self._boundaries}
        for each in self._all():
            if each.known_at is not None and not _is_read(each, ends):
                found[each.known_at.place] = min(found[each.known_at.place], each.known_at.offset)
        return found

    def advance(self, ends: Mapping[TopicPartition, int]) -> None:
        """Forget all transactions before these places, which `cut` has returned."""
        self.starts = dict(ends)
        for number in list(self._by_id):
            known = self._by_id.pop(number)
            left = [each for each in known if not _is_read(each, ends)]
            if left:
                self._by_id[number] = left
            if len(left) < len(known):
                self._done.pop(number, None)
                self._done[number] = max(each.until_ms for each in known if _is_read(each, ends))
        for number in [*self._done][:-_DONE_MAX]:
            del self._done[number]

    def open(self) -> Iterator[_Transaction]:
        """Yield the transactions that are not whole yet."""
        return (each for each in self._all() if not each.whole)

    def _all(self) -> Iterator[_Transaction]:
        return (each for known in self._by_id.values() for each in known)

    def _is_whole(self, each: _Transaction) -> bool:
        return each.whole or each.missing(by_time=self._by_time) == {}

    def _settle(self) -> None:
        """Find out which transactions are whole, and give up transactions that will never be complete."""
        horizon = min([self._newest_end_ms, *(ms for place, ms in self._ms.items() if place not in self._at_end)])
        for each in self.open():
            missing = each.missing(by_time=self._by_time)
            each.whole = missing == {} or each.id in self.given_up
            if not each.whole and horizon > each.last_ms + self._patience_ms:
                each.whole = True
                self.given_up[each.id] = (
                    "its end" if missing is None else ", ".join(f"{n:,} of {topic}" for topic, n in missing.items())
                )
            if each.whole:
                each.orders, each.times = {}, {}


def _is_read(each: _Transaction, ends: Mapping[TopicPartition, int]) -> bool:
    return each.whole and all(last < ends[place] for place, last in each.last.items())


def _is_at_cut(position: KafkaPosition) -> bool:
    return position.transactions is not None


def _not_named(number: str, topic: str) -> SourceError:
    return SourceError(
        f"topic {topic} has an event of transaction {number}, whose end names no table of this topic. A topic is named "
        f"after its table, as bank.public.giro after public.giro: if a transform of the connector renames {topic}, "
        f"write DebeziumTransactions(..., tables={{{topic!r}: 'public.giro'}}), with the name of its table"
    )


# ------------------------------------------------------------------
# Finds the cuts that a group of sources reads.


@dataclass(frozen=True, slots=True)
class TransactionCut:
    """A cut between two transactions: up to which offset each Kafka partition is read.

    `transactions` says from where the topic of transactions is read after the cut.
    """

    name: str
    ends: Mapping[TopicPartition, int]
    transactions: TransactionsRead | None


First = Callable[[TopicPartition, Extent], int]
"""Returns the offset at which a new job begins in a Kafka partition."""


class Member:
    """A source of a group: which Kafka partitions it reads, and up to where it has read them."""

    def __init__(self, group: "DebeziumTransactions", settings: ClientSettings, cluster: Cluster, first: First) -> None:
        self._group, self.settings, self.cluster, self.first = group, settings, cluster, first
        self.listed: frozenset[TopicPartition] = frozenset()
        self.at: dict[TopicPartition, KafkaPosition] = {}
        self.readers = "tidemark-reader"

    def begins(self, places: Iterable[TopicPartition] | None = None) -> None:
        """Store the Kafka partitions, if given, and forget all positions. The next polls set the positions again."""
        with self._group.lock:
            if places is not None:
                self.listed = frozenset(places)
            self.at.clear()

    def moved(self, place: TopicPartition, position: KafkaPosition) -> None:
        """Record that a Kafka partition was read up to this position."""
        with self._group.lock:
            self.at[place] = position

    def cut(self, place: TopicPartition, begin: KafkaPosition, name: str | None, rows: int) -> TransactionCut | None:
        """Return the cut of this name, or the next one; see `DebeziumTransactions.cut`."""
        with self._group.lock:
            self.at[place] = begin
            return self._group.cut(self, name, rows)


class DebeziumTransactions:
    """The topic to which Debezium writes the begin and the end of each transaction (`provide.transaction.metadata`).

    All KafkaSources of a pipeline that get the same object as `transactions=` are read up to the same transaction. So
    no cut of the job shows a part of a transaction. Each cut of the transactions causes a checkpoint.
    """

    def __init__(self, topic: str, *, tables: Mapping[str, str] | None = None, patience: timedelta = PATIENCE) -> None:
        """Ask nothing yet.

        `topic` is the topic of transactions, such as "bank.transaction". `tables` names the table of each topic that is
        not named after its table, as in {"giro-changes": "public.giro"}. A transaction whose end or events are missing
        is given up once other transactions have ended `patience` later. Raises SourceError for a `patience` that is not
        positive.
        """
        if patience <= timedelta(0):
            raise SourceError(f"DebeziumTransactions({topic!r}) has patience={patience}: write a time above nothing")
        self.topic, self._tables, self._patience = topic, dict(tables or {}), patience
        self.lock = threading.RLock()
        self._members: list[Member] = []
        self._window: TransactionWindow | None = None
        self._cut: TransactionCut | None = None
        self._topic_id = ""
        self._number = 0
        self._nothing_until = 0.0
        self._told: set[str] = set()

    def joined(self, settings: ClientSettings, cluster: Cluster, first: First) -> Member:
        """Add a source to the group, and return its member. Raise SourceError if the others read another Kafka."""
        others = {each.settings.servers for each in self._members} - {settings.servers}
        if others:
            raise SourceError(
                f"sources of transactions {self.topic} read Kafka at {settings.servers} and at {', '.join(others)}: "
                "make a DebeziumTransactions for each Kafka"
            )
        self._members.append(Member(self, settings, cluster, first))
        return self._members[-1]

    def expected(self, events: Mapping[str, int], topics: Iterable[str]) -> dict[str, int]:
        """Return the number of events in each topic that has events. `events` has the number for each table."""
        found: dict[str, int] = {}
        for topic in topics:
            count = sum(n for table, n in events.items() if self._has(topic, table))
            if count:
                found[topic] = count
        return found

    def cut(self, asker: Member, name: str | None, rows: int) -> TransactionCut | None:
        """Return the cut of this name. For None, return the next cut, with about `rows` rows, or None without one.

        The position of the group is not known until each split was polled once. So the poll of the last split finds the
        cut. Raises SourceError.
        """
        if name is not None:
            if self._cut is None or self._cut.name != name:
                raise SourceError(f"the cut {name} of transactions {self.topic} is not known: run the pipeline again")
            return self._cut
        at = {place: position for each in self._members for place, position in each.at.items()}
        if any(each.listed.difference(each.at) for each in self._members):
            return None
        starts = {place: position.offset for place, position in at.items()}
        is_known = self._window is not None and (self._window.starts == starts or self._arrived(starts))
        if is_known and time.monotonic() < self._nothing_until:
            return None
        look = self._look(asker)
        if self._window is None or not is_known:
            self._window = self._begun(look, starts, at.values())
        found = self._found(self._window, look, rows)
        if all(found[place] == start for place, start in starts.items()) and all(map(_is_at_cut, at.values())):
            self._nothing_until = time.monotonic() + _ROUND_S
            return None
        self._number += 1
        on_from = {place.partition: offset for place, offset in self._window.read_on_from(found).items()}
        read = TransactionsRead(topic_id=self._topic_id, offsets=on_from)
        self._cut = TransactionCut(str(self._number), found, read)
        return self._cut

    def waiting(self, asker: Member, positions: Iterable[KafkaPosition]) -> str:
        """Return a text on the transaction that the next cut waits for; see `port.ReportsHealth`.

        Raises SourceError if the topics cannot be read.
        """
        with self.lock:
            look = self._look(asker)
            window = self._begun(look, {}, positions)
            for place in sorted(window.looked_at):
                end = min(look.partitions[place].end, window.looked_at[place] + _HEALTH)
                self._take(asker, window, place, end, look)
            begun = [each for each in window.open() if each.known_at is not None and not each.ended]
            if not begun:
                return f"no transaction of {self.topic} is open"
            oldest = min(begun, key=lambda each: each.since_ms)
            when = datetime.fromtimestamp(oldest.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return f"transaction {oldest.id} of {self.topic} began at {when} and has no end yet: its rows wait"

    def _has(self, topic: str, table: str) -> bool:
        named = self._tables.get(topic)
        return table == named if named is not None else f".{topic}".endswith(f".{_NOT_IN_A_TOPIC.sub('_', table)}")

    def _arrived(self, starts: Mapping[TopicPartition, int]) -> bool:
        """Return whether all splits are at the newest cut. If they are, move the window's start to that cut."""
        if self._window is None or self._cut is None or self._cut.ends != starts:
            return False
        self._window.advance(starts)
        return True

    def _look(self, asker: Member) -> ClusterLook:
        """Return the extents of all topics. Topics of changes come first, so most of the changes' BEGINs are found."""
        topics = sorted({place.topic for each in self._members for place in each.at})
        changes = asker.cluster.look(topics, missing_ok=True)
        own = asker.cluster.look([self.topic], missing_ok=True)  # Debezium makes it at the first transaction
        return ClusterLook(changes.topics | own.topics, {**changes.partitions, **own.partitions}, own.at)

    def _begun(
        self, look: ClusterLook, starts: Mapping[TopicPartition, int], positions: Iterable[KafkaPosition]
    ) -> TransactionWindow:
        """Return the window that begins at these places."""
        extents = {place: extent for place, extent in look.partitions.items() if place.topic == self.topic}
        self._topic_id = next((extent.topic_id for extent in extents.values()), "")
        read = [position.transactions for position in positions]
        own: dict[TopicPartition, int] = {}
        for place, extent in extents.items():
            if all(each is not None and each.topic_id == extent.topic_id for each in read):
                at = max((each.offsets.get(place.partition, 0) for each in read if each is not None), default=0)
            else:
                at = min(each.first(place, extent) for each in self._members)
            own[place] = min(max(extent.first, at), extent.end)
        return TransactionWindow(starts, own, round(self._patience.total_seconds() * 1000))

    def _found(self, window: TransactionWindow, look: ClusterLook, rows: int) -> dict[TopicPartition, int]:
        """Return the next cut. Look at more and more records until there is a cut, or no record is left."""
        ends = {place: extent.end for place, extent in look.partitions.items()}
        for place in (place for place in ends if place.topic == self.topic and place not in window.looked_at):
            window.looked(place, look.partitions[place].first, None, at_end=False, appended=False)
        goal = rows
        while True:
            while window.rows < goal and (next_one := window.hindmost(ends)) is not None:
                end = min(ends[next_one], window.looked_at[next_one] + max(min(rows, _CHUNK), _CHUNK_MIN))
                self._take(self._reader(next_one), window, next_one, end, look)
            for place, at in list(window.looked_at.items()):
                window.looked(place, at, None, at_end=at >= ends.get(place, 0), appended=False)
            found = window.cut()
            self._tell(window)
            if found != window.starts or window.hindmost(ends) is None:
                return found
            goal = window.rows + rows

    def _reader(self, place: TopicPartition) -> Member:
        return next((each for each in self._members if place in each.at), self._members[0])

    def _take(
        self, member: Member, window: TransactionWindow, place: TopicPartition, end: int, look: ClusterLook
    ) -> None:
        """Look at the records of a Kafka partition up to an offset."""
        topics = {each.topic for each in window.starts}
        first, ms, appended = window.looked_at[place], None, False
        if first < end:
            for batch in messages(member.settings, member.readers, place, first, end):
                for record in batch:
                    kind, ms = record.timestamp()
                    appended = appended or kind == _LOG_APPEND_TIME
                    self._taken(window, SeenAt(place, record.offset(), ms), record, topics)
        window.looked(place, max(first, end), ms, at_end=end >= look.partitions[place].end, appended=appended)

    def _taken(self, window: TransactionWindow, at: SeenAt, record: "Message", topics: Iterable[str]) -> None:
        if at.place.topic == self.topic:
            try:
                said = boundary_of(record.value())
            except NoEventError as error:
                raise SourceError(f"{at.place}, offset {at.offset:,}: {error}") from error
            if said is not None:
                window.boundary(at, said, self.expected(said.events, topics))
            return
        of = transaction_of(record.value())
        if of is not None:
            window.event(at, of)

    def _tell(self, window: TransactionWindow) -> None:
        """Log the transactions that were given up, each once."""
        for number in window.given_up.keys() - self._told:
            self._told.add(number)
            _log.warning(
                "transaction given up: cuts may show a part of it",
                transaction=number,
                topic=self.topic,
                missing=window.given_up[number],
                patience=str(self._patience),
            )
