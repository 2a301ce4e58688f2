"""The reference: what the tables and the state hold at a cut, computed by replaying the sources from their start.

It contains nothing of the protocol: no barriers, no micro-batches, no files. It knows a cut by the stretches of each
split that were read: one, unless the split was reset. A row in two stretches counts twice, and a row in none never.
Rows that an unaligned cut holds in flight were read, but have not reached the next vertex. A drain ends every key of
the join: an order that waits is emitted without a payment, and later payments find nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from checkpointing.identifiers import SplitId, VertexId
from spec.pipeline import (
    BRONZE_ORDERS,
    BRONZE_PAYMENTS,
    LATER,
    NO_PAYMENT,
    ORDERS,
    PAYMENTS,
    SPLITS,
    by_key,
    source_rows,
)

Pair = tuple[int, int]
"""A joined row: an order and a payment of one key."""


Read = Mapping[SplitId, Sequence[tuple[int, int]]]
"""The stretches of each split in the order in which they were read: the first row, and the row before which it ends."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What tables and state hold at one cut. Counters are multisets."""

    orders: Counter[int]
    payments: Counter[int]
    joined: Counter[Pair]
    totals: dict[int, tuple[int, int]]
    """Key -> (number of pairs, sum of their numbers), of the upsert table and its operator's state alike."""
    join_state: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
    """Key -> (orders, payments), each sorted."""


def replay(
    read: Read,
    in_flight_rows: Mapping[VertexId, Counter[int]],
    in_flight_pairs: Counter[Pair],
    drains: Sequence[Read] = (),
) -> Contents:
    """Return what is held after reading these stretches, without what is in flight before each vertex.

    `drains` are what had been read at each earlier drain, oldest first, perhaps everything.
    """
    joined: Counter[Pair] = Counter()
    begun: Read = {}
    for ended in drains:
        joined += _ended(by_key(_between(ORDERS, begun, ended)), by_key(_between(PAYMENTS, begun, ended)))
        begun = ended
    orders = _sent(ORDERS, read) - in_flight_rows.get(ORDERS, Counter())
    payments = _sent(PAYMENTS, read) - in_flight_rows.get(PAYMENTS, Counter())
    left = by_key((orders - in_flight_rows.get(BRONZE_ORDERS, Counter()) - _sent(ORDERS, begun)).elements())
    right = by_key((payments - in_flight_rows.get(BRONZE_PAYMENTS, Counter()) - _sent(PAYMENTS, begun)).elements())
    joined += Counter((order, payment) for key in left for order in left[key] for payment in right.get(key, ()))
    return Contents(
        orders,
        payments,
        joined,
        sums(joined - in_flight_pairs),
        {key: (tuple(sorted(left.get(key, ()))), tuple(sorted(right.get(key, ())))) for key in left.keys() | right},
    )


def _without_unmet(contents: Contents) -> Contents:
    """Return what must be there at least once. A row that counts twice may have met one that came after a drain."""
    met = Counter({pair: times for pair, times in contents.joined.items() if pair[1] != NO_PAYMENT})
    return replace(contents, joined=met, totals=sums(met))


def _ended(left: Mapping[int, list[int]], right: Mapping[int, list[int]]) -> Counter[Pair]:
    """Return the pairs of rows of which no more come. An order without a payment is emitted too."""
    return Counter((order, payment) for key in left for order in left[key] for payment in right.get(key, (NO_PAYMENT,)))


def sums(pairs: Counter[Pair]) -> dict[int, tuple[int, int]]:
    """Return the count and the sum of the pairs of each key."""
    found: dict[int, tuple[int, int]] = {}
    for (order, payment), times in pairs.items():
        (key,) = by_key([order])
        count, total = found.get(key, (0, 0))
        found[key] = (count + times, total + times * (order + payment))
    return found


def _sent(source: VertexId, read: Read) -> Counter[int]:
    splits = (*SPLITS[source], LATER) if source == ORDERS else SPLITS[source]
    stretches = ((split, *stretch) for split in splits for stretch in read.get(split, ()))
    return Counter(row for split, begin, end in stretches for row in source_rows(split, begin, end))


def _between(source: VertexId, begun: Read, ended: Read) -> Iterable[int]:
    return (_sent(source, ended) - _sent(source, begun)).elements()


def differences(expected: Contents, shown: Contents) -> Iterable[str]:
    """Yield what a cut shows wrongly, and what it lacks (exactly once)."""
    for name in ("orders", "payments", "joined"):
        want, have = getattr(expected, name), getattr(shown, name)
        if want != have:
            yield f"{name}: lacks {_brief(want - have)}, has too much {_brief(have - want)}"
    for name in ("totals", "join_state"):
        want, have = getattr(expected, name), getattr(shown, name)
        if want != have:
            yield f"{name}: should be {want}, is {have}"


def shortfalls(expected: Contents, shown: Contents) -> Iterable[str]:
    """Yield what a cut lacks (at least once: more is allowed)."""
    expected = _without_unmet(expected)
    for name in ("orders", "payments", "joined"):
        missing = getattr(expected, name) - getattr(shown, name)
        if missing:
            yield f"{name}: lacks {_brief(missing)}"
    for key, (count, _) in expected.totals.items():
        if shown.totals.get(key, (0, 0))[0] < count:
            yield f"totals: key {key} counts {shown.totals.get(key)}, at least {count} are due"


def _brief(rows: Counter[int] | Counter[Pair]) -> str:
    shown = sorted(rows.items())
    more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""  # noqa: PLR2004
    return f"{shown[:5]}{more}" if shown else "nothing"
