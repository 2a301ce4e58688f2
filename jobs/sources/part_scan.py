"""Scans the rows of a part of a hybrid source in a task, with the columns and the split names of the whole source."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jobs.sources.port import SPLIT_COLUMN, SourceError
from jobs.sources.slice_reading import ScanOfScan


@dataclass(frozen=True, slots=True, kw_only=True)
class PartScan(ScanOfScan):
    """A scan of a part's source; see `slice_reading.RowScan`.

    `part` is the part as messages name it, and `begin` what its splits begin with. The part lacks the columns `missing`
    of the other parts. They are null.
    """

    part: str
    begin: str
    missing: frozenset[str]

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows in `schema`. Raises what the part's scan raises. A SourceError names the part."""
        own = pa.schema([field for field in schema if field.name not in self.missing])
        try:
            for batch in self.scan.batches(own):
                yield pa.record_batch([self._column(batch, field) for field in schema], schema=schema)
        except SourceError as error:
            raise SourceError(f"{self.part}: {error}") from error

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self.missing:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(field.name)
        if field.name != SPLIT_COLUMN:
            return column
        return pc.binary_join_element_wise(pa.scalar(self.begin, column.type), column, pa.scalar("", column.type))
