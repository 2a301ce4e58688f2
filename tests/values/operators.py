"""The operators that are judged: how a pipeline is built with each, and the SQL that says what it must show."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import LongType, StructType

from jobs.operators.schemas import quoted
from tests.values.comparing import NEARLY
from tests.values.servers import postgres
from tidemark import (
    AggregateColumn,
    Expectation,
    PostgresSink,
    Processed,
    Stream,
    apply_changes,
    approx_count_distinct,
    approx_percentile,
    avg_of,
    collect_list,
    collect_set,
    count,
    count_distinct,
    deduplicate,
    first_of,
    join,
    last_of,
    max_by,
    max_of,
    min_by,
    min_of,
    stddev_of,
    sum_of,
    top,
    var_of,
)


@dataclass(frozen=True)
class Roles:
    """The columns of a case by their role."""

    id: str
    key: str
    value: str
    amount: str
    gone: str
    kinds: StructType
    place: str
    """A name that no other case has, for what lies outside of its folder."""

    def filled(self, text: str) -> str:
        """Return a text of SQL with the quoted names of the columns for `{k}` and the others."""
        names = {"id": self.id, "k": self.key, "v": self.value, "n": self.amount, "gone": self.gone}
        return text.format(**{short: quoted([name]) for short, name in names.items()})


@dataclass(frozen=True)
class Operator:
    """How an operator is declared, and the SQL over all rows, the view `raw`, that its table must agree with."""

    build: Callable[[Stream, Roles, str], Stream]
    """Writes the table of this name; the last part of the name is free for ids."""
    sql: str
    exact_zeros: bool = False
    """Whether 0.0 and -0.0 differ: where rows pass unchanged."""
    unordered: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    """Columns of doubles that were added up in another order, or are estimates."""
    nearly: float = NEARLY
    """How far they may be off, relatively."""
    states: tuple[str, ...] = ()
    """The columns that the operator's state shares with its table: its SELECT must show them in Spark and DuckDB."""
    elsewhere: Callable[[Roles, pa.Schema], pa.Table] | None = None
    """Reads what an outside sink has written, in these columns."""
    filtered: str | None = None
    """The column by whose values all readers filter the table."""
    also: str | None = None
    """What a second table must show: that of the name with `_also` behind it."""


OPERATORS: Final[dict[str, Operator]] = {}


def _operator(name: str, query: str, **more: object) -> Callable[[Callable], Callable]:
    def keep(build: Callable) -> Callable:
        OPERATORS[name] = Operator(build, query, **more)  # type: ignore[arg-type] - the names are its own
        return build

    return keep


def _id(table: str) -> str:
    return table.partition("/")[2]


# ------------------------------------------------------------------ steps and append tables


@_operator("append", "SELECT * FROM raw", exact_zeros=True)
def _append(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.table(table, id=_id(table))


@_operator("with_column", "SELECT *, {v} AS x FROM raw", exact_zeros=True)
def _with_column(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.with_column("x", quoted([of.value]), of.kinds[of.value].dataType).table(table, id=_id(table))


@_operator("transform", "SELECT *, {k} IS NULL OR {n} > 1 AS x FROM raw", exact_zeros=True)
def _transform(rows: Stream, of: Roles, table: str) -> Stream:
    added = StructType([*rows.schema.fields]).add("x", "boolean")
    sql = of.filled("{k} IS NULL OR {n} > 1")
    return rows.transform(lambda frame: frame.withColumn("x", F.expr(sql)), added).table(table, id=_id(table))


@_operator("filter", "SELECT * FROM raw WHERE {v} IS NOT NULL", exact_zeros=True)
def _filter(rows: Stream, of: Roles, table: str) -> Stream:
    sql = of.filled("{v} IS NOT NULL")
    return rows.transform(lambda frame: frame.filter(sql)).table(table, id=_id(table))


@_operator("select", "SELECT {v}, {id} FROM raw", exact_zeros=True)
def _select(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.select(of.value, of.id).table(table, id=_id(table))


@_operator("drop", "SELECT {id}, {v}, {gone} FROM raw", exact_zeros=True)
def _drop(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.drop(of.amount, of.key).table(table, id=_id(table))


@_operator("rename", "SELECT {id}, {v} AS `x.y`, {k} AS `x``y` FROM raw", exact_zeros=True)
def _rename(rows: Stream, of: Roles, table: str) -> Stream:
    kinds = of.kinds
    renamed = StructType().add("id", LongType()).add("x.y", kinds[of.value].dataType)
    renamed.add("x`y", kinds[of.key].dataType)
    sql = [of.filled(each) for each in ("{id}", "{v} AS `x.y`", "{k} AS `x``y`")]
    return rows.transform(lambda frame: frame.selectExpr(*sql), renamed).table(table, id=_id(table))


@_operator(
    "row rules", "SELECT * FROM raw WHERE {v} IS NOT NULL", exact_zeros=True, also="SELECT * FROM raw WHERE {v} IS NULL"
)
def _rules(rows: Stream, of: Roles, table: str) -> Stream:
    rule = Expectation("expect_column_values_to_not_be_null", {"column": of.value})
    good = rows.check_rows(rule, quarantine=f"{table}_also", id=f"{_id(table)}_check")
    return good.table(table, id=_id(table))


@_operator(
    "row rules of numbers",
    "SELECT * FROM raw WHERE {n} IS NULL OR {n} BETWEEN -5 AND 5",
    exact_zeros=True,
    also="SELECT * FROM raw WHERE NOT ({n} IS NULL OR {n} BETWEEN -5 AND 5)",
)
def _between(rows: Stream, of: Roles, table: str) -> Stream:
    told = {"column": of.amount, "min_value": -5, "max_value": 5}
    rule = Expectation("expect_column_values_to_be_between", told)
    good = rows.check_rows(rule, quarantine=f"{table}_also", id=f"{_id(table)}_check")
    return good.table(table, id=_id(table))


@_operator("union", "SELECT {id}, {v} FROM raw UNION ALL SELECT -{id} - 1, {v} FROM raw", exact_zeros=True)
def _union(rows: Stream, of: Roles, table: str) -> Stream:
    some = rows.select(of.id, of.value)
    return some.with_column(of.id, of.filled("-{id} - 1"), LongType()).union(some, id=_id(table)).table(table)


@_operator("overwrite", "SELECT * FROM raw WHERE {k} = (SELECT max({k}) FROM raw)", exact_zeros=True)
def _overwrite(rows: Stream, of: Roles, table: str) -> Stream:
    sql = of.filled("{k} IS NOT NULL")
    return rows.transform(lambda frame: frame.filter(sql)).overwrite(table, version=of.key, id=_id(table))


@_operator("partitioned append", "SELECT * FROM raw", exact_zeros=True)
def _partitioned(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.table(table, id=_id(table), partition_by=[of.key])


@_operator("readers of an append table", "SELECT * FROM raw", exact_zeros=True, filtered="{v}")
def _read_append(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.table(table, id=_id(table))


@_operator(
    "readers of an upsert table",
    "SELECT {k}, count(*) AS x FROM raw GROUP BY {k}",
    filtered="{k}",
    states=("{k}", "x"),
)
def _read_upsert(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.key_by(of.key).aggregate(_id(table), x=count()).upsert(table)


# ------------------------------------------------------------------ aggregates


def _aggregate(name: str, made: Callable[[Roles], AggregateColumn], value: str, **more: object) -> None:
    """Add the aggregate by key, and that of all rows."""

    def by_key(rows: Stream, of: Roles, table: str) -> Stream:
        return rows.key_by(of.key).aggregate(_id(table), x=made(of), rows_of_key=count()).upsert(table)

    def of_all(rows: Stream, of: Roles, table: str) -> Stream:
        return rows.aggregate(_id(table), x=made(of)).upsert(table)

    def again(rows: Stream, of: Roles, table: str) -> Stream:
        """Aggregate the newest rows of each key: what an update replaces is taken back."""
        newest = deduplicate(rows.key_by(of.key), f"{_id(table)}_newest", order_by=of.id, keep="last")
        return newest.key_by(of.gone).aggregate(_id(table), x=made(of)).upsert(table)

    ranked = "SELECT *, row_number() OVER (PARTITION BY {k} ORDER BY {id} DESC) AS nth_ FROM raw"
    newest = f"(SELECT * FROM ({ranked}) WHERE nth_ = 1)"
    keep = _operator(name, f"SELECT {{k}}, {value} AS x, count(*) AS rows_of_key FROM raw GROUP BY {{k}}", **more)
    keep(by_key)
    _operator(f"{name} of all", f"SELECT true AS _all, {value} AS x FROM raw", **more)(of_all)
    _operator(f"{name} of changes", f"SELECT {{gone}}, {value} AS x FROM {newest} GROUP BY {{gone}}", **more)(again)


_X: Final = ("x",)
_aggregate("count", lambda of: count(of.value), "count({v})")
_aggregate("min", lambda of: min_of(of.value), "min({v})")
_aggregate("max", lambda of: max_of(of.value), "max({v})")
_aggregate("sum", lambda of: sum_of(of.amount), "sum({n})", about=_X)
_aggregate("avg", lambda of: avg_of(of.amount), "avg({n})", about=_X)
_aggregate("variance", lambda of: var_of(of.amount), "var_samp({n})", about=_X)
_aggregate("variance of all values", lambda of: var_of(of.amount, population=True), "var_pop({n})", about=_X)
_aggregate("deviation", lambda of: stddev_of(of.amount), "stddev_samp({n})", about=_X)
_aggregate("first", lambda of: first_of(of.value, order_by=[of.id]), "min_by({v}, {id})")
_aggregate("last", lambda of: last_of(of.value, order_by=[of.id]), "max_by({v}, {id})")
_aggregate("first by value", lambda of: first_of(of.id, order_by=[of.value]), "min(struct({v}, {id})).{id}")
_aggregate("last by value", lambda of: last_of(of.id, order_by=[of.value]), "max(struct({v}, {id})).{id}")
_aggregate(
    "first not null",
    lambda of: first_of(of.value, order_by=[of.id], ignore_nulls=True),
    "min_by({v}, {id}) FILTER (WHERE {v} IS NOT NULL)",
)
_aggregate("min_by", lambda of: min_by(of.id, of.value), "min(struct({v}, {id})) FILTER (WHERE {v} IS NOT NULL).{id}")
_aggregate("max_by", lambda of: max_by(of.id, of.value), "max(struct({v}, {id})) FILTER (WHERE {v} IS NOT NULL).{id}")
_aggregate("collect_list", lambda of: collect_list(of.value), "collect_list({v})", unordered=_X)
_aggregate("collect_set", lambda of: collect_set(of.value), "collect_set({v})", unordered=_X)
_aggregate("count_distinct", lambda of: count_distinct(of.value), "count(DISTINCT {v})")
_aggregate("approx_count_distinct", lambda of: approx_count_distinct(of.value), "count(DISTINCT {v})")
_aggregate(
    "approx_percentile",
    lambda of: approx_percentile(of.amount, 0.5),
    "cast(percentile_approx({n}, 0.5, 100000) AS double)",
    about=_X,
    nearly=0.0101,
)


@_operator(
    "aggregate of an aggregate", "SELECT c, count(*) AS x FROM (SELECT count(*) AS c FROM raw GROUP BY {k}) GROUP BY c"
)
def _twice(rows: Stream, of: Roles, table: str) -> Stream:
    per_key = rows.key_by(of.key).aggregate(f"{_id(table)}_first", c=count())
    return per_key.key_by("c").aggregate(_id(table), x=count()).upsert(table)


@_operator("partitioned upsert", "SELECT {k}, count(*) AS x FROM raw GROUP BY {k}")
def _partitioned_upsert(rows: Stream, of: Roles, table: str) -> Stream:
    counted = rows.key_by(of.key).aggregate(_id(table), x=count())
    return counted.upsert(table, partition_by=[of.key])


# ------------------------------------------------------------------ first rows of a key


@_operator("deduplicate", "SELECT {k}, min({id}) AS {id}, min_by({v}, {id}) AS {v} FROM raw GROUP BY {k}")
def _deduplicate(rows: Stream, of: Roles, table: str) -> Stream:
    some = rows.select(of.key, of.id, of.value)
    return deduplicate(some.key_by(of.key), _id(table), order_by=of.id).upsert(table)


@_operator("deduplicate, last", "SELECT {k}, max({id}) AS {id}, max_by({v}, {id}) AS {v} FROM raw GROUP BY {k}")
def _deduplicate_last(rows: Stream, of: Roles, table: str) -> Stream:
    some = rows.select(of.key, of.id, of.value)
    return deduplicate(some.key_by(of.key), _id(table), order_by=of.id, keep="last").upsert(table)


def _top_sql(order: str) -> str:
    ranked = f"SELECT {{k}}, {{v}}, {{id}}, row_number() OVER (PARTITION BY {{k}} ORDER BY {order}) AS nth FROM raw"
    return f"SELECT * FROM ({ranked}) WHERE nth <= 2"


@_operator("top", _top_sql("{v}, {id}"))
def _top(rows: Stream, of: Roles, table: str) -> Stream:
    some = rows.select(of.key, of.value, of.id).key_by(of.key)
    return top(some, _id(table), n=2, order_by=[of.value], row_number="nth").upsert(table)


@_operator("top, descending", _top_sql("{v} DESC, {id}"))
def _top_descending(rows: Stream, of: Roles, table: str) -> Stream:
    some = rows.select(of.key, of.value, of.id).key_by(of.key)
    return top(some, _id(table), n=2, order_by=[f"{of.value} desc"], row_number="nth").upsert(table)


@_operator("keys of two columns", "SELECT {k}, {v}, count(*) AS x FROM raw GROUP BY {k}, {v}")
def _two_keys(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.key_by(of.key, of.value).aggregate(_id(table), x=count()).upsert(table)


# ------------------------------------------------------------------ joins


def _right(rows: Stream, of: Roles) -> Stream:
    """Return every second row under other names: the key, its id and its value."""
    right = StructType().add("rk", of.kinds[of.key].dataType).add("rid", LongType())
    sql = [of.filled(each) for each in ("{k} AS rk", "{id} AS rid")]
    kept = of.filled("{id} % 2 = 0")
    return rows.transform(lambda frame: frame.filter(kept).selectExpr(*sql), right)


_RIGHT: Final = "(SELECT {k} AS rk, {id} AS rid FROM raw WHERE {id} % 2 = 0)"
_LEFT: Final = "(SELECT {k}, {id}, {v} FROM raw WHERE {id} % 3 > 0)"


def _left(rows: Stream, of: Roles) -> Stream:
    kept = of.filled("{id} % 3 > 0")
    return rows.select(of.key, of.id, of.value).transform(lambda frame: frame.filter(kept))


def _join(how: str) -> None:
    def build(rows: Stream, of: Roles, table: str) -> Stream:
        left, right = _left(rows, of).key_by(of.key), _right(rows, of).key_by("rk")
        joined = join(left, right, f"{_id(table)}_joined", how=how)  # type: ignore[arg-type] - one of its words
        return joined.key_by(of.id, "rid").aggregate(_id(table), x=count(), key=min_of(of.key)).upsert(table)

    sql = (
        f"SELECT {{id}}, rid, coalesce({{k}}, rk) AS key FROM {_LEFT} l {how.upper()} JOIN {_RIGHT} r ON l.{{k}} = r.rk"
    )
    _operator(f"{how} join", f"SELECT {{id}}, rid, count(*) AS x, min(key) AS key FROM ({sql}) GROUP BY {{id}}, rid")(
        build
    )


for _how in ("inner", "left", "right", "full"):
    _join(_how)


@_operator("inner join's rows", f"SELECT l.{{k}}, {{id}}, {{v}}, rid FROM {_LEFT} l JOIN {_RIGHT} r ON l.{{k}} = r.rk")
def _joined_rows(rows: Stream, of: Roles, table: str) -> Stream:
    return join(_left(rows, of).key_by(of.key), _right(rows, of).key_by("rk"), _id(table)).table(table)


@_operator("semi join", f"SELECT {{k}}, {{id}}, {{v}} FROM {_LEFT} l SEMI JOIN {_RIGHT} r ON l.{{k}} = r.rk")
def _semi(rows: Stream, of: Roles, table: str) -> Stream:
    return join(_left(rows, of).key_by(of.key), _right(rows, of).key_by("rk"), _id(table), how="semi").table(table)


@_operator("anti join", f"SELECT {{id}}, {{k}}, {{v}}, 1L AS x FROM {_LEFT} l ANTI JOIN {_RIGHT} r ON l.{{k}} = r.rk")
def _anti(rows: Stream, of: Roles, table: str) -> Stream:
    left = _left(rows, of).with_column("x", "1", LongType())
    kept = join(left.key_by(of.key), _right(rows, of).key_by("rk"), f"{_id(table)}_joined", how="anti")
    return deduplicate(kept.key_by(of.id), _id(table), order_by="x").upsert(table)


# ------------------------------------------------------------------ changes


_NEWEST: Final = (
    "(SELECT *, row_number() OVER (PARTITION BY {k} ORDER BY {id} DESC) AS nth_ FROM raw WHERE {k} IS NOT NULL)"
)


def _with_keys(rows: Stream, of: Roles) -> Stream:
    sql = of.filled("{k} IS NOT NULL")
    return rows.select(of.key, of.value, of.id, of.gone).transform(lambda frame: frame.filter(sql))


@_operator(
    "apply_changes",
    f"SELECT {{k}}, {{v}}, {{id}}, {{gone}} FROM {_NEWEST} WHERE nth_ = 1 AND NOT coalesce({{gone}}, false)",
)
def _apply(rows: Stream, of: Roles, table: str) -> Stream:
    changes = _with_keys(rows, of)
    return apply_changes(changes, _id(table), keys=[of.key], sequence_by=of.id, apply_as_deletes=of.gone).upsert(table)


_HISTORY: Final = (
    "(SELECT {k}, {v}, {id}, {gone}, lead({id}) OVER (PARTITION BY {k} ORDER BY {id}) AS valid_to FROM raw "
    "WHERE {k} IS NOT NULL)"
)


@_operator(
    "apply_changes, history",
    "SELECT {k}, {v}, {id}, {gone}, {id} AS valid_from, valid_to, valid_to IS NULL AS current "
    f"FROM {_HISTORY} WHERE NOT coalesce({{gone}}, false)",
)
def _history(rows: Stream, of: Roles, table: str) -> Stream:
    changes, told = _with_keys(rows, of), {"keys": [of.key], "sequence_by": of.id, "apply_as_deletes": of.gone}
    history = apply_changes(changes, _id(table), type=2, track_history_columns=[of.id], **told)  # type: ignore[arg-type]
    return history.upsert(table)


@_operator(
    "enrich",
    f"SELECT l.*, 1L AS x FROM {_LEFT} l SEMI JOIN {_RIGHT} r ON l.{{k}} = r.rk",
)
def _enrich(rows: Stream, of: Roles, table: str) -> Stream:
    present = of.filled("{k} IS NOT NULL")
    right = _right(rows, of).transform(lambda frame: frame.filter("rk IS NOT NULL")).with_column("x", "1", LongType())
    left = _left(rows, of).transform(lambda frame: frame.filter(present))
    return left.key_by(of.key).connect(right.key_by("rk")).enrich(_id(table), "x").table(table)


# ------------------------------------------------------------------ outside sinks


_WRITTEN: Final = "SELECT {id}, {k}, {n}, {gone} FROM raw"


def _in_postgres(of: Roles, columns: pa.Schema) -> pa.Table:
    with psycopg.connect(postgres().url()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        names = sql.SQL(", ").join(sql.Identifier(name) for name in columns.names)
        found = connection.execute(sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(of.place))).fetchall()
    given = [list(column) for column in zip(*found, strict=True)] or [[]] * len(columns)
    return pa.table([pa.array(each, field.type) for each, field in zip(given, columns, strict=True)], columns)


@_operator("sink to PostgreSQL", _WRITTEN, exact_zeros=True, elsewhere=_in_postgres)
def _postgres_sink(rows: Stream, of: Roles, table: str) -> Stream:
    sink = PostgresSink(postgres().url(), of.place)
    return rows.select(of.id, of.key, of.amount, of.gone).table(table, id=_id(table), sink=sink)


# ------------------------------------------------------------------ functions


@dataclass(frozen=True)
class Passes:
    """Puts out each row with the number of its key's rows that came before its micro-batch. Keeps that number."""

    key: str
    state_version = 1

    def process(self, inputs, state):
        """Return the new counts, and the rows."""
        new = inputs[0].group_by(self.key).agg(pl.len().cast(pl.Int64).alias("new"))
        kept = new.join(state, on=self.key, how="left", nulls_equal=True)
        summed = (pl.col("new") + pl.col("seen").fill_null(0)).alias("seen")
        return Processed(state=kept.select(self.key, summed), output=kept.select(self.key, summed))


@_operator("function", "SELECT {k}, count(*) AS seen FROM raw GROUP BY {k}", states=("{k}", "seen"))
def _function(rows: Stream, of: Roles, table: str) -> Stream:
    seen = StructType().add("seen", LongType())
    output = StructType().add(of.key, of.kinds[of.key].dataType).add("seen", LongType())
    return rows.key_by(of.key).process(_id(table), Passes(of.key), state=seen, output=output).upsert(table)
