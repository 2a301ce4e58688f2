"""The aggregates that a user names in `aggregate`, and the checks of their columns and types."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FractionalType,
    IntegralType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from jobs.operators.aggregate import Aggregate, needed_columns
from jobs.operators.aggregate_functions import (
    AggregateFunction,
    Average,
    Count,
    DecimalAverage,
    Max,
    Min,
    Sum,
    Variance,
)
from jobs.operators.ordered_aggregates import ApproximateDistinct, ApproximatePercentile, Chosen, Collected
from jobs.operators.spec import arrow_schema, quoted
from jobs.pipeline.columns import InvalidPipelineError, require_columns, require_free, require_unique
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.spark.versions import DATETIMES

# ------------------------------------------------------------------
# Checks that Polars can resolve the expressions of a user's own aggregate, without computing anything.
#
# Polars' threads do not survive a fork. If this module computed something in a forked process, it would wait for these
# threads for ever, and the process could not declare a pipeline. So Polars only resolves the types of a lazy query
# here, and does not run the query. Even that starts Polars' threads. So after a process has declared such an aggregate,
# processes that it forks cannot compute with Polars.


_ONE, _OTHER, _FOUND = "one", "other", "found"


def require_computable(one: Aggregate, rows: StructType) -> None:
    """Raise ValueError unless the aggregate's expressions fit the columns of these rows and its own types.

    The check does not find an expression that fails for some values only, such as a cast from text to a number.
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
    """Return whether all values of one type can be cast to the other type."""
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


_ORDERED: tuple[type[DataType], ...] = (NumericType, *DATETIMES, StringType, BooleanType, BinaryType)
"""Types whose values have the same order in Spark and in Polars."""

_HASH_OF = "_hash_of_"
"""Prefix of a column with the hashes of another column."""


_PROTOCOL = ("name", "columns", "accumulator", "returns", "init", "add", "merge", "result")
"""The members of an AggregateFunction."""


@dataclass(frozen=True, slots=True)
class AggregateColumn:
    """What an output column of `aggregate` holds: an aggregate of `columns`.

    `of` makes the aggregate's function for rows of a schema. It raises ValueError or TypeError if the aggregate cannot
    take a column's type. `renamed_from` is the name that the output column had before. `hashed` is a column that Spark
    hashes before the rows are exchanged. `own` is true for an aggregate that the user has written, whose expressions
    must be checked. `filtered` are columns that are null in the rows that the aggregate leaves out.
    """

    columns: tuple[str, ...]
    of: Callable[[StructType], AggregateFunction]
    renamed_from: str | None = None
    hashed: str | None = None
    own: bool = False
    filtered: tuple["FilteredColumn", ...] = ()


@dataclass(frozen=True, slots=True)
class FilteredColumn:
    """A column that is null in rows for which `where` is not true.

    In the other rows it has the values of the column `of`, or true if `of` is None.
    """

    of: str | None
    where: str

    @property
    def name(self) -> str:
        """The column's name. It includes `of` and `where`, so a checkpoint shows whether these have changed."""
        return f"{self.of or 'rows'} where {self.where}"

    @property
    def sql(self) -> str:
        """The Spark SQL that computes the column."""
        return f"if({self.where}, {'true' if self.of is None else quoted([self.of])}, null)"


def _filtered(make: Callable[[str], AggregateColumn], column: str, where: str | None) -> AggregateColumn:
    """Return the aggregate of a column over the rows for which `where` is true. None: all rows."""
    if where is None:
        return make(column)
    only = FilteredColumn(column, where)
    return replace(make(only.name), filtered=(only,))


def aggregate_of(function: AggregateFunction, *, renamed_from: str | None = None) -> AggregateColumn:
    """Keep an aggregate that you have written.

    Raise InvalidPipelineError for an object that is no AggregateFunction.
    """
    lacking = [name for name in _PROTOCOL if not hasattr(function, name)]
    if lacking:
        raise InvalidPipelineError(f"{function!r} is no AggregateFunction: it lacks {', '.join(lacking)}")
    return AggregateColumn(tuple(function.columns), lambda _: function, renamed_from, own=True)


def count(column: str | None = None, *, where: str | None = None, renamed_from: str | None = None) -> AggregateColumn:
    """Count rows, or the rows in which `column` is not null.

    `where` is a condition in Spark SQL: only rows for which it is true take part. `renamed_from` is the name that the
    output column had before. The column keeps its values in the state and in the vertex's upsert table. Both have the
    same meaning in the other aggregates.
    """
    if column is None and where is None:
        return AggregateColumn((), lambda _: Count(None), renamed_from)
    only = None if where is None else FilteredColumn(column, where)
    counted = column if only is None else only.name
    made = AggregateColumn((counted or "",), lambda _: Count(counted), renamed_from)
    return made if only is None else replace(made, filtered=(only,))


def sum_of(column: str, *, where: str | None = None, renamed_from: str | None = None) -> AggregateColumn:
    """Add up a column. Nulls are left out, and the sum of only nulls is null. Types and limits are Spark's.

    | the column holds | the sum is | what does not fit |
    |---|---|---|
    | tinyint, smallint, int, bigint | bigint, exact | the tick fails and names vertex, column and key |
    | decimal(p, s) | decimal(min(38, p + 10), s), exact | the same |
    | float, double | double, rounded by IEEE 754 | becomes infinite; NaN, and inf - inf, make the sum NaN for good |

    The sum over one micro-batch and the total after it must fit. (Spark with ANSI mode, its default, fails likewise.)
    The last digits of a sum of doubles depend on the order of the rows. Use decimals if that matters. Other types are
    refused.
    """

    def make(values: str) -> AggregateColumn:
        return AggregateColumn(
            (values,), lambda rows: Sum(values, _sum_type(values, rows[values].dataType)), renamed_from
        )

    return _filtered(make, column, where)


def min_of(column: str, *, where: str | None = None, renamed_from: str | None = None) -> AggregateColumn:
    """Take a column's least value. A struct, an array or a map has none, and is refused."""

    def make(values: str) -> AggregateColumn:
        return AggregateColumn((values,), lambda rows: Min(values, _ordered("min_of", values, rows)), renamed_from)

    return _filtered(make, column, where)


def max_of(column: str, *, where: str | None = None, renamed_from: str | None = None) -> AggregateColumn:
    """Take a column's greatest value. A struct, an array or a map has none, and is refused."""

    def make(values: str) -> AggregateColumn:
        return AggregateColumn((values,), lambda rows: Max(values, _ordered("max_of", values, rows)), renamed_from)

    return _filtered(make, column, where)


def avg_of(column: str, *, where: str | None = None, renamed_from: str | None = None) -> AggregateColumn:
    """Take the mean of a column. Without values it is null.

    The mean of a decimal(p, s) is exact, rounded half up to a decimal(min(38, p + 4), min(38, s + 4)). The mean of
    other numbers is a double.
    """

    def make(values: str) -> AggregateColumn:
        def of(rows: StructType) -> AggregateFunction:
            kind = _number(values, rows, "take the mean of")
            return DecimalAverage(values, kind) if isinstance(kind, DecimalType) else Average(values)

        return AggregateColumn((values,), of, renamed_from)

    return _filtered(make, column, where)


def var_of(
    column: str, *, where: str | None = None, population: bool = False, renamed_from: str | None = None
) -> AggregateColumn:
    """Take the variance of a column of numbers as a double.

    It is the variance of a sample (Spark: `var_samp`), which is null for fewer than two values. With `population`, it
    is the variance of the whole population (Spark: `var_pop`).
    """

    def make(values: str) -> AggregateColumn:
        return _variance(values, root=False, population=population, renamed_from=renamed_from)

    return _filtered(make, column, where)


def stddev_of(
    column: str, *, where: str | None = None, population: bool = False, renamed_from: str | None = None
) -> AggregateColumn:
    """Take the standard deviation of a column of numbers: the root of `var_of`."""

    def make(values: str) -> AggregateColumn:
        return _variance(values, root=True, population=population, renamed_from=renamed_from)

    return _filtered(make, column, where)


def min_by(column: str, by: str, *, renamed_from: str | None = None) -> AggregateColumn:
    """Take the value of `column` in the row with the least `by`. Rows in which `by` is null do not take part.

    If several rows have the least `by`, the least value of `column` is returned. A null comes before every value.
    """
    return _chosen("min_by", column, (by,), last=False, skips=(by,), renamed_from=renamed_from)


def max_by(column: str, by: str, *, renamed_from: str | None = None) -> AggregateColumn:
    """Take the value of `column` in the row with the greatest `by`. Rows in which `by` is null do not take part.

    If several rows have the greatest `by`, the greatest value of `column` is returned.
    """
    return _chosen("max_by", column, (by,), last=True, skips=(by,), renamed_from=renamed_from)


def first_of(
    column: str, *, order_by: Sequence[str] = (), ignore_nulls: bool = False, renamed_from: str | None = None
) -> AggregateColumn:
    """Take the value of `column` in the first row by the columns `order_by`. Nulls come first.

    Without `order_by`, rows are ordered by `_position`, then `_split`. So rows of one split are in the order of their
    source. If rows are equal in these columns, the least value is returned. `ignore_nulls` leaves out rows in which
    `column` is null.
    """
    skips = (column,) if ignore_nulls else ()
    return _chosen("first", column, _order(order_by), last=False, skips=skips, renamed_from=renamed_from)


def last_of(
    column: str, *, order_by: Sequence[str] = (), ignore_nulls: bool = False, renamed_from: str | None = None
) -> AggregateColumn:
    """Take the value of `column` in the last row, in the order that `first_of` describes.

    If rows are equal in these columns, the greatest value is returned.
    """
    skips = (column,) if ignore_nulls else ()
    return _chosen("last", column, _order(order_by), last=True, skips=skips, renamed_from=renamed_from)


def collect_list(column: str, *, renamed_from: str | None = None) -> AggregateColumn:
    """Keep all values of a column, sorted, without nulls. State and table hold every value."""
    return _collected("collect_list", column, once=False, counts=False, renamed_from=renamed_from)


def collect_set(column: str, *, renamed_from: str | None = None) -> AggregateColumn:
    """Keep each value of a column once, sorted, without nulls. State and table hold every different value."""
    return _collected("collect_set", column, once=True, counts=False, renamed_from=renamed_from)


def count_distinct(column: str, *, where: str | None = None, renamed_from: str | None = None) -> AggregateColumn:
    """Count exactly the distinct values of a column that are not null. The state holds each of these values."""

    def make(values: str) -> AggregateColumn:
        return _collected("count_distinct", values, once=True, counts=True, renamed_from=renamed_from)

    return _filtered(make, column, where)


def approx_count_distinct(column: str, *, where: str | None = None, renamed_from: str | None = None) -> AggregateColumn:
    """Count the distinct values of a column that are not null, from at most 8 KiB of state for each key.

    Up to 1,023 distinct values the number is exact. With more values, its standard error is 3.1 %. The same values
    always give the same number, in whatever order and micro-batches they arrive.
    """

    def make(values: str) -> AggregateColumn:
        hashed = f"{_HASH_OF}{values}"
        return AggregateColumn((hashed,), lambda _: ApproximateDistinct(hashed), renamed_from, hashed=values)

    return _filtered(make, column, where)


def approx_percentile(
    column: str, percentage: float, *, relative_error: float = 0.01, renamed_from: str | None = None
) -> AggregateColumn:
    """Estimate a percentile of a column of numbers as a double: `percentage` 0.5 is the median.

    The exact percentile is the least value such that at least this share of all values is not greater (as in Spark's
    `percentile_approx`). The estimate differs from the exact percentile by at most this fraction of it:
    `relative_error`. The state holds a count for each range of values. With an error of 1 %, there are 115 ranges
    between 1 and 10. The same values always give the same estimate. Raises InvalidPipelineError for a percentage
    outside 0..1 and an error outside 0.0001..0.5.
    """
    if not 0 <= percentage <= 1:
        raise InvalidPipelineError(
            f"approx_percentile of {column}: the percentage is {percentage}, it must lie in 0..1, as 0.5 for the median"
        )
    least, most = 0.0001, 0.5
    if not least <= relative_error <= most:
        raise InvalidPipelineError(
            f"approx_percentile of {column}: relative_error is {relative_error}, it must lie in {least}..{most}"
        )

    def of(rows: StructType) -> AggregateFunction:
        _number(column, rows, "take a percentile of")
        return ApproximatePercentile(column, float(percentage), float(relative_error))

    return AggregateColumn((column,), of, renamed_from)


def named_aggregates(
    where: str, keys: Sequence[str], rows: StructType, columns: Mapping[str, AggregateColumn]
) -> tuple[Aggregate, ...]:
    """Return the named aggregates. Raise InvalidPipelineError for an aggregate that cannot be computed."""
    if not columns:
        raise InvalidPipelineError(f"{where}: an aggregate needs a column, such as rows=count()")
    require_unique(where, [*keys, *columns])
    require_free(where, [*keys, *columns])
    return tuple(_named(f"{where}: aggregate {name}", rows, name, one) for name, one in columns.items())


def derived_columns(
    where: str, rows: StructType, columns: Mapping[str, AggregateColumn]
) -> dict[str, tuple[str, DataType]]:
    """Return the columns that these aggregates need and the rows lack, with the Spark SQL and the type of each.

    These are filtered columns (`FilteredColumn`) and hashes. A column keeps its hashes if its type is widened, because
    numbers are hashed as bigint, double or the widest decimal. Raise InvalidPipelineError for a column that is not
    there.
    """
    filtered = {each.name: each for one in columns.values() for each in getattr(one, "filtered", ())}
    require_columns(where, rows, [each.of for each in filtered.values() if each.of is not None])
    for each in filtered.values():
        require_free(where, [each.name])
    found: dict[str, tuple[str, DataType]] = {
        name: (each.sql, BooleanType() if each.of is None else rows[each.of].dataType)
        for name, each in filtered.items()
    }
    kinds = {field.name: field.dataType for field in rows.fields} | {name: kind for name, (_, kind) in found.items()}
    hashed = [name for one in columns.values() if (name := getattr(one, "hashed", None)) is not None]
    require_columns(where, StructType([StructField(name, kind) for name, kind in kinds.items()]), hashed)
    return found | {f"{_HASH_OF}{name}": (_hash(where, name, kinds[name]), LongType()) for name in hashed}


def _hash(where: str, name: str, kind: DataType) -> str:
    value = quoted([name])
    match kind:
        case MapType():
            raise InvalidPipelineError(f"{where}: column {name} holds a map, which has no hash; use its map_entries")
        case IntegralType():
            value = f"cast({value} as bigint)"
        case DecimalType():
            value = f"cast({value} as decimal(38, {kind.scale}))"
        case FractionalType():
            value = f"(cast({value} as double) + 0.0D)"
        case _:
            pass
    return f"if({quoted([name])} is null, null, xxhash64({value}))"


def _named(where: str, rows: StructType, name: str, column: object) -> Aggregate:
    if not isinstance(column, AggregateColumn):
        raise InvalidPipelineError(
            f"{where} is {column!r}; name an aggregate such as count() or sum_of('amount'), or your own as "
            "aggregate_of(function)"
        )
    lacking = [each for each in column.columns if each not in rows.names]
    if lacking and set(lacking) <= {SPLIT_COLUMN, POSITION_COLUMN}:
        raise InvalidPipelineError(
            f"{where}: without order_by, rows are ordered by {POSITION_COLUMN} and {SPLIT_COLUMN}, and they have no "
            f"column {lacking[0]!r}; keep it, or name the columns that order them, as in order_by=['at']"
        )
    require_columns(where.partition(": aggregate ")[0], rows, column.columns)
    try:
        made = Aggregate(name, column.of(rows))
        if column.own:
            require_computable(made, rows)
    except (ValueError, TypeError) as error:
        raise InvalidPipelineError(f"{where}: {error}") from error
    return made


def _sum_type(column: str, kind: DataType) -> DataType:
    match kind:
        case IntegralType():
            return LongType()
        case DecimalType():
            return DecimalType(min(38, kind.precision + 10), kind.scale)
        case FractionalType():
            return DoubleType()
        case _:
            raise ValueError(f"can't sum column {column} of type {kind.simpleString()}")


def _number(column: str, rows: StructType, does: str) -> DataType:
    kind = rows[column].dataType
    if not isinstance(kind, NumericType):
        raise TypeError(f"can't {does} column {column} of type {kind.simpleString()}; cast it to a number")
    return kind


def _ordered(name: str, column: str, rows: StructType) -> DataType:
    """Return the column's type; raise TypeError if Polars cannot order its values as Spark does."""
    kind = rows[column].dataType
    if not isinstance(kind, _ORDERED):
        raise TypeError(
            f"{name} can't sort column {column} of type {kind.simpleString()}; take one of its parts, or its to_json"
        )
    return kind


def _variance(column: str, *, root: bool, population: bool, renamed_from: str | None) -> AggregateColumn:
    def of(rows: StructType) -> AggregateFunction:
        _number(column, rows, "take the deviation of")
        return Variance(column, root, population)

    return AggregateColumn((column,), of, renamed_from)


def _order(names: Sequence[str]) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    return listed or (POSITION_COLUMN, SPLIT_COLUMN)


def _chosen(
    name: str, column: str, order: tuple[str, ...], *, last: bool, skips: tuple[str, ...], renamed_from: str | None
) -> AggregateColumn:
    def of(rows: StructType) -> AggregateFunction:
        kinds = tuple(rows[each].dataType for each in order)
        for each, kind in zip(order, kinds, strict=True):
            if not isinstance(kind, _ORDERED):
                raise TypeError(f"column {each} of type {kind.simpleString()} has no order; name another column")
        kind = rows[column].dataType
        by_value = isinstance(kind, _ORDERED)
        return Chosen(_skipping(name, column, skips), column, order, last, by_value, skips, kind, kinds)

    return AggregateColumn((column, *order), of, renamed_from)


def _skipping(name: str, column: str, skips: tuple[str, ...]) -> str:
    return f"{name}_ignoring_nulls" if column in skips and name in ("first", "last") else name


def _collected(name: str, column: str, *, once: bool, counts: bool, renamed_from: str | None) -> AggregateColumn:
    def of(rows: StructType) -> AggregateFunction:
        return Collected(name, column, _ordered(name, column, rows), once, counts)

    return AggregateColumn((column,), of, renamed_from)
