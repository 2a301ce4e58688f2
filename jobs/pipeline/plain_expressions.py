"""Parses Spark SQL that is so plain that a task can evaluate it without Spark, with the same result.

    amount >= 100 AND state IN ('paid', 'sent') OR ended_at IS NULL
    CASE WHEN hour(at) BETWEEN 8 AND 18 THEN 'day' ELSE 'night' END
    date_format(at, 'yyyy-MM-dd'), 0.908 * price, id % 10000, split_part(url, '/', 4)

An expression is plain if it can't fail and if Arrow surely has the same result as Spark. So sums, differences and
products of whole numbers and decimals are plain if their types hold every result. Times are in UTC, as in all sessions
of Tidemark. Spark evaluates every other expression. It also gets expressions with an error, so that Spark reports what
is wrong.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobs.operators.expressions import Call, Column, Constant, Expression
from jobs.operators.spec import arrow_schema

_COMPARE: Final = {
    "=": "equal",
    "==": "equal",
    "<>": "not_equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*|`[^`]+`)|(?P<number>\d+(?:\.\d+)?(?![\w.]))"
    r"|(?P<text>'[^'\\$]*')|(?P<sign><=>|<=|>=|<>|!=|==|\|\||[-+*%=<>(),]))",
    re.ASCII,
)
"""The tokens. Texts with a backslash or a dollar are none, because Spark gives backslashes and `${` a meaning."""
_WORDS: Final = frozenset(
    {*("and", "or", "not", "in", "is", "null", "between", "like", "case", "when", "then", "else", "end", "cast", "as")}
    | {"true", "false", "exists", "div", "rlike", "ilike", "collate"}
)
_DIGITS: Final[Mapping[DataType, int]] = {ByteType(): 3, ShortType(): 5, IntegerType(): 10, LongType(): 19}
_WHOLE: Final = tuple(_DIGITS)
_BITS: Final[Mapping[DataType, int]] = dict(zip(_WHOLE, (8, 16, 32, 64), strict=True))
_ALIKE: Final = (StringType(), DateType(), TimestampType(), TimestampNTZType())
_DIGITS_MAX: Final = 38
_CHARACTER: Final = r"[A-Za-z0-9 _=&/:#,;@%~<>!\"-]"
_ATOM: Final = rf"(?:{_CHARACTER}|\[\^?(?:[A-Za-z0-9]-[A-Za-z0-9]|[A-Za-z0-9 _=/:#,;@%~<>!\"]|&(?!&))+\])[*+?]?"
_PATTERN: Final = re.compile(rf"(?:{_ATOM}|(?P<opens>\()|\)|\||(?<![^(|])\^)(?![*+?])")
"""A part of a regular expression that has the same meaning in Java and in RE2. Groups are not repeated."""
_PART: Final = re.compile(r"yyyy|MM|dd|HH|mm|ss|[-:/. _]")
_FORMAT: Final = re.compile(rf"({_PART.pattern})+")


class _LoweredText(DataType):
    """Texts in lower case.

    They may be compared only with ASCII texts, because only ASCII letters are in lower case here.
    """


class _NotPlainError(Exception):
    """The expression is not plain. Spark evaluates it."""


@dataclass(frozen=True, slots=True)
class _Typed:
    """An expression, and the type that it has in Spark. A whole number also has bounds.

    The part of a decimal before the point is at most `greatest`. Behind the point it has as many digits as its type.
    """

    expression: Expression
    kind: DataType
    least: int = 0
    greatest: int = 0

    @property
    def constant(self) -> Any:  # noqa: ANN401 - of any type
        """The value that all rows have. None: rows may differ."""
        return self.expression.value if isinstance(self.expression, Constant) else None


def plain_condition(condition: str, rows: StructType) -> Expression | None:
    """Return an expression for a condition over these rows, or None if the condition is not plain."""
    with suppress(_NotPlainError, RecursionError):
        found = _read(condition, rows)
        if found.kind == BooleanType() and found.constant is None:
            return found.expression
    return None


def plain_column(expression: str, kind: DataType, rows: StructType) -> Expression | None:
    """Return an expression over these rows, cast to this type. None: the expression or the cast is not plain."""
    with suppress(_NotPlainError, RecursionError):
        return _cast(_read(expression, rows), kind).expression
    return None


def _read(text: str, rows: StructType) -> _Typed:
    if "--" in text or "/*" in text:  # a comment
        raise _NotPlainError
    tokens, at, text = [], 0, text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _NotPlainError
        tokens.append((str(token.lastgroup), token[str(token.lastgroup)]))
        at = token.end()
    reader = _Reader(tokens, rows)
    found = reader.any_of()
    reader.must_end()
    return found


class _Reader:
    """Parses tokens with the precedence of Spark's grammar.

    The methods go from the lowest precedence to the highest.
    """

    def __init__(self, tokens: Sequence[tuple[str, str]], rows: StructType) -> None:
        self._tokens, self._at, self._rows = [*tokens, ("end", "")], 0, rows

    def must_end(self) -> None:
        if self._tokens[self._at][0] != "end":
            raise _NotPlainError

    def _takes(self, *words: str) -> str | None:
        """Take the next token and return it if it is one of these signs or words. Else return None."""
        kind, token = self._tokens[self._at]
        if kind not in ("name", "sign") or token.lower() not in words:
            return None
        self._at += 1
        return token.lower()

    def _must_take(self, *words: str) -> str:
        taken = self._takes(*words)
        if taken is None:
            raise _NotPlainError
        return taken

    def any_of(self) -> _Typed:
        return self._joined("or", self._all_of)

    def _all_of(self) -> _Typed:
        return self._joined("and", self._no)

    def _joined(self, word: str, part: Callable[[], _Typed]) -> _Typed:
        found = part()
        while self._takes(word):
            found = _logical(word, found, part())
        return found

    def _no(self) -> _Typed:
        return _logical("not", self._no()) if self._takes("not") else self._predicate()

    def _predicate(self) -> _Typed:
        value = self._sum()
        sign = self._takes(*_COMPARE)
        if sign is not None:
            return _compared(_COMPARE[sign], value, self._sum())
        if self._takes("is"):
            has_not = self._takes("not")
            self._must_take("null")
            return _of("is_valid" if has_not else "is_null", BooleanType(), value)
        has_not = self._takes("not")
        word = self._takes("in", "between", "like")
        if word is None:
            if has_not:
                raise _NotPlainError
            return value
        found = {"in": self._in, "between": self._between, "like": self._like}[word](value)
        return _logical("not", found) if has_not else found

    def _in(self, value: _Typed) -> _Typed:
        listed = self._listed()
        for each in listed:
            _compared("equal", value, each)
        among = tuple(each.constant for each in listed)
        if None in among or isinstance(value.kind, DecimalType):
            raise _NotPlainError
        is_text = isinstance(value.kind, _LoweredText)
        kind = pa.int64() if value.kind in _WHOLE else pa.string() if is_text else _arrow(value.kind)
        return _of("is_in", BooleanType(), value, options=(among, kind))

    def _between(self, value: _Typed) -> _Typed:
        least = self._sum()
        self._must_take("and")
        return _logical("and", _compared("greater_equal", value, least), _compared("less_equal", value, self._sum()))

    def _like(self, value: _Typed) -> _Typed:
        pattern = self._sum().constant
        if not isinstance(pattern, str) or value.kind != StringType():
            raise _NotPlainError
        inner = pattern.strip("%")
        if "_" in inner or "%" in inner or not inner:
            raise _NotPlainError
        begins, ends = pattern.startswith("%"), pattern.endswith("%")
        if not begins and not ends:
            return _compared("equal", value, _constant(inner))
        how = "contains" if begins and ends else "ends_with" if begins else "starts_with"
        return _of(how, BooleanType(), value, options=(inner,))

    def _sum(self) -> _Typed:
        found = self._product()
        while sign := self._takes("+", "-", "||"):
            other = self._product()
            found = _concat([found, other]) if sign == "||" else _arithmetic(sign, found, other)
        return found

    def _product(self) -> _Typed:
        found = self._one()
        while sign := self._takes("*", "%"):
            found = _arithmetic(sign, found, self._one())
        return found

    def _one(self) -> _Typed:
        if self._takes("("):
            found = self.any_of()
            self._must_take(")")
            return found
        negative = self._takes("-") is not None
        kind, token = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return _number(("-" if negative else "") + token)
        if negative:
            raise _NotPlainError
        if kind == "text":
            return _constant(token[1:-1])
        if kind != "name":
            raise _NotPlainError
        return self._named(token)

    def _named(self, token: str) -> _Typed:
        word = token.lower()
        if not token.startswith("`"):
            if word == "case":
                return self._case()
            if word == "cast":
                return self._as_type()
            if word in ("true", "false"):
                return _Typed(Constant(word == "true", pa.bool_()), BooleanType())
            if word == "null":
                return _NULL
            if word in _WORDS:
                raise _NotPlainError
            if self._tokens[self._at] == ("sign", "("):
                if word not in _CALLS:
                    raise _NotPlainError
                return _CALLS[word](self._listed())
        return _column(token.strip("`"), self._rows)

    def _listed(self) -> list[_Typed]:
        self._must_take("(")
        found = [self.any_of()]
        while self._takes(","):
            found.append(self.any_of())
        self._must_take(")")
        return found

    def _as_type(self) -> _Typed:
        self._must_take("(")
        value = self.any_of()
        self._must_take("as")
        kind = _TYPES.get(self._tokens[self._at][1].lower())
        self._at += 1
        self._must_take(")")
        if kind is None:
            raise _NotPlainError
        return _cast(value, kind)

    def _case(self) -> _Typed:
        compared = None if self._tokens[self._at][1].lower() == "when" else self.any_of()
        conditions, values = [], []
        while self._takes("when"):
            condition = self.any_of()
            conditions.append(condition if compared is None else _compared("equal", compared, condition))
            self._must_take("then")
            values.append(self.any_of())
        values.append(self.any_of() if self._takes("else") else _NULL)
        self._must_take("end")
        return _chosen(conditions, values)


# ------------------------------------------------------------------
# The types of Spark's values.


def _arrow(kind: DataType) -> pa.DataType:
    return arrow_schema(StructType([StructField("value", kind)])).field(0).type


def _bounds(kind: DataType) -> tuple[int, int]:
    """Return the bounds of a numeric type. For a decimal, they bound the part before the point."""
    if kind in _WHOLE:
        return -(2 ** (_BITS[kind] - 1)), 2 ** (_BITS[kind] - 1) - 1
    if isinstance(kind, DecimalType):
        most = 10 ** (kind.precision - kind.scale) - 1
        return -most, most
    return 0, 0


def _column(name: str, rows: StructType) -> _Typed:
    if name not in rows.names:
        raise _NotPlainError
    kind = rows[name].dataType
    return _Typed(Column(name), kind, *_bounds(kind))


def _constant(text: str) -> _Typed:
    return _Typed(Constant(text, pa.string()), StringType())


def _number(text: str) -> _Typed:
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    if len(digits) > _DIGITS[LongType()] - 1:
        raise _NotPlainError
    if "." not in text:
        whole = IntegerType() if abs(value) < 2**31 else LongType()
        return _Typed(Constant(int(value), pa.int64()), whole, int(value), int(value))
    scale, most = -int(exponent), int(abs(value))
    kind = DecimalType(max(len(digits), scale), scale)
    if kind.precision > _DIGITS_MAX:
        raise _NotPlainError
    return _Typed(Constant(value, _arrow(kind)), kind, -most, most)


def _of(
    function: str, kind: DataType, *values: _Typed, options: tuple[Any, ...] = (), least: int = 0, greatest: int = 0
) -> _Typed:
    """Return a call of a function. Its first value must depend on a column, because the functions take arrays."""
    if not values[0].expression.columns:
        raise _NotPlainError
    return _Typed(Call(function, tuple(each.expression for each in values), options), kind, least, greatest)


def _logical(word: str, *parts: _Typed) -> _Typed:
    if any(each.kind != BooleanType() or each.constant is not None for each in parts):
        raise _NotPlainError
    return _of(word, BooleanType(), *parts)


_NULL: Final = _Typed(Constant(None, pa.null()), NullType())


def _chosen(conditions: Sequence[_Typed], values: Sequence[_Typed]) -> _Typed:
    """Return the value of the first condition that is true, else the last value. Some of the values may be null."""
    if not conditions or any(each.kind != BooleanType() or each.constant is not None for each in conditions):
        raise _NotPlainError
    known = [each for each in values if each.kind != NullType()]
    if not known or any(isinstance(each.kind, _LoweredText) for each in known):
        raise _NotPlainError
    kind = known[0].kind if len(known) == 1 else _same_kind(known)
    nothing = replace(known[0], expression=Constant(None, _arrow(kind)))
    values = [nothing if each.kind == NullType() else each for each in values]
    least, greatest = min(each.least for each in values), max(each.greatest for each in values)
    return _of("case", kind, *conditions, *values, least=least, greatest=greatest)


def _same_kind(values: Sequence[_Typed]) -> DataType:
    """Return the type of these values. They may be whole numbers of several types."""
    kinds = [each.kind for each in values]
    if all(kind in _WHOLE for kind in kinds):
        return max(kinds, key=lambda kind: _BITS[kind])
    if len(set(map(repr, kinds))) > 1 or kinds[0] not in (*_ALIKE, BooleanType()):
        raise _NotPlainError
    return kinds[0]


def _compared(how: str, left: _Typed, right: _Typed) -> _Typed:
    """Return a comparison. A constant must stand on the right, and a decimal is compared only with whole constants."""
    if left.constant is not None:
        raise _NotPlainError
    if isinstance(left.kind, _LoweredText):
        if how not in ("equal", "not_equal") or not isinstance(right.constant, str) or not right.constant.isascii():
            raise _NotPlainError
        return _of(how, BooleanType(), left, right)
    if isinstance(left.kind, DecimalType) and right.constant is not None and right.kind in _WHOLE:
        return _of(how, BooleanType(), left, _cast(right, left.kind))
    _same_kind([left, right])
    return _of(how, BooleanType(), left, right)


def _arithmetic(sign: str, left: _Typed, right: _Typed) -> _Typed:
    if sign == "%":
        if left.kind not in _WHOLE or right.kind not in _WHOLE or not isinstance(right.constant, int):
            raise _NotPlainError
        divisor = right.constant
        if divisor <= 0:
            raise _NotPlainError
        kind = _same_kind([left, right])
        return _of("remainder", kind, left, options=(divisor,), least=1 - divisor, greatest=divisor - 1)
    name = {"+": "add", "-": "subtract", "*": "multiply"}[sign]
    if DoubleType() in (left.kind, right.kind):
        return _of_doubles(name, left, right)
    if left.kind in _WHOLE and right.kind in _WHOLE:
        return _of_whole(name, left, right)
    if sign == "*":
        return _product_of_decimals(left, right)
    raise _NotPlainError


def _of_whole(name: str, left: _Typed, right: _Typed) -> _Typed:
    """Return a sum, a difference or a product, if the type of Spark's result holds every possible result."""
    ends = [(a, b) for a in (left.least, left.greatest) for b in (right.least, right.greatest)]
    found = [a + b if name == "add" else a - b if name == "subtract" else a * b for a, b in ends]
    kind = _same_kind([left, right])
    if not (left.expression.columns or right.expression.columns):
        raise _NotPlainError
    if min(found) < _bounds(kind)[0] or max(found) > _bounds(kind)[1]:
        raise _NotPlainError
    arrow = pa.int64()
    wide = [
        _Typed(Call("cast", (each.expression,), (arrow,)), each.kind) if each.constant is None else each
        for each in (left, right)
    ]
    return _Typed(Call(name, tuple(each.expression for each in wide)), kind, min(found), max(found))


def _of_doubles(name: str, *sides: _Typed) -> _Typed:
    """Return a calculation by IEEE 754. One side may be a constant number."""
    numbers = (*_WHOLE, DoubleType())
    if any(each.kind != DoubleType() and each.constant is None for each in sides):
        raise _NotPlainError
    if any(each.kind not in numbers and not isinstance(each.kind, DecimalType) for each in sides):
        raise _NotPlainError
    found = [
        each.expression if each.constant is None else Constant(float(each.constant), pa.float64()) for each in sides
    ]
    return _Typed(Call(name, tuple(found)), DoubleType())


def _product_of_decimals(left: _Typed, right: _Typed) -> _Typed:
    (one, of_one), (two, of_two) = _as_decimal(left), _as_decimal(right)
    sides, scale, precision = (one, two), of_one.scale + of_two.scale, of_one.precision + of_two.precision + 1
    if precision > _DIGITS_MAX or (one.constant is not None and two.constant is not None):
        raise _NotPlainError
    most = (one.greatest + 1) * (two.greatest + 1) - 1
    found = Call("multiply", tuple(each.expression for each in sides))
    return _Typed(found, DecimalType(precision, scale), -most, most)


def _as_decimal(value: _Typed) -> tuple[_Typed, DecimalType]:
    """Return a number as a decimal, and its type."""
    if isinstance(value.kind, DecimalType):
        return value, value.kind
    if value.kind not in _WHOLE:
        raise _NotPlainError
    kind = DecimalType(_DIGITS[value.kind], 0)
    most = max(abs(value.least), abs(value.greatest))
    if isinstance(value.expression, Constant):
        return _Typed(Constant(Decimal(value.constant), _arrow(kind)), kind, -most, most), kind
    return _Typed(Call("cast", (value.expression,), (_arrow(kind),)), kind, -most, most), kind


def _cast(value: _Typed, kind: DataType) -> _Typed:
    """Return the value cast to a type that holds each of its values unchanged. A timestamp may be cast to its date."""
    if value.kind == kind:
        return value
    if value.kind in _WHOLE and kind in _WHOLE:
        least, greatest = _bounds(kind)
        if least <= value.least and value.greatest <= greatest:
            return _retyped(value, kind)
    elif isinstance(kind, DecimalType) and (value.kind in _WHOLE or isinstance(value.kind, DecimalType)):
        exact, of_exact = _as_decimal(value)
        if of_exact.scale <= kind.scale and exact.greatest < 10 ** (kind.precision - kind.scale):
            return _retyped(exact, kind)
    elif value.kind in _WHOLE and kind == StringType():
        return _of("cast", kind, value, options=(pa.string(),))
    elif value.kind == TimestampType() and kind == DateType():
        return _of("day", kind, value)
    raise _NotPlainError


def _retyped(value: _Typed, kind: DataType) -> _Typed:
    arrow = _arrow(kind)
    if isinstance(value.expression, Constant):
        return _Typed(Constant(value.expression.value, arrow), kind, value.least, value.greatest)
    return _Typed(Call("cast", (value.expression,), (arrow,)), kind, value.least, value.greatest)


# ------------------------------------------------------------------
# Spark's functions


def _must_be(kind: DataType, values: Sequence[_Typed], count: int) -> None:
    if len(values) != count or values[0].kind != kind:
        raise _NotPlainError


def _if(values: Sequence[_Typed]) -> _Typed:
    if len(values) != 3:  # noqa: PLR2004 - a condition and two values
        raise _NotPlainError
    return _chosen(values[:1], values[1:])


def _length(values: Sequence[_Typed]) -> _Typed:
    _must_be(StringType(), values, 1)
    return _of("length", IntegerType(), values[0], greatest=2**31 - 1)


def _replace(values: Sequence[_Typed]) -> _Typed:
    _must_be(StringType(), values, 3)
    what, instead = (each.constant for each in values[1:])
    if not isinstance(what, str) or not isinstance(instead, str) or not what:
        raise _NotPlainError
    return _of("replace", StringType(), values[0], options=(what, instead))


def _split_part(values: Sequence[_Typed]) -> _Typed:
    _must_be(StringType(), values, 3)
    delimiter, number = (each.constant for each in values[1:])
    if not isinstance(delimiter, str) or not delimiter or values[2].kind != IntegerType() or number <= 0:
        raise _NotPlainError
    return _of("split_part", StringType(), values[0], options=(delimiter, number))


def _lower(values: Sequence[_Typed]) -> _Typed:
    _must_be(StringType(), values, 1)
    return _of("lower", _LoweredText(), values[0])


def _regexp_extract(values: Sequence[_Typed]) -> _Typed:
    """Return the text of a group.

    As in Spark, it is empty without a match, or if the group takes no part in the match.
    """
    values = [*values, _number("1")] if len(values) == 2 else values  # noqa: PLR2004 - Spark's default is the first
    _must_be(StringType(), values, 3)
    pattern, number = (each.constant for each in values[1:])
    if not isinstance(pattern, str) or not pattern or values[2].kind != IntegerType():
        raise _NotPlainError
    named, at, groups = "", 0, 0
    while at < len(pattern):
        part = _PATTERN.match(pattern, at)
        if part is None:
            raise _NotPlainError
        groups += part["opens"] is not None
        named += f"(?P<g{groups}>" if part["opens"] else part[0]
        at = part.end()
    with suppress(re.error):
        re.compile(named)  # its groups end
        if 0 <= number <= groups:
            return _of("regexp_extract", StringType(), values[0], options=(f"(?P<g0>{named})", number))
    raise _NotPlainError


def _hour(values: Sequence[_Typed]) -> _Typed:
    _must_be(TimestampType(), values, 1)
    return _of("hour", IntegerType(), values[0], greatest=23)


def _day(values: Sequence[_Typed]) -> _Typed:
    if len(values) != 1:
        raise _NotPlainError
    return _cast(values[0], DateType())


def _date_format(values: Sequence[_Typed]) -> _Typed:
    _must_be(TimestampType(), values, 2)
    text = values[1].constant
    if not isinstance(text, str) or not _FORMAT.fullmatch(text):
        raise _NotPlainError
    parts = tuple(part[0] for part in _PART.findall(text))
    if not {*"yMdHms"} & {*parts}:
        raise _NotPlainError
    return _of("date_format", StringType(), values[0], options=(parts,))


def _concat(values: Sequence[_Typed]) -> _Typed:
    if any(each.kind != StringType() for each in values) or all(each.constant is not None for each in values):
        raise _NotPlainError
    return _Typed(Call("concat", tuple(each.expression for each in values)), StringType())


def _coalesce(values: Sequence[_Typed]) -> _Typed:
    kind = _same_kind(values)
    least, greatest = min(each.least for each in values), max(each.greatest for each in values)
    return _of("coalesce", kind, *values, least=least, greatest=greatest)


_CALLS: Final[Mapping[str, Callable[[Sequence[_Typed]], _Typed]]] = {
    "if": _if,
    "length": _length,
    "char_length": _length,
    "replace": _replace,
    "split_part": _split_part,
    "lower": _lower,
    "lcase": _lower,
    "regexp_extract": _regexp_extract,
    "hour": _hour,
    "date": _day,
    "to_date": _day,
    "date_format": _date_format,
    "concat": _concat,
    "coalesce": _coalesce,
}
_TYPES: Final[Mapping[str, DataType]] = {
    "smallint": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "string": StringType(),
    "date": DateType(),
}
