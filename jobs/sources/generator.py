"""A source of generated rows at a given rate, for demos and benchmarks. The same seed always gives the same rows."""

import time
from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId
from checkpointing.messages import PollSource
from jobs.sources.hybrid import SequenceSource, row_at
from jobs.sources.port import Lag, SourceDescription


class GeneratorSource(SequenceSource):
    """Rows (`split`, `n`, `key`, `value`) made from a hash of seed, split and n (see `port.Source`).

    n = 0, 1, 2, ... in each split. `key` lies below `keys`, and `value` below 1,000. `rows` is the number of rows of
    all splits together, or None for rows without end. `rate` is the number of rows a second in all splits together, or
    None for no limit. For each split, the rate applies from the time and the position of this object's first poll. With
    a rate, a tick that ends when it is caught up ends at once, so give the tick a duration. A `bounded` generator ends
    after its last row.
    """

    def __init__(
        self,
        rows: int | None = None,
        rate: float | None = None,
        seed: int = 0,
        *,
        splits: int = 1,
        keys: int = 100,
        bounded: bool = False,
    ) -> None:
        """Raise ValueError for a number that is not positive. `rows` may be 0. A bounded generator must have `rows`."""
        for name, number in (("splits", splits), ("rate", rate), ("rows", None if rows is None else rows + 1)):
            if number is not None and number <= 0:
                raise ValueError(f"{name} of a generator must be positive: write another number")
        share = {
            str(place): None if rows is None else rows // splits + (place < rows % splits) for place in range(splits)
        }
        super().__init__(share, keys=keys, bounded=bounded)
        self._seed = seed
        self._rate = None if rate is None else rate / splits
        self._begun: dict[SplitId, tuple[int, float]] = {}
        """The first row that a poll asked for in each split, and the time of that poll."""

    def described(self) -> SourceDescription:
        """Return the seed and the rate; see `port.DescribesItself`."""
        rate = "" if self._rate is None else f", {self._rate * len(self.splits()):g} rows a second"
        return SourceDescription("generator", f"made up from seed {self._seed}{rate}")

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the rows of a split that the rate allows by now; see `port.Source.poll`."""
        if self._rate is None:
            return super().poll(request)
        start = row_at(request.position)
        first, at_s = self._begun.setdefault(request.split, (start, time.monotonic()))
        come = first + int((time.monotonic() - at_s) * self._rate) - start
        return super().poll(replace(request, max_rows=min(request.max_rows, come))) if come > 0 else None

    def lag(self, positions: Mapping[SplitId, str]) -> dict[SplitId, Lag]:
        """Return the number of remaining rows. With a rate, the number depends on the time, and is unknown.

        See `port.KnowsLag`.
        """
        left = super().lag(positions)
        return left if self._rate is None else {split: Lag(None if lag.rows else 0) for split, lag in left.items()}

    def _columns(self, split: SplitId) -> dict[str, Column]:
        """Return key and value as hashes."""
        made_up = F.xxhash64(F.lit(self._seed), F.lit(split), F.col("id"))
        return {"key": F.pmod(made_up, F.lit(self._keys)), "value": F.pmod(F.shiftright(made_up, 20), F.lit(1_000))}
