"""Keeps the rows of a broadcast input: of each key the newest row, whole in every subtask (D1; Flink: broadcast state).

The rows that are kept depend on the rows that came, not on their order. So all subtasks keep the same rows, although
each of them merges for itself. One of them writes the file, and the protocol hands it to all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from checkpointing.handles import KeyedFile, Version
from checkpointing.identifiers import TableName
from checkpointing.key_groups import KeyGroupRange
from checkpointing.snapshots import RangeFiles
from jobs.operators.arrived import SENT, blocks_of, owned_by, with_key_group
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import RangeState
from jobs.state.backends import FullBackend
from jobs.state.merge import DELETED, KEY_GROUP

WRITER: Final = 0
"""The subtask whose task writes the state."""

_NEW: Final = "\0"
"""A column beside the user's: no column of a user begins with it."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """What is kept of a broadcast input: of each key the row with the greatest value of `latest_by`.

    Null is a key like any other, and the least value. Of rows with equal values, the one that is greatest by its other
    columns is kept, as far as these have an order.
    """

    keys: tuple[str, ...]
    latest_by: str

    def newer(self, rows: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return those of the rows that come in the place of the kept ones `before`, or beside them."""
        others = [name for name, kind in rows.schema.items() if name != self.latest_by and not kind.is_nested()]
        both = [frame.with_columns(pl.lit(value=new).alias(_NEW)) for frame, new in ((before, False), (rows, True))]
        order = [self.latest_by, *others, _NEW]
        ordered = pl.concat(both).sort(order, descending=[name == _NEW for name in order], nulls_last=False)
        return ordered.unique(subset=list(self.keys), keep="last").filter(_NEW).drop(_NEW)


@dataclass(frozen=True, slots=True)
class BroadcastRows:
    """The broadcast rows that a subtask sees in a micro-batch. `has_changed` says whether the micro-batch brought some.

    `written` is the new state, if this subtask has written it.
    """

    rows: pl.DataFrame
    has_changed: bool
    written: tuple[RangeFiles, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastState:
    """The broadcast state of a vertex, as its tasks get it. Each subtask holds these `files`.

    If they are `outdated`, they have other columns than declared, and are written again. `schema` has the columns of a
    row.
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
        """Return what the subtask sees after these rows. Raise StateFileError, StagedFileError."""
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
            file = state.write(found, new.with_columns(pl.lit(value=False).alias(DELETED)))
            written = (RangeFiles(self.table, (file,)),)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicator:
    """Turns the rows of a broadcast input into blocks, once for each subtask. The rows have a key group in front."""

    tag: int
    schema: pa.Schema
    parallelism: int
    max_parallelism: int

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the blocks of these rows, which get a key group that their subtask owns."""
        wanted = with_key_group(self.schema)
        for batch in batches:
            columns = [column.cast(field.type) for column, field in zip(batch.columns, wanted, strict=True)]
            every = pa.record_batch(columns, schema=wanted)
            for subtask in range(self.parallelism) if batch.num_rows else ():
                rows = owned_by(every, subtask, self.parallelism, self.max_parallelism)
                sent = [block.to_pybytes() for block in blocks_of(rows)]
                yield pa.record_batch([[subtask] * len(sent), [self.tag] * len(sent), sent], schema=SENT)
