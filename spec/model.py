"""The reference: what the tables and the state hold at a cut, as a replay of the sources from their start.

Nothing of the protocol is in here: no barriers, no micro-batches, no files. A cut is known by the stretches of each
split that were read, one unless the split was reset: what lies in two of them counts twice, what lies in none never.
What an unaligned cut holds in flight was read but has not reached the vertex behind it. A drain ends every key of
the join: an order that waits is put out with no payment, and what comes later finds nobody.
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
"""The stretches of each split that were read, in that order: the first row, and the one before which it ends."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What everything holds at one cut; counters are multisets."""

    orders: Counter[int]
    payments: Counter[int]
    joined: Counter[Pair]
    totals: dict[int, tuple[int, int]]
    """Key -> (how many pairs, the sum of their numbers): the upsert table and its operator's state alike."""
    join_state: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
    """Key -> (orders, payments), each sorted."""


def replay(
    read: Read,
    in_flight_rows: Mapping[VertexId, Counter[int]],
    in_flight_pairs: Counter[Pair],
    drains: Sequence[Read] = (),
) -> Contents:
    """Return what is held when these stretches were read, less what is in flight behind each vertex.

    `drains` are what had been read whenever the job was drained before, oldest first, perhaps all of it.
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
    """Return what must be there at least once: a row that counts twice may have met one that came after a drain."""
    met = Counter({pair: times for pair, times in contents.joined.items() if pair[1] != NO_PAYMENT})
    return replace(contents, joined=met, totals=sums(met))


def _ended(left: Mapping[int, list[int]], right: Mapping[int, list[int]]) -> Counter[Pair]:
    """Return the pairs of rows of which no more came: an order without any payment is put out all the same."""
    return Counter((order, payment) for key in left for order in left[key] for payment in right.get(key, (NO_PAYMENT,)))


def sums(pairs: Counter[Pair]) -> dict[int, tuple[int, int]]:
    """Return count and sum of the pairs of each key."""
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
    """Yield what a cut shows that it should not, and what it lacks (exactly once)."""
    for name in ("orders", "payments", "joined"):
        want, have = getattr(expected, name), getattr(shown, name)
        if want != have:
            yield f"{name}: lacks {_brief(want - have)}, has too much {_brief(have - want)}"
    for name in ("totals", "join_state"):
        want, have = getattr(expected, name), getattr(shown, name)
        if want != have:
            yield f"{name}: should be {want}, is {have}"


def shortfalls(expected: Contents, shown: Contents) -> Iterable[str]:
    """Yield what a cut lacks (at least once: more is allowed, less is not)."""
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
