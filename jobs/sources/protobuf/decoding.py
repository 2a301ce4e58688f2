"""Decodes Protobuf records of Confluent's wire format in Spark's tasks.

The number of the schema is followed by the place of the message in the schema: how many indexes follow, and the
indexes, each as a zigzag varint. A single 0 stands for the first message.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from jobs.sources.protobuf.schemas import DATE, TIMESTAMP, WRAPPERS, Descriptor, compiled, file_of, is_repeated
from jobs.sources.registry.known_schema import HEAD_BYTES, KnownSchema, number_of

_UNSIGNED_64: Final = (4, 6)
_ENUM: Final = 14
_NOT_EXACT: Final = (ValueError, TypeError, LookupError, ArithmeticError, pa.ArrowException)
_EPOCH: Final = date(1970, 1, 1).toordinal()
_Read = Callable[[Any], Any]


@dataclass(frozen=True)
class ProtobufDecoding:
    """How the bytes of the column `value` become columns. `record` is the full name of the message that is read.

    If `record` is None, the first message of each schema is read. Records of other messages do not decode.
    `descriptors` maps each schema's number to its descriptors.
    """

    value: str
    undecoded: str
    columns: pa.Schema
    record: str | None
    descriptors: Mapping[int, bytes]

    def with_schemas(self, known: Mapping[int, KnownSchema]) -> "ProtobufDecoding":
        """Return the decoding of records that were written with these schemas of a registry."""
        return replace(self, descriptors={number: compiled(each) for number, each in known.items()})

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with the records' columns and the undecoded bytes in front of the batch's other columns."""
        for batch in batches:
            values = batch.column(self.value).to_pylist()
            rows = [self._row(value) for value in values]
            try:
                columns = self._arrays(rows)
            except _NOT_EXACT:
                rows = [row if self._fits(row) else None for row in rows]
                columns = self._arrays(rows)
            bad = [value if row is None else None for value, row in zip(values, rows, strict=True)]
            others = [name for name in batch.schema.names if name != self.value]
            yield pa.RecordBatch.from_arrays(
                [*columns, pa.array(bad, pa.binary()), *(batch.column(name) for name in others)],
                names=[*self.columns.names, self.undecoded, *others],
            )

    def _row(self, value: bytes | None) -> dict[str, Any] | None:
        """Return the fields of a record: an empty dict without a value, or None if the value does not decode."""
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - an extra

        if value is None:
            return {}
        number = number_of(value)
        if number is None or number not in self.descriptors:
            return None
        try:
            indexes, start = _indexes(value)
            kind, read = self._message(number, indexes)
            if kind.DESCRIPTOR.full_name != self.record if self.record else indexes != [0]:
                return None
            return read(kind.FromString(value[start:]))  # type: ignore[no-any-return]  # a dict
        except (DecodeError, *_NOT_EXACT):
            return None

    def _arrays(self, rows: Sequence[dict[str, Any] | None]) -> list[pa.Array]:
        return [pa.array([row and row.get(each.name) for row in rows], each.type) for each in self.columns]

    def _fits(self, row: dict[str, Any] | None) -> bool:
        try:
            self._arrays([row])
        except _NOT_EXACT:
            return False
        return True

    def _message(self, number: int, indexes: Sequence[int]) -> tuple[Any, _Read]:
        key = (number, tuple(indexes))
        if key not in self._messages:
            from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - an extra

            file = file_of(self.descriptors[number], f"schema {number} of the registry")
            found = list(file.message_types_by_name.values())[indexes[0]]
            for index in indexes[1:]:
                found = found.nested_types[index]
            self._messages[key] = GetMessageClass(found), _struct_reader(found)
        return self._messages[key]

    @cached_property
    def _messages(self) -> dict[tuple[int, tuple[int, ...]], tuple[Any, _Read]]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without `_messages`, since a task makes its own classes of messages."""
        return {name: value for name, value in vars(self).items() if name != "_messages"}


def _indexes(value: bytes) -> tuple[list[int], int]:
    """Return the place of the message in its schema, and where the message begins."""
    count, at = _varint(value, HEAD_BYTES)
    if count == 0:
        return [0], at
    found = []
    for _ in range(count):
        index, at = _varint(value, at)
        found.append(index)
    return found, at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    found, shift = 0, 0
    while True:
        byte = value[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return (found >> 1) ^ -(found & 1), at


def _struct_reader(message: Descriptor) -> _Read:
    """Return the function that makes a dict of a message."""
    fields = [(each.name, each.has_presence, _reader(each)) for each in message.fields]

    def read(found: Any) -> dict[str, Any]:  # noqa: ANN401
        return {
            name: get(getattr(found, name)) if not presence or found.HasField(name) else None
            for name, presence, get in fields
        }

    return read


def _reader(field: Descriptor) -> _Read:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        value = _single_reader(message.fields_by_name["value"])
        return lambda found: [(_text(key), value(found[key])) for key in found]
    single = _single_reader(field)
    return (lambda found: [single(each) for each in found]) if is_repeated(field) else single


def _text(key: Any) -> str:  # noqa: ANN401
    return str(key).lower() if isinstance(key, bool) else str(key)


def _single_reader(field: Descriptor) -> _Read:
    message = field.message_type
    if message is None:
        if field.type == _ENUM:
            names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
            return lambda number: names.get(number, str(number))
        return Decimal if field.type in _UNSIGNED_64 else lambda value: value
    if message.full_name == TIMESTAMP:
        return lambda value: value.seconds * 1_000_000 + value.nanos // 1_000
    if message.full_name == DATE:
        return lambda value: date(value.year, value.month, value.day).toordinal() - _EPOCH
    if message.full_name in WRAPPERS:
        inner = _single_reader(message.fields_by_name["value"])
        return lambda value: inner(value.value)
    return _struct_reader(message)
