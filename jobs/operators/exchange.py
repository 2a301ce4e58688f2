"""The layout of rows in the exchange: blocks, each a row of Spark with an Arrow record batch as its bytes.

A task that produces rows splits them by subtask, and sends them as blocks. So Spark's exchange moves a few large rows,
and never looks at the rows inside a block. All rows of a block belong to one input, and their first column is the key
group. A block carries no schema, because sender and receiver know the schema.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from checkpointing.key_groups import range_of
from jobs.operators.in_time.measured_times import received_measured, sent_measured
from jobs.operators.python_workers import freeze_imports
from jobs.state.files import frame_of
from jobs.state.merge import KEY_GROUP

SUBTASK = "_subtask"
TAG = "_input"
BLOCK = "_block"

EXCHANGED = StructType(
    [StructField(SUBTASK, IntegerType()), StructField(TAG, IntegerType()), StructField(BLOCK, BinaryType())]
)
"""The columns of the exchange."""

WAKING = -1
"""The tag of a row that belongs to no input and only makes its subtask run."""

TIMES = -2
"""The tag of a block with the event times that a task has read. Subtask 0 reports them (N1)."""

BLOCK_BYTES_MAX = 64 * 1024
"""Only a block of one row is larger. Spark gives a task thousands of blocks as one Arrow batch (`session_settings`)."""

_GATHERED_BYTES_MAX = 16 * 1024 * 1024
SENT = pa.schema([(SUBTASK, pa.int32()), (TAG, pa.int32()), (BLOCK, pa.binary())])


@dataclass(frozen=True, slots=True)
class Arrived:
    """The rows that one task received: a frame per tag, each with its `_key_group`."""

    frames: tuple[pl.DataFrame, ...]

    @property
    def rows(self) -> int:
        """The number of rows in all frames."""
        return sum(frame.height for frame in self.frames)


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitter:
    """Turns the rows of one input into blocks. The rows have their key group in front, then the columns of `schema`.

    A row goes to the subtask that owns its key group. A row whose column `to_all` is true goes to every subtask. If
    `broadcast` is true, every row goes to every subtask. Each subtask gets such a row under a key group that it owns.
    """

    tag: int
    schema: pa.Schema
    parallelism: int
    max_parallelism: int
    to_all: str | None = None
    broadcast: bool = False

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the blocks of these rows. Memory holds about `_GATHERED_BYTES_MAX` bytes of rows and one more batch."""
        gathered: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if batch.num_rows:
                gathered.append(batch)
                size += batch.nbytes
            if size > _GATHERED_BYTES_MAX:
                yield self._sent(gathered)
                gathered, size = [], 0
        if gathered:
            yield self._sent(gathered)
        freeze_imports()

    def _sent(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        wanted = with_key_group(self.schema)
        received = pa.Table.from_batches(batches)
        columns = [column.cast(field.type) for column, field in zip(received.columns, wanted, strict=True)]
        of_keys, of_all = self._apart(pa.table(columns, schema=wanted))
        parts = [*(self._by_subtask(of_keys) if of_keys.num_rows else ()), *self._copies(of_all)]
        blocks = [(subtask, block.to_pybytes()) for subtask, rows in parts for block in blocks_of(rows)]
        subtasks, sent = zip(*blocks, strict=True)
        return pa.record_batch([pa.array(subtasks, pa.int32()), [self.tag] * len(sent), list(sent)], schema=SENT)

    def _apart(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the rows that go to the owner of their key group, and the rows that go to all subtasks."""
        if self.broadcast:
            return rows.slice(0, 0), rows
        if self.to_all is None:
            return rows, rows.slice(0, 0)
        is_for_all = pc.fill_null(rows.column(self.to_all), fill_value=False)
        return rows.filter(pc.invert(is_for_all)), rows.filter(is_for_all)

    def _copies(self, rows: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in rows.combine_chunks().to_batches() if rows.num_rows else ():
            for subtask in range(self.parallelism):
                yield subtask, owned_by(batch, subtask, self.parallelism, self.max_parallelism)

    def _by_subtask(self, rows: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each subtask, in the order in which they came."""
        owners = pc.divide(pc.multiply(rows.column(KEY_GROUP), self.parallelism), self.max_parallelism)
        (grouped,) = rows.take(pc.sort_indices(owners)).combine_chunks().to_batches()
        counts = sorted((entry["values"], entry["counts"]) for entry in pc.value_counts(owners).to_pylist())
        first = 0
        for subtask, count in counts:
            yield subtask, grouped.slice(first, count)
            first += count


def owned_by(rows: pa.RecordBatch, subtask: int, parallelism: int, max_parallelism: int) -> pa.RecordBatch:
    """Return the rows with their first column, the key group, replaced by one that the subtask owns."""
    own = range_of(subtask=subtask, parallelism=parallelism, max_parallelism=max_parallelism)
    group = pa.repeat(pa.scalar(own.first, pa.int32()), rows.num_rows)
    return pa.record_batch([group, *rows.columns[1:]], schema=rows.schema)


def blocks_of(rows: pa.RecordBatch) -> Iterator[pa.Buffer]:
    """Yield the rows as record batches of at most BLOCK_BYTES_MAX, or of one row."""
    parts = -(-rows.nbytes // BLOCK_BYTES_MAX)
    if parts > 1 and rows.num_rows > 1:
        length = max(1, rows.num_rows // parts)
        for first in range(0, rows.num_rows, length):
            part = rows.slice(first, length)
            yield from blocks_of(part) if part.nbytes > BLOCK_BYTES_MAX else (part.serialize(),)
    else:
        yield rows.serialize()


def times_block() -> Iterator[pa.RecordBatch]:
    """Yield a block with the event times that this worker has read, if there are any."""
    sent = sent_measured()
    if sent is not None:
        yield pa.record_batch([pa.array([0], pa.int32()), pa.array([TIMES], pa.int32()), [sent]], schema=SENT)


def take_apart(batches: Iterable[pa.RecordBatch], schemas: Sequence[pa.Schema]) -> Arrived:
    """Return the rows of these blocks by tag, each in its schema and with the key group in front."""
    return arrived(blocks_by_tag(batches, schemas), schemas)


def blocks_by_tag(batches: Iterable[pa.RecordBatch], schemas: Sequence[pa.Schema]) -> dict[int, list[pa.RecordBatch]]:
    """Return the record batches of these blocks by tag, in the order in which they came."""
    wanted = [with_key_group(schema) for schema in schemas]
    parts: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for batch in batches:
        for tag, block in zip(batch.column(TAG).to_pylist(), batch.column(BLOCK), strict=True):
            if tag == TIMES:
                received_measured(block.as_py())
            elif tag != WAKING:
                parts[tag].append(pa.ipc.read_record_batch(block.as_buffer(), wanted[tag]))
    return parts


def arrived(parts: Mapping[int, Sequence[pa.RecordBatch]], schemas: Sequence[pa.Schema]) -> Arrived:
    """Return rows by tag as frames. They have the columns of their tag's schema, with the key group in front."""
    wanted = (with_key_group(schema) for schema in schemas)
    return Arrived(
        tuple(frame_of(pa.Table.from_batches(parts.get(tag, ()), schema)) for tag, schema in enumerate(wanted))
    )


def with_key_group(schema: pa.Schema) -> pa.Schema:
    """Return the columns of rows in the exchange: their key group, then their own."""
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *schema])
