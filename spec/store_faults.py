"""Faults of a simulated store: a write is lost, the reply to a write is lost, or an answer comes late.

They strike what changes the store: appends, publications, cuts, also those of processes at rest. They have random
numbers of their own, so that all other runs stay as they were. The last tick meets none.
"""

from collections import Counter
from enum import Enum
from random import Random
from typing import Final

from checkpointing.messages import AppendRow, CheckTables, Effect, LookForRival, PublishTable, RecordCut

LATE_MS: Final = (60, 250, 600)
"""How long an answer may be on its way."""
OF_STORES: Final = (AppendRow, CheckTables, LookForRival, PublishTable, RecordCut)
"""Effects of a job whose answers may come late."""
NO_ANSWER: Final = "the store does not answer"
LATE: Final = "the answer of a store comes late"
STALE: Final = "a list of entries or cuts is stale"
STALE_FOR_CLEAN_UPS: Final = "a clean-up reads a stale list"
STALE_FOR_CLEAN_UPS_OFTEN: Final = 0.6
"""A clean-up seldom runs beside a tick. So if one does, its lists are often stale."""
STALE_FOR_READERS: Final = "a reader opens a stale log"


class Harm(Enum):
    """What happens to a write of which the sender hears nothing."""

    WRITE_LOST = "a write to a store is lost"
    REPLY_LOST = "the reply of a store is lost"


class StoreBrokeError(Exception):
    """A write for which there is no fact of failure got no answer."""


class StoreFaults:
    """Decides which writes and replies are lost, which answers come late, and which lists are stale."""

    def __init__(self, seed: int, met: Counter[str]) -> None:
        """Draw how often each fault strikes. In some runs, one of them never does. `met` counts the faults."""
        self._random = Random(f"store of {seed}")  # noqa: S311 - a run must be repeatable
        self._lost = self._random.choice([0.0, 0.03, 0.15])
        self._late = self._random.choice([0.0, 0.1, 0.4])
        self._stale = self._random.choice([0.0, 0.3])
        self._lists = Random(f"clean-ups and the store of {seed}")  # noqa: S311 - as above
        self._logs = Random(f"readers and the store of {seed}")  # noqa: S311 - as above
        self._met = met
        self.is_sound = False
        """True from the last tick on. Then no fault strikes."""

    def harm(self) -> Harm | None:
        """Return what happens to the next write, or None."""
        if not self._strikes(self._lost):
            return None
        harm = self._random.choice(list(Harm))
        self._met[harm.value] += 1
        return harm

    def late_ms(self) -> int:
        """Return how late the next answer comes."""
        if not self._strikes(self._late):
            return 0
        self._met[LATE] += 1
        return self._random.choice(LATE_MS)

    def is_stale(self) -> bool:
        """Return whether the next list shows what was true before the newest change."""
        stale = self._strikes(self._stale)
        self._met[STALE] += stale
        return stale

    def is_stale_for_clean_ups(self) -> bool:
        """Return whether the next list of a clean-up lacks the newest change."""
        stale = not self.is_sound and self._lists.random() < STALE_FOR_CLEAN_UPS_OFTEN
        self._met[STALE_FOR_CLEAN_UPS] += stale
        return stale

    def is_stale_for_readers(self) -> bool:
        """Return whether the log of a table that a reader opens lacks the newest version."""
        stale = not self.is_sound and self._logs.random() < self._stale
        self._met[STALE_FOR_READERS] += stale
        return stale

    def _strikes(self, probability: float) -> bool:
        return not self.is_sound and self._random.random() < probability


def late_ms(faults: StoreFaults | None, effect: Effect) -> int:
    """Return how late the answer to this effect comes."""
    return faults.late_ms() if faults is not None and isinstance(effect, OF_STORES) else 0
