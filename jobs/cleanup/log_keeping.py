"""Deletes log entries of output tables once no reader can need them, and a while longer.

A retained cut needs the entries since its version. A plain reader needs the entries since the version that it began
with; clean-ups note these versions (`CleanUpLook`). Older entries may be deleted, as every Delta writer deletes them by
age. So a commit's cost does not grow with the number of checkpoints (P9).
"""

from collections.abc import Collection
from dataclasses import dataclass

from checkpointing.commit.cleanup import CleanUpLook, log_floor
from checkpointing.identifiers import TableName
from jobs.cleanup.gathering import table_seen
from jobs.stores import maintenance
from jobs.stores.cuts import Cut
from jobs.stores.delta_log import DeltaLog


@dataclass(frozen=True, slots=True)
class LogKeeping:
    """Entries stay for the readers' grace after they were needed last, and at least until they are `keep_ms` old."""

    grace_ms: int
    keep_ms: int

    def shorten(
        self, log: DeltaLog, name: TableName, looks: Collection[CleanUpLook], cuts: Collection[Cut], now_ms: int
    ) -> None:
        """Delete the unneeded entries of one table's log; `looks` are those of earlier clean-ups.

        Only the holder of the job may call it. Raises OSError for an entry that cannot be read.
        """
        now = CleanUpLook(now_ms, {name: table_seen(name, log.known().version(), cuts)})
        floor = log_floor((*looks, now), name, now_ms, self.grace_ms)
        kept_s = max(self.keep_ms, self.grace_ms) / 1000
        if floor and maintenance.drop_entries(log.folder, floor, kept_s=kept_s, now_s=now_ms / 1000):
            log.reopen()
