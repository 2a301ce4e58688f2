"""Decodes Avro records in Spark's tasks. Each value of a column of bytes is one record.

A record is good if its bytes are exactly one record of the schema, and if its values fit Spark's types. A record of
Confluent's wire format has a zero byte and the number of its schema, four bytes, in front.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader

from jobs.sources.avro.schemas import Avro, without_logical_types
from jobs.sources.registry.known_schema import HEAD_BYTES, KnownSchema, number_of

_FAILURES: Final = (ValueError, TypeError, LookupError, EOFError, ArithmeticError, MemoryError, pa.ArrowException)
"""The errors of fastavro and Arrow for bytes that are no record, and for values that do not fit."""

Record = dict[str, Any] | None


@dataclass(frozen=True)
class AvroDecoding:
    """How the bytes of the column `value` are decoded into columns.

    `reader` is the schema of the columns. If it is None, each column gets the writer's field of the same name.
    `writers` maps the number in front of each record to the schema with which the record was written. It is None if
    records have no number and were written with `reader`. Decimals are the only logical types in these schemas.
    `stored` is the type of the decoded records, and `columns` are the columns that this type is cast to.
    """

    value: str
    undecoded: str
    reader: Avro | None
    writers: Mapping[int, Avro] | None
    stored: pa.StructType
    columns: pa.Schema

    def with_schemas(self, known: Mapping[int, KnownSchema]) -> "AvroDecoding":
        """Return the decoding of records that were written with these schemas of a registry."""
        return replace(self, writers={number: without_logical_types(each.avro()) for number, each in known.items()})

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with the records' columns and the undecoded bytes in front of the batch's other columns."""
        for batch in batches:
            yield self._decoded(batch)

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column(self.value).to_pylist()
        records = [self._record(value) for value in values]
        rows, fits = self._rows(records)
        bad = [
            value if not fit or (value is not None and record is None) else None
            for value, record, fit in zip(values, records, fits, strict=True)
        ]
        others = [name for name in batch.schema.names if name != self.value]
        return pa.RecordBatch.from_arrays(
            [*rows.flatten(), pa.array(bad, pa.binary()), *(batch.column(name) for name in others)],
            names=[*self.columns.names, self.undecoded, *others],
        )

    def _record(self, value: bytes | None) -> Record:
        """Return the record in these bytes, or None if they are no record or if there is no value."""
        if value is None:
            return None
        try:
            return self._read(value)
        except _FAILURES:
            return None

    def _read(self, value: bytes) -> Record:
        file = BytesIO(value)
        writer: Avro = self._parsed_reader
        if self.writers is not None:
            number = number_of(value)
            if number is None:
                return None
            file.seek(HEAD_BYTES)
            writer = self._parsed_writers[number]
        reader = None if writer is self._parsed_reader else self._parsed_reader
        record = schemaless_reader(file, writer, reader)
        return record if isinstance(record, dict) and file.tell() == len(value) else None

    def _rows(self, records: Sequence[Record]) -> tuple[pa.StructArray, list[bool]]:
        """Return the records as rows, and for each record whether its values fit. A missing record has nulls."""
        try:
            return self._converted(records), [True] * len(records)
        except _FAILURES:
            singly = [self._fitting(record) for record in records]
            kept = [record if fit else None for record, fit in zip(records, singly, strict=True)]
            return self._converted(kept), singly

    def _fitting(self, record: Record) -> bool:
        try:
            self._converted([record])
        except _FAILURES:
            return False
        return True

    def _converted(self, records: Sequence[Record]) -> pa.StructArray:
        return pa.array(records, self.stored).cast(pa.struct(list(self.columns)))

    @cached_property
    def _parsed_reader(self) -> Avro | None:
        return None if self.reader is None else parse_schema(self.reader)

    @cached_property
    def _parsed_writers(self) -> dict[int, Avro]:
        return {
            number: self._parsed_reader if schema == self.reader else parse_schema(schema)
            for number, schema in (self.writers or {}).items()
        }
