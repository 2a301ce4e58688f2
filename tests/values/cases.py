"""Draws columns of every type that Tidemark takes, with rows that mix ordinary values with odd ones.

Values are given in the form from which pyarrow makes values of the column's type. Dates and times are whole numbers,
since Python's own types have a smaller range.
"""

import base64
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any, Final, Self

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812 - short, for a list of all
from pyspark.sql.types import BooleanType, DataType, LongType, StructType

from jobs.operators.spec import arrow_schema
from tests.values.operators import OPERATORS
from tests.values.ways import WAYS

_EXACT: Final = Context(prec=60)
NANS: Final = tuple(
    struct.unpack("<d", struct.pack("<Q", bits))[0]
    for bits in (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0xFFFFFFFFFFFFFFFF)
)
"""The NaN of most processors, a negative NaN, and two NaNs with other bits."""
_FLOATS: Final = (math.inf, -math.inf, 0.0, -0.0, 1.5)
_WORDS: Final = "a A a\u0308 \u00e4 \N{GRINNING FACE} \uffff \U00010000 null NaN q\"\\`'"
TEXTS: Final = ("", " ", "\0", "a\0b", "a,b\nc", "a\u2028b\u0085c", "x" * 70_000, "x" * 69_999 + "y", *_WORDS.split())
BYTES: Final = (b"", b"\0", b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"a", b"\x80" * 40, b"\xff" * 40)
DAY_US: Final = 86_400_000_000
MOMENTS: Final = (
    -62_135_596_800_000_000,  # the first microsecond of year 1
    -62_135_596_800_000_000 + DAY_US,
    -55_792_627_200_000_001,  # in the year 202
    -12_219_292_800_000_001,  # around the 15th of October 1582
    -12_219_292_800_000_000,
    -2_208_988_800_000_001,  # a microsecond before 1900
    -1,
    0,
    1,
    1_000_001,
    1_711_846_800_000_000,
    253_402_300_799_999_999,  # the last microsecond of year 9999
    253_402_300_799_999_999 - DAY_US,
)
DAYS: Final = tuple(moment // DAY_US for moment in MOMENTS)
WHOLE: Final[Mapping[T.DataType, int]] = {T.ByteType(): 8, T.ShortType(): 16, T.IntegerType(): 32, T.LongType(): 64}
DECIMALS: Final = tuple(
    T.DecimalType(*form) for form in ((1, 0), (2, 2), (9, 2), (18, 4), (19, 0), (20, 2), (38, 0), (38, 18), (38, 38))
)
SCALARS: Final[tuple[T.DataType, ...]] = (
    T.BooleanType(),
    *WHOLE,
    T.FloatType(),
    T.DoubleType(),
    *DECIMALS,
    T.StringType(),
    T.BinaryType(),
    T.DateType(),
    T.TimestampType(),
    T.TimestampNTZType(),
)
NAN_HAS: Final = (T.FloatType(), T.DoubleType()) * 3
"""Types that are drawn as keys more often than others."""
NUMBERS: Final = (*WHOLE, T.FloatType(), T.DoubleType(), *DECIMALS)
_NAMES: Final = """
v a.b a`b a"b a'b a`.`b \u00e4 select 1 a,b a=b %20 valid_from current key value rows element waiting
_key_group _deleted _kind _tag _subtask _all _left _right _rows _times _waiting _applied_sequence _applied_delete
_failed _hash_of_v _change_type _order _file _nth _path _age_rank _first filename _table _lsn
"""
NAMES: Final = (*_NAMES.split(), "a b")
"""Names of columns: some have characters of SQL and of paths, and some are names that Tidemark uses itself."""


def types() -> st.SearchStrategy[T.DataType]:
    scalar = st.sampled_from(SCALARS)
    inner = st.one_of(scalar, st.builds(_pair, scalar, scalar), st.builds(T.ArrayType, scalar))
    nested = st.one_of(
        st.builds(_pair, inner, inner),
        st.builds(T.ArrayType, inner),
        st.builds(T.MapType, st.sampled_from((T.StringType(), T.LongType(), T.DateType())), inner),
    )
    return st.one_of(scalar, scalar, nested)


def values(kind: T.DataType) -> st.SearchStrategy[object]:
    return st.one_of(st.none(), *([_of(kind)] * 4))


def amounts(kind: T.DataType) -> st.SearchStrategy[object]:
    """Draw null, or a number small enough that sums fit their type and do not depend on the order."""
    whole = st.integers(-100, 100)
    match kind:
        case T.LongType():
            some: st.SearchStrategy[object] = st.one_of(whole, st.sampled_from((2**53 + 1, -(2**53) - 1, 10**17)))
        case T.FloatType() | T.DoubleType():
            some = st.one_of(whole.map(lambda n: n / 8), st.sampled_from((*NANS, math.inf, -math.inf, 0.0, -0.0)))
        case T.DecimalType():
            some = _decimals(kind, 100)
        case _:
            some = _of(kind)
    return st.one_of(st.none(), some, some, some)


def _pair(one: T.DataType, other: T.DataType) -> T.StructType:
    return T.StructType().add("a", one).add("b", other)


def _of(kind: T.DataType) -> st.SearchStrategy[object]:  # noqa: PLR0911, PLR0912 - flat: a case for each type
    match kind:
        case T.BooleanType():
            return st.booleans()
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
            most = 2 ** (WHOLE[kind] - 1)
            return st.sampled_from((0, 1, -1, 2, 7, most - 1, -most, most - 2))
        case T.FloatType():
            least, most = (struct.unpack("<f", struct.pack("<I", bits))[0] for bits in (1, 0x7F7FFFFF))
            return st.sampled_from((*NANS, *_FLOATS, most, -most, least, 0.10000000149011612))
        case T.DoubleType():
            least, most = 5e-324, 1.7976931348623157e308
            return st.sampled_from((*NANS, *_FLOATS, most, -most, least, 0.1, 2.0**53 + 2))
        case T.DecimalType():
            return _decimals(kind)
        case T.StringType():
            return st.one_of(st.sampled_from(TEXTS), st.text(st.characters(codec="utf-8"), max_size=4))
        case T.BinaryType():
            return st.one_of(st.sampled_from(BYTES), st.binary(max_size=4))
        case T.DateType():
            return st.sampled_from(DAYS)
        case T.TimestampType() | T.TimestampNTZType():
            return st.sampled_from(MOMENTS)
        case T.StructType():
            return st.fixed_dictionaries({field.name: values(field.dataType) for field in kind.fields})
        case T.ArrayType():
            return st.lists(values(kind.elementType), max_size=3)
        case T.MapType():
            pairs = st.tuples(_of(kind.keyType), values(kind.valueType))
            return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
        case _:
            raise AssertionError(kind)


def _decimals(kind: T.DecimalType, share: int = 1) -> st.SearchStrategy[object]:
    most = max(9, (10**kind.precision - 1) // share)
    digits = st.one_of(
        st.sampled_from((0, 1, -1, 5, most, -most, most - 1, 12345678901234567890123456789012345678 % (most + 1))),
        st.integers(-most, most),
    )
    return digits.map(lambda n: Decimal(n).scaleb(-kind.scale, _EXACT))


# ------------------------------------------------------------------
# Draws a case: columns, rows, how the rows are divided and read, and which operators process them.


OPERATORS_MAX = 6
ROWS_MAX = 14


@dataclass(frozen=True)
class Case:
    """Rows of five columns, how they are delivered, and on which operators they are tried.

    The columns are the number of the row, a key, a value, an amount, and whether the row deletes its key.
    """

    columns: StructType
    rows: pa.Table
    way: str
    operators: tuple[str, ...]
    files: int
    every_rows: int
    slice_rows_max: int
    parallelism: int

    @property
    def names(self) -> Sequence[str]:
        return self.columns.names

    def with_rows(self, kept: Sequence[int]) -> Self:
        return replace(self, rows=self.rows.take(pa.array(kept, pa.int64())))

    def written(self) -> str:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.rows.schema) as stream:
            stream.write_table(self.rows)
        given = {name: value for name, value in vars(self).items() if name not in ("columns", "rows")}
        written = sink.getvalue()
        size, packed = len(written), base64.b64encode(pa.compress(written, "zstd", asbytes=True)).decode()
        return json.dumps(given | {"columns": self.columns.jsonValue(), "size": size, "rows": packed})

    @classmethod
    def read(cls, text: str) -> Self:
        given: dict[str, Any] = json.loads(text)
        packed, size = base64.b64decode(given.pop("rows")), given.pop("size")
        rows = pa.ipc.open_stream(pa.decompress(packed, size, "zstd")).read_all()
        columns = StructType.fromJson(given.pop("columns"))
        return cls(columns, rows, **given | {"operators": tuple(given["operators"])})

    def shown(self) -> str:
        kinds = ", ".join(f"{field.name!r} {field.dataType.simpleString()}" for field in self.columns.fields[1:4])
        cut = f"files={self.files}, every_rows={self.every_rows}, slice_rows_max={self.slice_rows_max}"
        return f"{self.way}: {kinds}; {cut}, parallelism={self.parallelism}; rows {_rows(self.rows)}"


def _rows(table: pa.Table) -> str:
    columns = [[str(value)[:40] for value in column] for column in table.columns]
    return "; ".join(" | ".join(row) for row in zip(*columns, strict=True))


@st.composite
def cases(
    draw: st.DrawFn,
    ways: Sequence[str] = tuple(WAYS),
    operators: Sequence[str] = tuple(OPERATORS),
    *,
    odd_names: bool = True,
    keys: Sequence[DataType] = (*SCALARS, *NAN_HAS),
) -> Case:
    way = draw(st.sampled_from(ways))
    takes = WAYS[way].takes
    key = draw(st.sampled_from([kind for kind in keys if takes(kind)]))
    value = draw(types().filter(takes))
    amount = draw(st.sampled_from([kind for kind in NUMBERS if takes(kind)]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=3, max_size=3, unique_by=str.lower))
    if not odd_names or draw(st.sampled_from((True, True, False))):
        names = ["k", "v", "n"]
    columns = StructType().add("id", LongType())
    for name, kind in zip(names, (key, value, amount), strict=True):
        columns.add(name, kind)
    columns.add("gone", BooleanType())
    least = min(3, len(operators))
    some = st.lists(st.sampled_from(operators), min_size=least, max_size=OPERATORS_MAX, unique=True)
    return Case(
        columns,
        draw(_tables(columns, key, value, amount)),
        way,
        tuple(draw(some)),
        files=draw(st.integers(1, 3)),
        every_rows=draw(st.integers(2, 8)),
        slice_rows_max=draw(st.integers(1, 8)),
        parallelism=draw(st.integers(1, 4)),
    )


@st.composite
def _tables(draw: st.DrawFn, columns: StructType, key: DataType, value: DataType, amount: DataType) -> pa.Table:
    equal = st.sampled_from((*NANS, 0.0, -0.0)) if key in NAN_HAS else values(key)
    keys = draw(st.lists(values(key), min_size=1, max_size=3)) + draw(st.lists(equal, max_size=3))
    some = draw(st.lists(values(value), min_size=1, max_size=5))
    row = st.tuples(
        st.sampled_from(keys), st.sampled_from(some), amounts(amount), st.sampled_from((False, False, True, None))
    )
    rows = draw(st.integers(1, ROWS_MAX).flatmap(lambda size: st.lists(row, min_size=size, max_size=size)))
    schema = arrow_schema(columns)
    listed = [list(range(len(rows))), *map(list, zip(*rows, strict=True))]
    return pa.table([pa.array(each, field.type) for each, field in zip(listed, schema, strict=True)], schema)
