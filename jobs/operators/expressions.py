"""Expressions over columns. Tasks evaluate them without Spark, with exactly Spark's results, and never fail.

`jobs.pipeline.plain_expressions` translates Spark SQL into them, and knows their types.
"""

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Memo = dict["Expression", Any]
"""The values that calls already have for the rows of one batch."""


class Expression(Protocol):
    """A column, a constant, or a call of a function. It gives a value for each row."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the expression reads."""
        ...

    def over(self, of: Mapping[str, "Expression"]) -> "Expression":
        """Return the same expression over rows that lack the columns `of`.

        Each of these columns is replaced by the expression that makes it.
        """
        ...

    def evaluate(self, rows: pa.RecordBatch, memo: Memo) -> Any:  # noqa: ANN401 - an array, or a scalar for all rows
        """Return the values for these rows: an array, or a scalar that is the value of all rows."""
        ...


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a column."""

    name: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.name,)

    def over(self, of: Mapping[str, Expression]) -> Expression:
        """Return the expression that makes the column, or the column itself if there is none."""
        return of.get(self.name, self)

    def evaluate(self, rows: pa.RecordBatch, memo: Memo) -> pa.Array:
        """Return the column."""
        del memo
        return rows.column(self.name)


@dataclass(frozen=True, slots=True)
class Constant:
    """The same value in all rows, of the type `kind`."""

    value: Any
    kind: pa.DataType

    @property
    def columns(self) -> tuple[str, ...]:
        """None."""
        return ()

    def over(self, of: Mapping[str, Expression]) -> Expression:
        """Return the constant."""
        del of
        return self

    def evaluate(self, rows: pa.RecordBatch, memo: Memo) -> pa.Scalar:
        """Return the value."""
        del rows, memo
        return pa.scalar(self.value, self.kind)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function of `FUNCTIONS` with these values. `options` are arguments that are the same for all rows."""

    function: str
    values: tuple[Expression, ...]
    options: tuple[Any, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the call's values read."""
        return tuple(dict.fromkeys(name for value in self.values for name in value.columns))

    def over(self, of: Mapping[str, Expression]) -> Expression:
        """Return the call over values of other columns."""
        return Call(self.function, tuple(value.over(of) for value in self.values), self.options)

    def evaluate(self, rows: pa.RecordBatch, memo: Memo) -> Any:  # noqa: ANN401 - an array or a scalar
        """Return the function's result. Each call runs once for the rows of a batch."""
        if self not in memo:
            memo[self] = FUNCTIONS[self.function](*(each.evaluate(rows, memo) for each in self.values), *self.options)
        return memo[self]


def evaluated(expression: Expression, rows: pa.RecordBatch, kind: pa.DataType, memo: Memo) -> pa.Array:
    """Return the values for these rows, cast to this type. Every value fits this type."""
    found = expression.evaluate(rows, memo)
    if isinstance(found, pa.Scalar):
        return pa.repeat(found.cast(kind), rows.num_rows)
    return found.cast(kind)


# ------------------------------------------------------------------
# The functions. `jobs.pipeline.plain_expressions` uses them only for values for which Spark has the same result.

_DAY_US: Final = 86_400_000_000


def _remainder(numbers: pa.Array, divisor: int) -> pa.Array:
    """Return remainders that have the sign of the number, as in Spark."""
    wide = numbers.cast(pa.int64())
    return pc.subtract(wide, pc.multiply(pc.divide(wide, divisor), divisor))


def _is_in(values: pa.Array, among: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    found = pc.is_in(values.cast(kind), value_set=pa.array(among, kind))
    return pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))


def _case(*parts: Any) -> Any:  # noqa: ANN401 - arrays or scalars
    """Return the value of the first condition that is true, or else the last value.

    `parts` are the conditions, then a value for each condition, then the value for no condition.
    """
    count = len(parts) // 2
    value = parts[-1]
    for condition, then in zip(reversed(parts[:count]), reversed(parts[count:-1]), strict=True):
        value = pc.if_else(pc.fill_null(condition, fill_value=False), then, value)
    return value


def _length(texts: pa.Array) -> pa.Array:
    """Return how many code points texts have.

    In invalid UTF-8, the first byte decides how long a code point is, as in Spark.
    """
    if _is_utf8(texts):
        return pc.utf8_length(texts)
    counts = [None if text is None else _counted(text) for text in texts.cast(pa.binary()).to_pylist()]
    return pa.array(counts, pa.int32())


def _counted(text: bytes) -> int:
    at = count = 0
    while at < len(text):
        first = text[at]
        at += 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4 if 0xF0 <= first < 0xF5 else 1  # noqa: PLR2004
        count += 1
    return count


def _split_part(texts: pa.Array, delimiter: str, number: int) -> pa.Array:
    """Return the part with this number, counted from 1, or an empty text if there are fewer parts."""
    lists = pc.split_pattern(_as_java_reads(texts), delimiter, max_splits=number)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    places = np.asarray(lists.offsets)[:-1].astype(np.int64) + number - 1
    found = lists.values.take(pa.array(places, mask=lengths < number))
    return pc.if_else(pc.is_valid(texts), pc.fill_null(found, ""), pa.scalar(None, texts.type))


_KELVIN: Final = "\u212a"
"""The Kelvin sign, the only letter outside ASCII whose lower case is in ASCII."""


def _lower(texts: pa.Array) -> pa.Array:
    """Return texts in lower case, as far as a comparison with an ASCII text needs it.

    A returned text equals an ASCII text exactly if Spark's lower case of it does.
    """
    return pc.ascii_lower(pc.replace_substring(texts, _KELVIN, "k"))


def _regexp_extract(texts: pa.Array, pattern: str, group: int) -> pa.Array:
    """Return the text of a group in the first match, or an empty text if there is no match.

    In the pattern, a group is named `g` with its number behind.
    """
    found = pc.struct_field(pc.extract_regex(_as_java_reads(texts), pattern), f"g{group}")
    return pc.if_else(pc.is_valid(texts), pc.fill_null(found, ""), pa.scalar(None, texts.type))


def _as_java_reads(texts: pa.Array) -> pa.Array:
    """Return texts in which replacement characters stand for bytes that are not UTF-8."""
    if _is_utf8(texts):
        return texts
    raw = texts.cast(pa.binary()).to_pylist()
    return pa.array([None if text is None else text.decode("utf-8", _REPLACED) for text in raw], pa.string())


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


_SURROGATE: Final = 0xED
_REPLACED: Final = "tidemark.replaced_as_in_java"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Replace bytes that are not UTF-8 as Python does, but a whole surrogate by one character, as Java does."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    text, end = error.object, error.end
    while text[error.start] == _SURROGATE and end < min(error.start + 3, len(text)) and text[end] & 0xC0 == 0x80:  # noqa: PLR2004
        end += 1
    return "\ufffd", end


codecs.register_error(_REPLACED, _replaced)


def _microseconds(times: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(times.cast(pa.timestamp("us", times.type.tz)).view(pa.int64()), 0))


def _hour(times: pa.Array) -> pa.Array:
    hours = _microseconds(times) % _DAY_US // 3_600_000_000
    return pa.array(hours.astype(np.int32), mask=_nulls(times))


def _day(times: pa.Array) -> pa.Array:
    return pa.array((_microseconds(times) // _DAY_US).astype(np.int32), pa.int32(), mask=_nulls(times)).cast(
        pa.date32()
    )


def _nulls(values: pa.Array) -> np.ndarray:
    return np.asarray(pc.is_null(values))


def _date_format(times: pa.Array, parts: tuple[str, ...]) -> pa.Array:
    """Return times as texts. A part is a letter of `_FINEST`, or stands for itself.

    Each different value is formatted once.
    """
    finest = min(_FINEST[part] for part in parts if part in _FINEST)
    rounded = pa.array(_microseconds(times) // finest, mask=_nulls(times)).dictionary_encode()
    texts = [_formatted(number * finest, parts) for number in rounded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(rounded.indices)


def _formatted(microseconds: int, parts: tuple[str, ...]) -> str:
    days, rest = divmod(microseconds, _DAY_US)
    day = np.datetime64(days, "D")
    month = day.astype("datetime64[M]")
    year, of_year = divmod(int(month.astype(np.int64)), 12)
    year += 1970
    seconds = rest // 1_000_000
    numbers = {
        "M": of_year + 1,
        "d": int((day - month.astype("datetime64[D]")).astype(np.int64)) + 1,
        "H": seconds // 3600,
        "m": seconds // 60 % 60,
        "s": seconds % 60,
    }
    years = f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04}"  # noqa: PLR2004 - four digits
    return "".join(years if part == "y" else f"{numbers[part]:02}" if part in numbers else part for part in parts)


_FINEST: Final = {"y": _DAY_US, "M": _DAY_US, "d": _DAY_US, "H": 3_600_000_000, "m": 60_000_000, "s": 1_000_000}
"""The letters of a format, and how many microseconds the unit of each letter has."""


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: getattr(pc, name)
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "is_null", "is_valid")
    },
    **{name: getattr(pc, name) for name in ("add", "subtract", "multiply", "coalesce")},
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "cast": lambda values, kind: values.cast(kind),
    "remainder": _remainder,
    "is_in": _is_in,
    "case": _case,
    "length": _length,
    "replace": pc.replace_substring,
    "split_part": _split_part,
    "lower": _lower,
    "regexp_extract": _regexp_extract,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "contains": pc.match_substring,
    "concat": lambda *texts: pc.binary_join_element_wise(*texts, ""),
    "hour": _hour,
    "day": _day,
    "date_format": _date_format,
}
"""From a function's name to the function."""
