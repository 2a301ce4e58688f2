"""The reference: what the tables and the state hold at a cut, as a replay of the sources from their start.

Nothing of the protocol is in here: no barriers, no micro-batches, no files. A cut is known by how far each
split was read; what an unaligned cut holds in flight was read but has not reached the vertex behind it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from checkpointing.identifiers import SplitId, VertexId
from spec.pipeline import BRONZE_ORDERS, BRONZE_PAYMENTS, ORDERS, PAYMENTS, SPLITS, by_key, source_rows

Pair = tuple[int, int]
"""A joined row: an order and a payment of one key."""


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
    read: Mapping[SplitId, int],
    in_flight_rows: Mapping[VertexId, Counter[int]],
    in_flight_pairs: Counter[Pair],
) -> Contents:
    """Return what is held when each split was read that far, less what is in flight behind each vertex."""
    orders = _sent(ORDERS, read) - in_flight_rows.get(ORDERS, Counter())
    payments = _sent(PAYMENTS, read) - in_flight_rows.get(PAYMENTS, Counter())
    left = by_key((orders - in_flight_rows.get(BRONZE_ORDERS, Counter())).elements())
    right = by_key((payments - in_flight_rows.get(BRONZE_PAYMENTS, Counter())).elements())
    joined = Counter((order, payment) for key in left for order in left[key] for payment in right.get(key, ()))
    return Contents(
        orders,
        payments,
        joined,
        sums(joined - in_flight_pairs),
        {key: (tuple(sorted(left.get(key, ()))), tuple(sorted(right.get(key, ())))) for key in left.keys() | right},
    )


def sums(pairs: Counter[Pair]) -> dict[int, tuple[int, int]]:
    """Return count and sum of the pairs of each key."""
    found: dict[int, tuple[int, int]] = {}
    for (order, payment), times in pairs.items():
        (key,) = by_key([order])
        count, total = found.get(key, (0, 0))
        found[key] = (count + times, total + times * (order + payment))
    return found


def _sent(source: VertexId, read: Mapping[SplitId, int]) -> Counter[int]:
    return Counter(row for split in SPLITS[source] for row in source_rows(split, 0, read.get(split, 0)))


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
