"""Decodes batches of Debezium's events in Spark's tasks. The bytes of values and keys become rows of changes.

A record that is no event, or whose values do not fit the columns, becomes one row with only the bytes of its value.
Tombstones, heartbeats and messages have no row. The places of rows are doubled. For record n, the row before an update
has the place 2n, and any other row has the place 2n + 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from jobs.sources.avro.schemas import Avro, without_logical_types, written_out
from jobs.sources.change_rows import BEFORE, HEAD, TRUNCATE
from jobs.sources.debezium.columns import Encodings, RowColumns
from jobs.sources.debezium.connect_types import ConnectType, NoEventError, of_avro
from jobs.sources.debezium.envelope import ChangeEvent, change_rows, event_of, json_event
from jobs.sources.port import SourceError
from jobs.sources.registry.known_schema import HEAD_BYTES, KnownSchema, number_of
from jobs.spark.versions import to_arrow

_NOT_EXACT: Final = (ValueError, TypeError, LookupError, EOFError, ArithmeticError, MemoryError, pa.ArrowException)
_Row = tuple[int, int, tuple[Any, ...] | None]
"""The number of the record in its batch, the row's place, and the row's values. None: the record did not decode."""


@dataclass(frozen=True)
class DebeziumDecoding:
    """How the bytes of the columns `value` and `key` become the columns of `HEAD`, and then the columns of a table.

    `writers` maps numbers to the registry's schemas of Avro events. It is None for JSON. With `only_known`, an event
    with a column that `table` lacks is an error. `unordered` is the reason why a truncate cannot be ordered among other
    changes, or None if it can.
    """

    value: str
    key: str
    position: str
    undecoded: str
    table: StructType
    encodings: Encodings
    writers: Mapping[int, Avro] | None
    only_known: bool = False
    unordered: str | None = None

    def with_schemas(self, known: Mapping[int, KnownSchema]) -> "DebeziumDecoding":
        """Return the decoding of records that were written with these schemas of a registry."""
        return replace(self, writers={number: each.avro() for number, each in known.items()})

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with the rows of its events. Raises SourceError for a truncate that cannot be ordered."""
        for batch in batches:
            yield self._decoded(batch)

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values, keys, places = (batch.column(name).to_pylist() for name in (self.value, self.key, self.position))
        rows = [row for at, each in enumerate(zip(values, keys, places, strict=True)) for row in self._rows(at, *each)]
        try:
            arrays = self._arrays(rows)
        except _NOT_EXACT:
            rows = self._singly(rows, places)
            arrays = self._arrays(rows)
        bad = [values[at] if found is None else None for at, _, found in rows]
        records = pa.array([at for at, _, _ in rows], pa.int64())
        others = {name: batch.column(name).take(records) for name in batch.schema.names if name not in self._own}
        others[self.position] = pa.array([place for _, place, _ in rows], pa.int64())
        return pa.RecordBatch.from_arrays(
            [*arrays, pa.array(bad, pa.binary()), *others.values()],
            names=[*self._schema.names, self.undecoded, *others],
        )

    def _rows(self, at: int, value: bytes | None, key: bytes | None, place: int) -> Iterator[_Row]:
        try:
            event = self._event(value, key)
            if event is None:
                return
            self._must_be_readable(event)
            found = list(change_rows(event, self._columns))
        except NoEventError:
            yield at, 2 * place + 1, None
            return
        yield from ((at, 2 * place + (row[0] != BEFORE), row) for row in found)

    def _event(self, value: bytes | None, key: bytes | None) -> ChangeEvent | None:
        if self.writers is None:
            return json_event(value, key)
        if value is None:
            return None
        payload, number = self._avro(value)
        return event_of(payload, None if key is None else self._avro(key)[0], self._types[number])

    def _avro(self, text: bytes) -> tuple[Any, int]:
        from fastavro import schemaless_reader  # noqa: PLC0415 - an extra

        number = number_of(text)
        if number is None or number not in self._parsed:
            raise NoEventError("it has no schema of the registry")
        file = BytesIO(text)
        file.seek(HEAD_BYTES)
        try:
            found = schemaless_reader(file, self._parsed[number], None)
        except _NOT_EXACT as error:
            raise NoEventError(f"it is no record of schema {number}: {error}") from error
        return found, number

    def _must_be_readable(self, event: ChangeEvent) -> None:
        """Raise SourceError for a change that would be lost, or would be read in the wrong order."""
        if event.kind == TRUNCATE and self.unordered is not None:
            raise SourceError(f"{event.table} was truncated at {event.place}, and {self.unordered}")
        if self.only_known:
            unknown = self._columns.unknown(event.types, event.after)
            if unknown:
                raise SourceError(
                    f"{event.table} has a column {unknown[0]!r} at {event.place}, which schema= lacks: add it there, "
                    "or do not read such columns, with columns='ignore'"
                )

    def _arrays(self, rows: Sequence[_Row]) -> list[pa.Array]:
        empty = (None,) * len(self._schema)
        columns = zip(*(found or empty for _, _, found in rows), strict=True) if rows else [()] * len(self._schema)
        return [pa.array(each, field.type) for each, field in zip(columns, self._schema, strict=True)]

    def _singly(self, rows: Sequence[_Row], places: Sequence[int]) -> list[_Row]:
        """Return the rows. A record with a value that does not fit has one undecoded row instead of its rows."""
        bad = {row[0] for row in rows if not self._fits(row)}
        good = [row for row in rows if row[0] not in bad]
        return sorted([*good, *((at, 2 * places[at] + 1, None) for at in bad)], key=lambda row: row[:2])

    def _fits(self, row: _Row) -> bool:
        try:
            self._arrays([row])
        except _NOT_EXACT:
            return False
        return True

    @property
    def _own(self) -> tuple[str, ...]:
        return self.value, self.key, self.position

    @cached_property
    def _schema(self) -> pa.Schema:
        return to_arrow(StructType([*HEAD, *self.table]))

    @cached_property
    def _columns(self) -> RowColumns:
        return RowColumns(self.table, self.encodings)

    @cached_property
    def _parsed(self) -> dict[int, Avro]:
        from fastavro import parse_schema  # noqa: PLC0415 - an extra

        return {number: parse_schema(without_logical_types(each)) for number, each in (self.writers or {}).items()}

    @cached_property
    def _types(self) -> dict[int, ConnectType]:
        return {number: connect_type(each, number) for number, each in (self.writers or {}).items()}


def connect_type(schema: Avro, number: int) -> ConnectType:
    """Return the type that an Avro schema of a registry describes. Raises SourceError."""
    what = f"schema {number} of the registry"
    try:
        return of_avro(written_out(schema, what))
    except ValueError as error:
        raise SourceError(f"{what} is none of Debezium's events or keys: {error}") from error
