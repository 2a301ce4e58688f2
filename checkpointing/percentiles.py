"""Summarizes numbers: minimum, maximum, average and percentiles (E6; Flink: `StatsSummary`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A summary of at least one whole number, in the numbers' own unit.

    A percentile p is one of the numbers: the smallest number such that at least p per cent of all numbers are not
    greater. `average` is rounded to the nearest whole number.
    """

    count: int
    minimum: int
    average: int
    maximum: int
    p50: int
    p95: int
    p99: int

    @classmethod
    def of(cls, numbers: Iterable[int | None]) -> Self | None:
        """Summarize these measurements. None if there are none."""
        known = sorted(number for number in numbers if number is not None)
        if not known:
            return None
        return cls(
            count=len(known),
            minimum=known[0],
            average=round(sum(known) / len(known)),
            maximum=known[-1],
            p50=_percentile(known, 50),
            p95=_percentile(known, 95),
            p99=_percentile(known, 99),
        )


def _percentile(ascending: Sequence[int], per_cent: int) -> int:
    return ascending[max(-(-len(ascending) * per_cent // 100) - 1, 0)]
