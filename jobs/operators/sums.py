"""Finds sums that do not fit their type, so that a total never silently wraps around.

Whole numbers and decimals are added up exactly. The sum of one micro-batch's rows must fit its type, and so must the
new total. Polars checks neither; its sums wrap around. Doubles follow IEEE 754 and never fail.
"""

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Final

import polars as pl

_ROUGHLY: Final = "\0~"
"""Prefix of a column that holds a decimal's sum as a double, beside the exact sum, which may have wrapped around."""

_WRAPS_BEYOND: Final = 1.5e38
"""A decimal of 38 digits (1e38) lies in 128 bits, which wrap at 1.7e38. A double is exact enough to tell the two."""

_DIGITS_MAX: Final = 38
"""The most digits of a decimal, in Spark and in Polars."""

_EXACT: Final = Context(prec=100)


class SumOverflowError(ArithmeticError):
    """A sum does not fit its type; the message names the column, the key, the type and the way out."""

    def __init__(self, name: str, column: str, key: Sequence[object], kind: pl.DataType) -> None:
        keys = ", ".join(map(str, key))
        super().__init__(
            f"column {name}: the sum of {column} for the key ({keys}) does not fit {_shown(kind)}; "
            + _way_out(column, kind)
        )


def may_overflow(values: pl.Series, kind: pl.DataType) -> bool:
    """Return whether the sum of some of these values may not fit the type. If it returns False, every sum fits."""
    if not _is_exact(kind):
        return False
    lowest, highest = values.min(), values.max()
    if lowest is None or highest is None:
        return False
    largest = max(abs(_unscaled(lowest, kind)), abs(_unscaled(highest, kind)))
    return largest * len(values) > _unscaled(_largest(kind), kind)


def sum_of_rows(column: str, name: str, kind: pl.DataType, *, checked: bool) -> tuple[pl.Expr, ...]:
    """Return the sum of a column, null if all is null; `checked` returns the form that `fitting` takes."""
    values, some = pl.col(column).cast(kind), pl.col(column).count() > 0
    if checked and kind == pl.Int64:
        return (pl.when(some).then(values.cast(pl.Int128).sum()).alias(name),)
    exact = pl.when(some).then(values.sum()).alias(name)
    return (exact, values.cast(pl.Float64).sum().alias(f"{_ROUGHLY}{name}")) if checked else (exact,)


def fitting(sums: pl.DataFrame, keys: Sequence[str], column: str, name: str, kind: pl.DataType) -> pl.DataFrame:
    """Return checked sums in their type; raise SumOverflowError for one that does not fit."""
    found = pl.col(name)
    outside = (found > _literal(_largest(kind), kind)) | (found < _literal(_least(kind), kind))
    rough = f"{_ROUGHLY}{name}"
    if isinstance(kind, pl.Decimal):
        outside |= pl.col(rough).abs() > _WRAPS_BEYOND / 10**kind.scale
    _require_none(sums.filter(outside), keys, column, name, kind)
    return sums.drop(rough, strict=False).with_columns(found.cast(kind))


def require_totals_fit(
    beside: pl.DataFrame, keys: Sequence[str], column: str, name: str, before: str, kind: pl.DataType
) -> None:
    """Raise SumOverflowError unless every sum in `name`, added to the total in `before`, fits the type.

    It compares the total with the limit less the sum, so that the comparison itself cannot overflow.
    """
    if not _is_exact(kind):
        return
    total, more = (_wide(pl.col(each), kind).fill_null(_zero(kind)) for each in (before, name))
    up, down = pl.max_horizontal(more, _zero(kind)), pl.min_horizontal(more, _zero(kind))
    outside = (total > _literal(_largest(kind), kind) - up) | (total < _literal(_least(kind), kind) - down)
    _require_none(beside.filter(outside), keys, column, name, kind)


def require_fit(
    rows: pl.DataFrame, keys: Sequence[str], column: str, name: str, sums: pl.Expr, kind: pl.DataType
) -> None:
    """Raise SumOverflowError for an exact sum, held in 38 digits, that does not fit the type."""
    largest, least = _largest(kind), _least(kind)
    wide = pl.Decimal(_DIGITS_MAX, kind.scale if isinstance(kind, pl.Decimal) else 0)
    _require_none(
        rows.filter((sums > pl.lit(largest, dtype=wide)) | (sums < pl.lit(least, dtype=wide))), keys, column, name, kind
    )


def _require_none(rows: pl.DataFrame, keys: Sequence[str], column: str, name: str, kind: pl.DataType) -> None:
    if not rows.is_empty():
        raise SumOverflowError(name, column, rows.select(keys).row(0), kind)


def _is_exact(kind: pl.DataType) -> bool:
    return kind == pl.Int64 or isinstance(kind, pl.Decimal)


def _largest(kind: pl.DataType) -> int | Decimal:
    if isinstance(kind, pl.Decimal):
        return Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT)
    return 2**63 - 1


def _least(kind: pl.DataType) -> int | Decimal:
    largest = _largest(kind)
    return largest.copy_negate() if isinstance(largest, Decimal) else -largest - 1


def _unscaled(value: object, kind: pl.DataType) -> int:
    if isinstance(kind, pl.Decimal):
        return int(Decimal(str(value)).scaleb(kind.scale, _EXACT))
    return int(str(value))


def _wide(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return the column in the widest type of its scale, in which the limit less the sum always fits."""
    return column.cast(pl.Decimal(_DIGITS_MAX, kind.scale)) if isinstance(kind, pl.Decimal) else column


def _literal(value: int | Decimal, kind: pl.DataType) -> pl.Expr:
    return pl.lit(value, dtype=pl.Decimal(_DIGITS_MAX, kind.scale)) if isinstance(kind, pl.Decimal) else pl.lit(value)


def _zero(kind: pl.DataType) -> pl.Expr:
    return _literal(Decimal(0) if isinstance(kind, pl.Decimal) else 0, kind)


def _shown(kind: pl.DataType) -> str:
    return f"decimal({kind.precision},{kind.scale})" if isinstance(kind, pl.Decimal) else "bigint"


def _way_out(column: str, kind: pl.DataType) -> str:
    """Return the way out. State and upsert tables accept a wider decimal; a double needs a new column."""
    if isinstance(kind, pl.Decimal) and kind.precision == _DIGITS_MAX:
        return f"cast {column} to double before the aggregate, and give the sum another name, which begins anew"
    scale = kind.scale if isinstance(kind, pl.Decimal) else 0
    return (
        f"cast {column} to decimal({_DIGITS_MAX},{scale}) before the aggregate: its state and its upsert table follow"
    )
