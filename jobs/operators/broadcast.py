"""Keeps the newest row of each key of a broadcast input. Every subtask has all these rows (D1; Flink: broadcast state).

Each subtask computes the newest rows from the rows that arrived. Their order does not matter, so all subtasks get the
same result. One of the subtasks writes the state file, and the protocol hands the file to all.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from checkpointing.channel_items import RangeFiles
from checkpointing.handles import KeyedFile, Version
from checkpointing.identifiers import TableName
from checkpointing.key_groups import KeyGroupRange
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import FullBackend, RangeState
from jobs.state.merge import DELETED, KEY_GROUP

WRITER: Final = 0
"""The subtask whose task writes the state."""

_NEW: Final = "\0"
"""A helper column: no column of a user begins with this character."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Says which rows of a broadcast input are kept: the row of each key with the greatest value of `latest_by`.

    A null in a key column is a key like any other. A null in `latest_by` is less than every other value. If two rows of
    a key have equal values there, their other columns decide, and the greater row is kept. Nested columns are not
    compared.
    """

    keys: tuple[str, ...]
    latest_by: str

    def newer(self, rows: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the rows to keep. Each of them replaces the row of its key in `before`, or is its key's first row."""
        others = [name for name, kind in rows.schema.items() if name != self.latest_by and not kind.is_nested()]
        both = [frame.with_columns(pl.lit(value=new).alias(_NEW)) for frame, new in ((before, False), (rows, True))]
        order = [self.latest_by, *others, _NEW]
        ordered = pl.concat(both).sort(order, descending=[name == _NEW for name in order], nulls_last=False)
        return ordered.unique(subset=list(self.keys), keep="last").filter(_NEW).drop(_NEW)


@dataclass(frozen=True, slots=True)
class BroadcastRows:
    """The broadcast rows that a subtask sees in a micro-batch. `has_changed`: the micro-batch brought new ones.

    `written` is the new state, if this subtask has written it.
    """

    rows: pl.DataFrame
    has_changed: bool
    written: tuple[RangeFiles, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastState:
    """What a task needs to read and write the broadcast state of its vertex. All subtasks hold the same `files`.

    `outdated` is true if the files have other columns than the pipeline declares. Then the task of subtask 0 writes
    them again. `schema` has the columns of a row.
    """

    operator: str
    table: TableName
    kept: Broadcast
    schema: pa.Schema
    files: tuple[KeyedFile, ...]
    max_parallelism: int
    version: Version
    outdated: bool = False

    def taken(self, writer: StagedFiles, subtask: int, arrived: pl.DataFrame) -> BroadcastRows:
        """Return the broadcast rows that the subtask sees after these rows. Raise StateFileError, StagedFileError."""
        state = self._state(writer)
        loaded, keys = state.load(), list(self.kept.keys)
        rows = arrived.with_columns(pl.lit(0, pl.Int32).alias(KEY_GROUP))
        before = loaded.find(rows, keys).rows
        new = self.kept.newer(rows.select(before.columns), before)
        if new.is_empty() and not self.outdated:
            return BroadcastRows(loaded.frame().drop(KEY_GROUP), has_changed=False)
        found = loaded.find(new, keys)
        written: tuple[RangeFiles, ...] = ()
        if subtask == WRITER:
            change = state.write(found, new.with_columns(pl.lit(value=False).alias(DELETED)))
            written = (RangeFiles(self.table, change.files),)
        replaced = found.replaced_by(new).frame().drop(KEY_GROUP)
        return BroadcastRows(replaced, has_changed=not new.is_empty(), written=written)

    def must_write(self, subtask: int) -> bool:
        """Return whether the subtask writes the state even without rows."""
        return self.outdated and subtask == WRITER

    def _state(self, writer: StagedFiles) -> RangeState:
        return RangeState(
            operator=self.operator,
            table=self.table,
            keys=self.kept.keys,
            schema=self.schema,
            range=KeyGroupRange(first=0, last=self.max_parallelism - 1),
            files=self.files,
            writer=writer,
            version=self.version,
            backend=FullBackend(),
            outdated=self.outdated,
        )
