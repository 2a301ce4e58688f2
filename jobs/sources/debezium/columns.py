"""Converts the values that Debezium writes into values of a table's columns.

If an event contains its types, each value is read by its type. Otherwise the column's type decides, and `Encodings`
resolves numbers and texts with several possible meanings.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Any, Final, Literal

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobs.sources.debezium.connect_types import (
    DECIMAL,
    TIMES,
    UNITS,
    VARIABLE_DECIMAL,
    ConnectType,
    NoEventError,
    Values,
)

Decimals = Literal["precise", "string"]
Times = Literal["millis", "micros", "nanos"]
_Read = Callable[[Any], Any]

_UNIT: Final[Mapping[str, int]] = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the clock of a moment without a zone
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAYS: Final = range(1 - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY + 1)
_MICROS: Final = range(_DAYS.start * 86_400_000_000, _DAYS.stop * 86_400_000_000)
_BITS: Final = {"smallint": 16, "int": 32, "bigint": 64, "tinyint": 8}
_FAILURES: Final = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError)


@dataclass(frozen=True, slots=True)
class Encodings:
    """How values are encoded in events that do not contain their types, by the connector's settings.

    `decimals` is `decimal.handling.mode`. `times` is the unit of columns of moments under the connector's
    `time.precision.mode`. If `decimals` or `times` is None, a value that needs it is an error, whose message says what
    to set. `unavailable` is the text that stands for a large value that the database did not send
    (`unavailable.value.placeholder`).
    """

    decimals: Decimals | None = None
    times: Times | None = None
    unavailable: str = "__debezium_unavailable_value"


class RowColumns:
    """Converts the values of rows into values of these columns, for `pa.array` with the columns' Arrow types.

    A date becomes its number of days since 1970, and a moment its number of microseconds since 1970.
    """

    def __init__(self, columns: StructType, encodings: Encodings = Encodings()) -> None:
        self.columns = columns
        self._encodings = encodings
        self._unavailable = _stand_ins(encodings.unavailable)
        self._readers = lru_cache(maxsize=64)(self._readers_of)

    def unknown(self, types: ConnectType | None, values: Values | None) -> tuple[str, ...]:
        """Return the names of a row's columns that are not among these columns."""
        names = values if types is None else types.fields
        return tuple(name for name in names or () if name not in self.columns.names)

    def values(self, row: Values | None, types: ConnectType | None = None) -> tuple[list[Any], list[str]]:
        """Return the values of the columns, and the names of the columns that the database did not send.

        A column that the row lacks is null. For a value that does not fit, raises NoEventError, which names the column.
        """
        if row is None:
            return [None] * len(self.columns), []
        found: list[Any] = []
        unsent: list[str] = []
        for name, read in self._readers(_Known(types)):
            value = row.get(name)
            if value is None:
                found.append(None)
            elif self._is_unavailable(value):
                found.append(None)
                unsent.append(name)
            else:
                try:
                    found.append(read(value))
                except NoEventError:
                    raise
                except _FAILURES as error:
                    wanted = self.columns[name].dataType.simpleString()
                    raise NoEventError(f"column {name}: {value!r:.100} is no {wanted} ({error})") from error
        return found, unsent

    def _is_unavailable(self, value: Any) -> bool:  # noqa: ANN401
        if isinstance(value, str | bytes):
            return value in self._unavailable
        return isinstance(value, list | dict) and any(value == each for each in self._unavailable)

    def _readers_of(self, types: "_Known") -> list[tuple[str, _Read]]:
        known = None if types.types is None else types.types.fields
        return [
            (each.name, _reader(each.dataType, None if known is None else known.get(each.name), self._encodings))
            for each in self.columns
        ]


class _Known:
    """A cache key that compares a type by identity, since comparing equal types of a wide table takes long."""

    __slots__ = ("types",)

    def __init__(self, types: ConnectType | None) -> None:
        self.types = types

    def __hash__(self) -> int:
        return id(self.types)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.types is other.types


def _stand_ins(text: str) -> list[Any]:
    """Return all placeholders for a value that was not sent. Each type of value has its own."""
    raw = text.encode()
    encoded = base64.b64encode(raw).decode()
    as_map = {text: text}
    return [text, raw, encoded, json.dumps(as_map, separators=(",", ":")), [text], list(raw), as_map]


def _reader(target: DataType, known: ConnectType | None, encodings: Encodings) -> _Read:  # noqa: PLR0911 - one for each type
    """Return the function that reads a value into a column of this type."""
    match target:
        case StringType():
            return _text_reader(known)
        case BooleanType():
            return _boolean
        case IntegralType():
            return lambda value: _integer(value, _BITS[target.simpleString()])
        case FloatType() | DoubleType():
            return _float
        case DecimalType():
            return _decimal_reader(target, known, encodings)
        case DateType():
            return _date
        case TimestampType() | TimestampNTZType():
            return _moment_reader(known, encodings, zoned=isinstance(target, TimestampType))
        case BinaryType():
            return _binary
        case ArrayType():
            item = _optional(_reader(target.elementType, known and known.element, encodings))
            return lambda value: [item(each) for each in _a(value, list)]
        case MapType():
            inner = _optional(_reader(target.valueType, known and known.element, encodings))
            return lambda value: [(str(key), inner(each)) for key, each in _a(value, dict).items()]
        case StructType():
            inside = [
                (each.name, _optional(_reader(each.dataType, known and known.field(each.name), encodings)))
                for each in target
            ]
            return lambda value: {name: read(_a(value, dict).get(name)) for name, read in inside}
        case _:
            raise NoEventError(f"no value of Debezium becomes a {target.simpleString()}: declare another type")


def _optional(read: _Read) -> _Read:
    return lambda value: None if value is None else read(value)


def _a(value: Any, kind: type) -> Any:  # noqa: ANN401
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"it is a {type(value).__name__}")
    return value


def _boolean(value: Any) -> bool:  # noqa: ANN401
    return bool(_a(value, bool))


def _integer(value: Any, bits: int) -> int:  # noqa: ANN401
    whole = int(_a(value, int))
    if not -(1 << bits - 1) <= whole < 1 << bits - 1:
        raise ValueError(f"it has more than {bits} bits")
    return whole


def _float(value: Any) -> float:  # noqa: ANN401
    """Return a number. JSON writes numbers that it does not have, such as NaN, as text."""
    if isinstance(value, bool):
        raise TypeError("it is a bool")
    return float(value)


def _binary(value: Any) -> bytes:  # noqa: ANN401
    return value if isinstance(value, bytes) else _decoded(value)


def _decoded(value: Any) -> bytes:  # noqa: ANN401
    try:
        return base64.b64decode(_a(value, str), validate=True)
    except binascii.Error as error:
        raise ValueError(f"it is no base64: {error}") from error


def _date(value: Any) -> int:  # noqa: ANN401
    """Return a date as the number of days since 1970-01-01."""
    days = date.fromisoformat(value.removesuffix("Z")).toordinal() - _EPOCH_DAY if isinstance(value, str) else value
    if _integer(days, 64) not in _DAYS:
        raise ValueError("its year is not one from 1 to 9999")
    return int(days)


def _moment_reader(known: ConnectType | None, encodings: Encodings, *, zoned: bool) -> _Read:
    unit = UNITS.get(known.name or "") if known is not None else _UNIT.get(encodings.times or "")
    is_told = known is not None

    def read(value: Any) -> int:  # noqa: ANN401
        if isinstance(value, str):
            micros = _micros_of(value, zoned=zoned)
        elif unit is None:
            raise ValueError(
                "its type tells no moment"
                if is_told
                else "the event does not tell its unit. Set value.converter.schemas.enable=true in the connector, or "
                "say times='millis', 'micros' or 'nanos'"
            )
        else:
            micros = _integer(value, 64) * 1_000_000 // unit
        if micros not in _MICROS:
            raise ValueError("its year is not one from 1 to 9999")
        return micros

    return read


def _micros_of(text: str, *, zoned: bool) -> int:
    """Return a moment's microseconds since 1970. If not `zoned`, the text's local time is used, without its zone."""
    found = datetime.fromisoformat(text)
    if zoned and found.tzinfo is None:
        raise ValueError("it has no zone")
    clock = found if found.tzinfo is None else (found.astimezone(UTC) if zoned else found).replace(tzinfo=None)
    return (clock - _EPOCH) // timedelta(microseconds=1)


def _decimal_reader(target: DecimalType, known: ConnectType | None, encodings: Encodings) -> _Read:
    step = Decimal(1).scaleb(-target.scale)
    limit = Context(prec=target.precision, traps=[Inexact, InvalidOperation])
    read = _number_reader(known, encodings, target.scale)

    def fitting(value: Any) -> Decimal:  # noqa: ANN401
        found = read(value)
        try:
            return found.quantize(step, context=limit)
        except (Inexact, InvalidOperation) as error:
            raise ValueError("it has more digits") from error

    return fitting


def _number_reader(known: ConnectType | None, encodings: Encodings, scale: int) -> Callable[[Any], Decimal]:
    """Return the function that reads a decimal in the form of the connector's `decimal.handling.mode`."""
    if known is not None:
        is_precise, at = known.name == DECIMAL, known.scale
    else:
        is_precise, at = encodings.decimals == "precise", scale

    def read(value: Any) -> Decimal:  # noqa: ANN401
        match value:
            case Decimal():
                return value
            case int() | float() if not isinstance(value, bool):
                return Decimal(repr(value))
            case {"scale": int(own), "value": raw}:
                return _unscaled(_binary(raw), own)
            case str() | bytes() if is_precise:
                return _unscaled(_binary(value), at)
            case str() if known is None and encodings.decimals is None:
                raise ValueError(
                    "the event does not tell whether it is text or bytes. Set value.converter.schemas.enable=true in "
                    "the connector, or say decimals='precise' or 'string', as its decimal.handling.mode"
                )
            case str():
                return Decimal(value)
            case _:
                raise TypeError(f"it is a {type(value).__name__}")

    return read


def _unscaled(raw: bytes, scale: int) -> Decimal:
    return Decimal(f"{int.from_bytes(raw, signed=True)}E{-scale}")


def _text_reader(known: ConnectType | None) -> _Read:
    name = None if known is None else known.name
    if known is not None and name == DECIMAL:
        return lambda value: _plain(value if isinstance(value, Decimal) else _unscaled(_binary(value), known.scale))
    if name == VARIABLE_DECIMAL:
        return lambda value: _plain(_unscaled(_binary(value["value"]), value["scale"]))
    if name is not None and name in TIMES:
        return lambda value: _time(value, TIMES[name])
    return _text


def _text(value: Any) -> str:  # noqa: ANN401
    match value:
        case str():
            return value
        case bytes():
            return value.decode()
        case Decimal():
            return _plain(value)
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _plain(value: Decimal) -> str:
    return format(value, "f")


def _time(value: Any, unit: int) -> str:  # noqa: ANN401
    """Return a time of day as the database writes it. A MySQL time may have more than 24 hours, or be negative."""
    count = _integer(value, 64)
    seconds, rest = divmod(abs(count), unit)
    hours, minutes = divmod(seconds // 60, 60)
    fraction = f".{rest:0{len(str(unit)) - 1}d}".rstrip("0").rstrip(".")
    return f"{'-' if count < 0 else ''}{hours:02d}:{minutes:02d}:{seconds % 60:02d}{fraction}"
