"""Simulates upstream jobs whose cuts the simulated job reads (A10)."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from checkpointing.graph import JobGraph
from checkpointing.identifiers import Generation, SplitId, VertexId
from spec.pipeline import PAYMENTS, SPLITS

SHOP, BANK = "shop", "bank"
"""Names of two upstream jobs."""

ROWS_PER_CUT: Final = 7
"""Each cut adds this many rows to each split, until the split has no more."""
PUBLISHES: Final = 0.2
"""The probability that an upstream job publishes another cut when it is asked for its newest one."""


@dataclass(frozen=True, slots=True)
class CutReached:
    """A split has read all rows up to a cut of its upstream job."""

    generation: Generation
    source: VertexId
    split: SplitId
    position: str
    cut: str


class Upstreams:
    """The upstream jobs. Some sources may read something other than cuts."""

    def __init__(self, rows: Mapping[SplitId, int], readable: dict[SplitId, int], jobs: Mapping[SplitId, str]) -> None:
        """Assign a job to each split. `rows` are the final numbers of rows, and `readable` the present ones."""
        self._rows = rows
        self._readable = readable
        self._jobs = jobs

    def groups(self, graph: JobGraph) -> dict[VertexId, str]:
        """Return the upstream job of each source that reads cuts."""
        jobs = {source.id: self._jobs.get(source.splits[0]) for source in graph.sources()}
        return {source: job for source, job in jobs.items() if job is not None}

    def has(self, split: SplitId) -> bool:
        """Return True if the split reads cuts."""
        return split in self._jobs

    def publish(self, split: SplitId) -> None:
        """Let the job of this split publish another cut, if it has rows left."""
        for each in self._of(split):
            self._readable[each] = min(self._rows[each], self._readable[each] + ROWS_PER_CUT)

    def newest(self, split: SplitId) -> int:
        """Return the newest cut of this split's job. Its rows are readable in every split of the job."""
        splits = self._of(split)
        last = -(-max(self._rows[each] for each in splits) // ROWS_PER_CUT)
        return max(n for n in range(last + 1) if all(self.place(n, each) <= self._readable[each] for each in splits))

    def place(self, cut: int, split: SplitId) -> int:
        """Return how many rows a split has at a cut."""
        return min(cut * ROWS_PER_CUT, self._rows[split])

    def _of(self, split: SplitId) -> list[SplitId]:
        return [each for each, job in self._jobs.items() if job == self._jobs[split]]


def drawn_upstreams(seed: int, rows: Mapping[SplitId, int], readable: dict[SplitId, int]) -> Upstreams:
    """Draw what the sources read: cuts of one job, cuts of two jobs, or one of them reads something else."""
    random = Random(f"upstream of {seed}")  # noqa: S311 - a run must be repeatable
    orders = [split for split in rows if split not in SPLITS[PAYMENTS]]
    of_orders, of_payments = random.choice([(SHOP, SHOP), (SHOP, BANK), (SHOP, None), (None, BANK)])
    jobs = dict.fromkeys(orders, of_orders) | dict.fromkeys(SPLITS[PAYMENTS], of_payments)
    return Upstreams(rows, readable, {split: job for split, job in jobs.items() if job is not None})
