"""An operator's keyed state at a cut, with real columns and one row per key (K3).

A state file holds the changes of one micro-batch, or a whole key range. This module returns what the operator itself
would load: the newest row of each key, without tombstones and superseded rows.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from checkpointing.handles import KeyedFileKind
from checkpointing.identifiers import JobName, VertexId
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord
from jobs.reading.moments import CutUnreadableError
from jobs.reading.state_slices import StateSlice, files_of, rows_on_their_way, state_slices
from jobs.reading.state_sql import Dialect, StateQuery, state_sql
from jobs.state.backend import keys_of
from jobs.state.files import arrow_of, empty_frame, frame_of, read_verified, schema_of
from jobs.state.merge import DELETED, KEY_GROUP
from jobs.storage.address import Root
from jobs.storage.place import place_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS = (KEY_GROUP, DELETED)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OperatorState:
    """The state of one operator at one checkpoint, which `Cut.state` returns.

    `keys` are the key columns, and `schema` has the key and state columns. `rows_on_their_way` is the number of rows
    that were in flight to the operator in an unaligned checkpoint. These rows belong to the cut, but are not in the
    state yet.
    """

    job: str
    operator: str
    checkpoint: int
    keys: tuple[str, ...]
    schema: pa.Schema
    rows_on_their_way: int
    _root: Root
    _folder: str
    _version: int
    _slices: tuple[StateSlice, ...]
    _stored: pa.Schema

    def __repr__(self) -> str:
        """Return a text with operator, cut and columns."""
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"<State of {self.operator} at cut {self.checkpoint} of {self.job}: {columns}>"

    @property
    def files(self) -> int:
        """The number of files of the state."""
        return len(files_of(self._slices))

    def polars(self) -> pl.LazyFrame:
        """Return the state, lazily: one row per key, in no order. Raises StateFileError for a damaged file."""
        if not self._slices:
            return empty_frame(self.schema).lazy()
        rows = pl.concat([self._scan(each) for each in self._slices])
        if any(each.kind is KeyedFileKind.DELTA for each in self._slices):
            rows = rows.unique(subset=list(self.keys), keep="last")
        return rows.filter(~pl.col(DELETED)).select(self.schema.names)

    def arrow(self) -> pa.Table:
        """Return the state: one row per key, in no order; raises StateFileError for a damaged file."""
        return arrow_of(self.polars().collect(), self.schema)

    def spark(self, spark: "SparkSession") -> "DataFrame":
        """Return the state as a Spark DataFrame, by the SQL of `sql("spark")`; the session needs Delta."""
        return spark.sql(self.sql("spark"))

    def sql(self, dialect: Dialect) -> str:
        """Return a query that gives the state in any Spark with Delta, or any DuckDB, without Tidemark."""
        query = StateQuery(
            title=f"state of {self.operator} at checkpoint {self.checkpoint} of {self.job}: one row per key",
            root=self._root,
            folder=self._folder,
            version=self._version,
            slices=self._slices,
            keys=self.keys,
            columns=self.schema,
        )
        return state_sql(query, dialect)

    def _scan(self, part: StateSlice) -> pl.LazyFrame:
        if schema_of(str(self._root), part.file) == self._stored:
            rows = pl.scan_parquet(str(place_in(self._root, part.file.path)), glob=False)
        else:  # The file has older columns (D6) or is damaged; the schema check names it.
            rows = frame_of(read_verified(str(self._root), self.operator, part.file, self._stored)).lazy()
        return rows if part.whole else rows.filter(pl.col(KEY_GROUP).is_between(part.first, part.last))


def opened_state(root: Root, record: CheckpointRecord, operator: VertexId, table: DeltaTable) -> OperatorState:
    """Return the state of an operator at a checkpoint. `table` is its state table at the version of the cut.

    Raises CutUnreadableError if the files do not name their key columns.
    """
    slices = state_slices(record, operator)
    newest = max(slices, key=lambda each: each.age_rank, default=None)
    footer = schema_of(str(root), newest.file) if newest else None
    stored = footer or pa.schema(table.schema().to_arrow())
    keys = keys_of(stored)
    if keys is None and any(each.kind is KeyedFileKind.DELTA for each in slices):
        raise CutUnreadableError(
            f"the state files of {operator} do not name their key columns: they are of an older release; "
            f"run 'tidemark run {record.job}' once, and read a newer cut"
        )
    columns = pa.schema([field for field in stored if field.name not in _OURS])
    return OperatorState(
        job=record.job,
        operator=operator,
        checkpoint=record.checkpoint,
        keys=keys or (),
        schema=columns,
        rows_on_their_way=rows_on_their_way(record, operator),
        _root=root,
        _folder=str(place_in(root, table_of_state(JobName(record.job), operator))),
        _version=table.version(),
        _slices=slices,
        _stored=stored,
    )
