"""Compares rows as Arrow has them, with the equality of Spark SQL: NaN equals NaN, and no bit of a value is lost."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

NEARLY: Final = 1e-9
SHOWN: Final = 3


def differences(
    due: pa.Table,
    shown: pa.Table,
    *,
    exact_zeros: bool = False,
    unordered: Sequence[str] = (),
    about: Sequence[str] = (),
    nearly: float = NEARLY,
) -> Iterator[str]:
    """Yield the differences: columns, types or rows. `about` has columns whose last digits do not matter."""
    lacking = [name for name in due.column_names if name not in shown.column_names]
    if lacking:
        yield f"there is no column {lacking}, only {shown.column_names}"
        return
    if len(set(due.column_names)) == len(due.column_names) == shown.num_columns:
        yield from _types(due, shown)
    exact = [name for name in due.column_names if name not in about]
    ours, theirs = (_rows(table, exact, exact_zeros, unordered) for table in (shown, due))
    if ours != theirs:
        lost, more = list((theirs - ours).elements()), list((ours - theirs).elements())
        yield f"{len(lost)} rows are lost: {_some(lost)}; {len(more)} are too many: {_some(more)}"
        return
    if about:
        yield from _far_off(due, shown, exact, about, nearly)


def _types(due: pa.Table, shown: pa.Table) -> Iterator[str]:
    for name in due.column_names:
        one, other = (_loose(table.schema.field(name).type) for table in (due, shown))
        if one != other:
            yield f"column {name!r} is {other}, not {one}"


def _loose(kind: pa.DataType) -> str:
    """Return a type without differences that do not matter: large or not, names of items, nullability."""
    if pa.types.is_struct(kind):
        return "struct<" + ", ".join(f"{field.name}: {_loose(field.type)}" for field in kind) + ">"
    if pa.types.is_map(kind):
        return f"map<{_loose(kind.key_type)}, {_loose(kind.item_type)}>"
    if _is_list(kind):
        return f"list<{_loose(kind.value_type)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return str(kind).removeprefix("large_").removesuffix("_view")


def _rows(table: pa.Table, names: Sequence[str], exact_zeros: bool, unordered: Sequence[str]) -> Counter[tuple]:
    columns = []
    for name in names:
        plain = plain_of(table.schema.field(name).type, exact_zeros=exact_zeros)
        values = [plain(value) for value in table.column(name)]
        columns.append([_sorted(value) for value in values] if name in unordered else values)
    return Counter(zip(*columns, strict=True))


def _sorted(value: Any) -> Any:
    return tuple(sorted(value, key=repr)) if isinstance(value, tuple) else value


def _far_off(
    due: pa.Table, shown: pa.Table, exact: Sequence[str], about: Sequence[str], nearly: float
) -> Iterator[str]:
    ours, theirs = (_about(table, exact, about) for table in (shown, due))
    for one, other in zip(ours, theirs, strict=True):
        if not all(_near(*pair, nearly) for pair in zip(one[1], other[1], strict=True)):
            yield f"the row of {one[0]} has {one[1]}, not {other[1]}"


def _about(table: pa.Table, exact: Sequence[str], about: Sequence[str]) -> list[tuple]:
    keys = list(
        zip(*(list(map(plain_of(table.schema.field(name).type), table.column(name))) for name in exact), strict=True)
    )
    values = list(zip(*(table.column(name).to_pylist() for name in about), strict=True))
    return sorted(zip(keys or [()] * len(values), values, strict=True), key=repr)


def _near(one: Any, other: Any, nearly: float) -> bool:
    if one is None or other is None or not isinstance(one, float):
        return one == other
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= max(nearly * max(abs(one), abs(other)), 1e-7)


def plain_of(kind: pa.DataType, *, exact_zeros: bool = False) -> Callable[[pa.Scalar], Any]:
    """Return a function that turns a scalar of this type into a value that Python compares as Spark SQL does."""
    of = _plain(kind, exact_zeros)
    return lambda value: of(value) if value.is_valid else None


def _plain(kind: pa.DataType, exact_zeros: bool) -> Callable[[pa.Scalar], Any]:
    if pa.types.is_floating(kind):
        return lambda value: _number(value.as_py(), exact_zeros)
    if pa.types.is_struct(kind):
        fields = [plain_of(field.type, exact_zeros=exact_zeros) for field in kind]
        return lambda value: ("struct", *(of(value[place]) for place, of in enumerate(fields)))
    if pa.types.is_map(kind):
        key, item = (plain_of(each, exact_zeros=exact_zeros) for each in (kind.key_type, kind.item_type))
        return lambda value: frozenset((key(pair[0]), item(pair[1])) for pair in value.values)
    if _is_list(kind):
        one = plain_of(kind.value_type, exact_zeros=exact_zeros)
        return lambda value: tuple(one(each) for each in value.values)
    if pa.types.is_temporal(kind):
        return lambda value: value.value
    return lambda value: value.as_py()


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _number(value: float, exact_zeros: bool) -> Any:
    if math.isnan(value):
        return "NaN"
    return str(value) if exact_zeros else value + 0.0


def _some(rows: Sequence[tuple]) -> str:
    return "; ".join(_short(row) for row in sorted(rows, key=repr)[:SHOWN]) or "none"


def _short(row: tuple) -> str:
    parts = (text if len(text := repr(value)) < 80 else f"{text[:60]}... of {len(text)}" for value in row)
    return f"({', '.join(parts)})"
