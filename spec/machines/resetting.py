"""The machine of the whole job with resets: between two ticks, the position of a source moves.

It is a machine of its own, because each rule takes a share of the steps. With resets among the other rules, a profile's
runs missed bugs in the order of other things.
"""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from checkpointing.identifiers import SplitId
from spec.machines.job import ROWS_MAX, SPLITS, JobMachine
from spec.pipeline import SPLITS as SOURCES
from spec.resetting import to_row

_splits = st.sampled_from([*((split,) for split in SPLITS), *SOURCES.values()])


class ResettingMachine(JobMachine):
    """One warehouse. After a tick, somebody may reset a source."""

    @precondition(lambda self: self.driven.end is not None and self.driven.can_be_reset())
    @rule(pick=st.integers(0, ROWS_MAX), effects=st.integers(1, 8), splits=_splits, parallelism=st.integers(1, 3))
    def reset(self, pick: int, effects: int, splits: tuple[SplitId, ...], parallelism: int) -> None:
        """Reset a source after a tick. The process that does it may die. A tick follows."""
        self.driven.crash()
        source = next(vertex for vertex, own in SOURCES.items() if splits[0] in own)
        row = pick % (min(self.driven.hands.readable[split] for split in splits) + 1)
        self.driven.reset(to_row(source, splits, row), effects)
        self._judge()
        self._start(parallelism)
