"""Checks that Polars can resolve the expressions of a user's own aggregate. It computes nothing.

Polars' threads do not survive a fork. A process that another one has forked would wait for them for ever, and could
declare no pipeline. So Polars resolves the types of a lazy query here, and nobody collects it. That starts Polars'
threads too: a process that has declared such an aggregate cannot compute in a process that it forks afterwards.
"""

import polars as pl
from pyspark.sql.types import DataType, StructField, StructType

from jobs.operators.aggregate import Aggregate, needed_columns
from jobs.operators.schemas import arrow_schema

_ONE, _OTHER, _FOUND = "one", "other", "found"


def require_computable(one: Aggregate, rows: StructType) -> None:
    """Raise ValueError unless the aggregate's expressions fit the columns of these rows and its own types.

    An expression that only some values do not fit, as a cast from text to a number, is not found.
    """
    function = one.function
    try:
        _require_types(one, rows)
    except (pl.exceptions.PolarsError, TypeError, AttributeError) as error:
        said = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"function {function.name} cannot be computed over ({', '.join(function.columns)}): {said}; "
            "correct its expressions or its types"
        ) from error


def _require_types(one: Aggregate, rows: StructType) -> None:
    function = one.function
    held, shown = _kind(function.accumulator), _kind(function.returns)
    given = pl.LazyFrame(schema=_schema(needed_columns((), (one,), rows)))
    added = given.group_by(pl.lit(0).alias(_OTHER)).agg(function.add().alias(_FOUND))
    _require("add", added, held)
    two = pl.LazyFrame(schema={_ONE: held, _OTHER: held})
    none = function.init()
    if none is not None:
        _require("init", two.select(none.alias(_FOUND)), held)
    _require("merge", two.select(function.merge(pl.col(_ONE), pl.col(_OTHER)).alias(_FOUND)), held)
    _require("result", two.select(function.result(pl.col(_ONE)).alias(_FOUND)), shown)


def _require(name: str, query: pl.LazyFrame, declared: pl.DataType) -> None:
    found = query.collect_schema()[_FOUND]
    if not _fits(found, declared):
        raise TypeError(f"{name} gives {found}, and {declared} is declared")


def _fits(found: pl.DataType, declared: pl.DataType) -> bool:
    """Return whether values of one type can be cast to the other one, whatever the values are."""
    if isinstance(found, pl.List) and isinstance(declared, pl.List):
        return _fits(_plain(found.inner), _plain(declared.inner))
    if isinstance(found, pl.Struct) and isinstance(declared, pl.Struct):
        own, its = found.to_schema(), declared.to_schema()
        return own.keys() == its.keys() and all(_fits(_plain(own[name]), _plain(its[name])) for name in own)
    return found in (declared, pl.Null()) or (_is_number(found) and _is_number(declared))


def _is_number(kind: pl.DataType) -> bool:
    return kind.is_numeric() or kind == pl.Boolean()


def _plain(kind: object) -> pl.DataType:
    if not isinstance(kind, pl.DataType):
        raise TypeError(f"{kind} is no complete type")
    return kind


def _kind(kind: DataType) -> pl.DataType:
    return _schema(StructType([StructField(_FOUND, kind)]))[_FOUND]


def _schema(columns: StructType) -> pl.Schema:
    return pl.Schema(arrow_schema(columns))
