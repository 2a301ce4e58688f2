"""Event time in the small pipeline: the times of its rows, a vertex with windows, and its content at a cut (N1, N4).

    orders, payments -> bronze_orders, bronze_payments -> windows

The vertex counts the rows of each key in windows, appends each window when its time is over, and appends late rows to a
table of their own. The reference replays the rows from cut to cut. It has no micro-batches, no parallelism, and none of
the product's rules of event time: it takes the watermarks that the entries record, and `spec.rules.time` judges these.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.metadata.record import CheckpointRecord, RowKind, VertexTimeRecord
from spec.history import Begun, History, RowCommitted
from spec.reference.contents import in_flight, line_of, positions
from spec.reference.pipeline import (
    BRONZE_ORDERS,
    BRONZE_PAYMENTS,
    TIMES,
    WINDOWS,
    first_id,
    key_of,
    rows_before,
    rows_of,
    source_rows,
)

BEGINNING: Final = -(2**63)
END: Final = 2**63 - 1

WINDOW_MS: Final = 50


def time_of(row: int) -> int:
    """Return the event time of a source row. Times rise, but some rows come a little late, and a few come too late."""
    place, split = divmod(row, 4)
    return place * (10 + split) - place * 7 % 5 * 9 - (60 if place % 11 == 10 else 0)  # noqa: PLR2004


def window_of(row: int) -> int:
    """Return the number of a row's window."""
    return time_of(row) // WINDOW_MS


def last_ms(window: int) -> int:
    """Return the last millisecond of a window. The window is over when the watermark has reached it."""
    return (window + 1) * WINDOW_MS - 1


def timed_of(record: CheckpointRecord) -> dict[VertexId, VertexTimeRecord]:
    """Return an entry's record of event time for each vertex. The keys are the vertices' names in the first release."""
    return {first_id(was.vertex): was.time for was in record.vertices if was.time is not None}


def passed_before(record: CheckpointRecord, vertex: VertexId) -> list[int]:
    """Return the watermarks of a vertex at the barriers that the entry names, oldest first."""
    reached = (each for barrier in record.barriers for each in barrier.watermarks)
    return [each.watermark_ms for each in reached if first_id(each.vertex) == vertex]


def goes_on_from(record: CheckpointRecord, vertex: VertexId) -> int:
    """Return the watermark by which rows after a cut are judged.

    If event time had ended at the cut, return the watermark of the rows that were read.
    """
    time = timed_of(record).get(vertex)
    if time is None:
        return BEGINNING
    return time.watermark_ms if time.rows_ms is None else time.rows_ms


# ------------------------------------------------------------------
# Computes what the vertex with windows has emitted at a cut, by a replay from cut to cut.


@dataclass(slots=True)
class Windowed:
    """The vertex's results. Counters are multisets. A closed window is its key, number, and its rows' count and sum."""

    closed: Counter[tuple[int, ...]] = field(default_factory=Counter)
    late: Counter[tuple[int, ...]] = field(default_factory=Counter)
    open: dict[tuple[int, int], Counter[int]] = field(default_factory=dict)

    def take(self, rows: Iterable[int], watermark_ms: int) -> None:
        """Add rows, which are judged by this watermark."""
        for row in rows:
            if time_of(row) <= watermark_ms:
                self.late[row,] += 1
            else:
                self.open.setdefault((key_of(row), window_of(row)), Counter())[row] += 1

    def close(self, watermark_ms: int) -> None:
        """Close the windows that are over."""
        for key, window in [each for each in self.open if last_ms(each[1]) <= watermark_ms]:
            rows = self.open.pop((key, window))
            self.closed[key, window, rows.total(), sum(rows.elements())] += 1


def windowed(history: History, record: CheckpointRecord) -> Windowed | None:
    """Return the vertex's results at a cut, or None if it is unknown which rows a barrier before it overtook."""
    found, line = Windowed(), line_of(history, record)
    own = {event.record.checkpoint for event in history.of(RowCommitted)}
    at: dict[SplitId, int] = {}
    flying: Counter[int] = Counter()
    watermark_ms = BEGINNING
    for place, each in enumerate(line):
        if each.kind is RowKind.RESET:
            at = positions(each)
            continue
        if (each.barriers and _may_overtake(history)) or (each.checkpoint not in own and any(in_flight(each))):
            return None
        for clock, watermark in _barriers(each):
            rows = Counter(row for split, end in clock.items() for row in source_rows(split, at.get(split, 0), end))
            behind = _flying(history, each) if clock == positions(each) and watermark is not None else Counter[int]()
            found.take((rows + flying - behind).elements(), watermark_ms)
            at, flying = clock, behind
            if watermark is not None:
                watermark_ms = max(watermark_ms, watermark)
                found.close(watermark_ms)
        if watermark_ms == END and place + 1 < len(line):
            watermark_ms = goes_on_from(each, WINDOWS)
    return found


def _barriers(record: CheckpointRecord) -> Iterator[tuple[dict[SplitId, int], int | None]]:
    """Yield, for each barrier since the parent, how many rows of each split precede it, and the vertex's watermark.

    The last barrier is that of the cut. The watermark is None if the vertex has not passed the barrier.
    """
    for barrier in record.barriers:
        reached = [each.watermark_ms for each in barrier.watermarks if first_id(each.vertex) == WINDOWS]
        yield (
            {SplitId(each.split): rows_before(each.position) for each in barrier.positions},
            reached[0] if reached else None,
        )
    yield positions(record), timed_of(record)[WINDOWS].watermark_ms


def _may_overtake(history: History) -> bool:
    """Return whether the barriers of a run overtake rows."""
    begun = (steps[0].told for steps in history.steps.values())
    return any(isinstance(each, Begun) and each.setup.config.unaligned for each in begun)


def _flying(history: History, record: CheckpointRecord) -> Counter[int]:
    """Return the rows that are in flight to the vertex at a cut, also in front of its upstream vertices."""
    rows: Counter[int] = Counter()
    for held in in_flight(record):
        edge = held.channel.edge
        if edge.downstream == WINDOWS or first_id(edge.downstream) in (BRONZE_ORDERS, BRONZE_PAYMENTS):
            for segment in held.segments:
                if isinstance(segment, SourceSlice):
                    rows.update(rows_of(segment))
                else:
                    rows.update(row for file in segment.files for (row, *_) in history.rows(file.path))
    return rows


def furthest(rows: Sequence[int]) -> int:
    """Return the watermark of a split of which these rows were read."""
    return max((time_of(row) - TIMES.delay_ms - 1 for row in rows), default=BEGINNING)
