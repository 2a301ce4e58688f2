"""Decides when a tick compacts its append tables, and which checkpoint commits what was compacted.

A tick compacts while it reads, because it may end soon after its last checkpoint. At most one request is under way, and
what it brings belongs to one checkpoint. If that checkpoint is declined, the next one commits it. So no two
checkpoints replace the same files. Nobody waits for a compaction, and if the tick ends first, the next one begins anew.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from checkpointing.commit.draft import Draft
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import Compacted, CompactFiles, FilesCompacted
from checkpointing.metadata.record import CheckpointRecord, RowKind


class Compacting:
    """Knows what was asked, what is ready, and which checkpoint has it."""

    def __init__(self, graph: JobGraph, config: CheckpointConfig, unpublished: Collection[TableName]) -> None:
        """Begin a tick. Nobody knows yet how many small files the tables have, so all are due.

        `unpublished` are tables that no entry has published under their names yet. They show other files.
        """
        tables = [table.name for table in graph.tables() if table.mode is TableMode.APPEND]
        self._files_min = config.compact_files_min
        self._bytes_max = config.compacted_bytes_max
        self._added = Counter({table: 0 if table in unpublished else self._files_min or 0 for table in tables})
        """How many files each table got since it was compacted."""
        self._asked = False
        """Whether a request is under way, or what it brought is not published yet."""
        self._ready: tuple[Compacted, ...] = ()
        self._taken: CheckpointId | None = None
        """The checkpoint that is to commit what is ready."""

    def rows_read(self) -> tuple[CompactFiles, ...]:
        """Return what to compact, now that the tick has rows for another checkpoint."""
        if self._files_min is None or self._asked:
            return ()
        due = tuple(table for table, files in self._added.items() if files >= self._files_min)
        if not due:
            return ()
        self._asked = True
        for table in due:
            self._added[table] = 0
        return (CompactFiles(due, self._files_min, self._bytes_max),)

    def told(self, fact: FilesCompacted) -> None:
        """Keep what was compacted for the next checkpoint."""
        self._ready = fact.found
        self._asked = bool(fact.found)
        for table in fact.more:
            self._added[table] = self._files_min or 0

    def onto(self, draft: Draft) -> Draft:
        """Return the draft with what is ready, unless another one has it, or it publishes nothing."""
        if self._taken is not None or not self._ready or draft.kind is RowKind.SAVEPOINT:
            return draft
        self._taken = draft.checkpoint
        return replace(draft, compacted=self._ready)

    def declined(self, checkpoint: CheckpointId) -> None:
        """Note that a checkpoint is not committed. The next one may commit what it had."""
        if checkpoint == self._taken:
            self._taken = None

    def committed(self, record: CheckpointRecord) -> None:
        """Note that a checkpoint is committed and published, and which files it has brought."""
        for table in record.tables:
            if table.table in self._added:
                self._added[table.table] += len(table.adds)
        if record.checkpoint == self._taken:
            self._ready, self._taken, self._asked = (), None, False
