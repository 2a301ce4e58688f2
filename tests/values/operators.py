"""The operators that are judged: how a pipeline is built with each, and the SQL that computes what it must show."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl
import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructType

import tidemark as td
from jobs.operators.spec import quoted
from tests.scenarios.kafka.topics import read
from tests.values.comparing import NEARLY
from tests.values.readers import kafka, postgres, topic
from tidemark import AggregateColumn, Expectation, KafkaSink, PostgresSink, Processed, Stream


@dataclass(frozen=True)
class Roles:
    id: str
    key: str
    value: str
    amount: str
    gone: str
    kinds: StructType
    place: str
    """A name that no other case has, for objects outside of the case's folder."""

    def filled(self, text: str) -> str:
        names = {"id": self.id, "k": self.key, "v": self.value, "n": self.amount, "gone": self.gone}
        return text.format(**{short: quoted([name]) for short, name in names.items()})


@dataclass(frozen=True)
class Operator:
    """How an operator is declared, and the SQL over the view `raw` of all rows with which its table must agree."""

    build: Callable[[Stream, Roles, str], Stream]
    """Writes the table of this name. The last part of the name may be used for ids."""
    sql: str
    exact_zeros: bool = False
    """True if 0.0 and -0.0 differ, because rows pass unchanged."""
    unordered: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    """Columns of doubles that are added up in another order, or that are estimates."""
    nearly: float = NEARLY
    """The relative error that these columns may have."""
    states: tuple[str, ...] = ()
    """The columns that the operator's state shares with its table.

    A SELECT on the state must show them in Spark and DuckDB.
    """
    elsewhere: Callable[[Roles, pa.Schema], pa.Table] | None = None
    """Reads the rows that an outside sink has written, in these columns."""
    filtered: str | None = None
    """The column by whose values all readers filter the table."""
    also: str | None = None
    """What a second table must show. This is the table whose name ends in `_also`, or the broadcast state."""


OPERATORS: Final[dict[str, Operator]] = {}


def _operator(name: str, query: str, **more: object) -> Callable[[Callable], Callable]:
    def keep(build: Callable) -> Callable:
        OPERATORS[name] = Operator(build, query, **more)  # type: ignore[arg-type] - the names are its own
        return build

    return keep


def _id(table: str) -> str:
    return table.partition("/")[2]


def _step(name: str, query: str, step: Callable[[Stream, Roles], Stream], **more: object) -> None:
    def build(rows: Stream, of: Roles, table: str) -> Stream:
        return step(rows, of).table(table, id=_id(table))

    _operator(name, query, exact_zeros=True, **more)(build)


def _present(rows: Stream, sql: str) -> Stream:
    return rows.transform(lambda frame: frame.filter(sql))


_step("append", "SELECT * FROM raw", lambda rows, of: rows)
_step("readers of an append table", "SELECT * FROM raw", lambda rows, of: rows, filtered="{v}")
_step("select", "SELECT {v}, {id} FROM raw", lambda rows, of: rows.select(of.value, of.id))
_step("drop", "SELECT {id}, {v}, {gone} FROM raw", lambda rows, of: rows.drop(of.amount, of.key))
_step(
    "filter", "SELECT * FROM raw WHERE {v} IS NOT NULL", lambda rows, of: _present(rows, of.filled("{v} IS NOT NULL"))
)
_step(
    "with_column",
    "SELECT *, {v} AS x FROM raw",
    lambda rows, of: rows.with_column("x", quoted([of.value]), of.kinds[of.value].dataType),
)


@_operator("transform", "SELECT *, {k} IS NULL OR {n} > 1 AS x FROM raw", exact_zeros=True)
def _transform(rows: Stream, of: Roles, table: str) -> Stream:
    added = StructType([*rows.schema.fields]).add("x", "boolean")
    sql = of.filled("{k} IS NULL OR {n} > 1")
    return rows.transform(lambda frame: frame.withColumn("x", F.expr(sql)), added).table(table, id=_id(table))


@_operator("rename", "SELECT {id}, {v} AS `x.y`, {k} AS `x``y` FROM raw", exact_zeros=True)
def _rename(rows: Stream, of: Roles, table: str) -> Stream:
    kinds = of.kinds
    renamed = StructType().add("id", LongType()).add("x.y", kinds[of.value].dataType)
    renamed.add("x`y", kinds[of.key].dataType)
    sql = [of.filled(each) for each in ("{id}", "{v} AS `x.y`", "{k} AS `x``y`")]
    return rows.transform(lambda frame: frame.selectExpr(*sql), renamed).table(table, id=_id(table))


def _rules(name: str, kept: str, rule: Callable[[Roles], Expectation]) -> None:
    def build(rows: Stream, of: Roles, table: str) -> Stream:
        good = rows.check_rows(rule(of), quarantine=f"{table}_also", id=f"{_id(table)}_check")
        return good.table(table, id=_id(table))

    others = f"SELECT * FROM raw WHERE NOT ({kept})"
    _operator(name, f"SELECT * FROM raw WHERE {kept}", exact_zeros=True, also=others)(build)


_rules(
    "row rules", "{v} IS NOT NULL", lambda of: Expectation("expect_column_values_to_not_be_null", {"column": of.value})
)
_BETWEEN: Final = {"min_value": -5, "max_value": 5}
_rules(
    "row rules of numbers",
    "{n} IS NULL OR {n} BETWEEN -5 AND 5",
    lambda of: Expectation("expect_column_values_to_be_between", {"column": of.amount, **_BETWEEN}),
)


@_operator("union", "SELECT {id}, {v} FROM raw UNION ALL SELECT -{id} - 1, {v} FROM raw", exact_zeros=True)
def _union(rows: Stream, of: Roles, table: str) -> Stream:
    some = rows.select(of.id, of.value)
    return some.with_column(of.id, of.filled("-{id} - 1"), LongType()).union(some, id=_id(table)).table(table)


@_operator("overwrite", "SELECT * FROM raw WHERE {k} = (SELECT max({k}) FROM raw)", exact_zeros=True)
def _overwrite(rows: Stream, of: Roles, table: str) -> Stream:
    return _present(rows, of.filled("{k} IS NOT NULL")).overwrite(table, version=of.key, id=_id(table))


_PARTITION: Final = "CASE WHEN CAST({k} AS STRING) NOT IN ('', '__HIVE_DEFAULT_PARTITION__') THEN {k} END"
"""A value as a partition column shows it. Spark, too, writes these texts as null."""


@_operator(
    "partitioned append", f"SELECT {{id}}, {_PARTITION} AS {{k}}, {{v}}, {{n}}, {{gone}} FROM raw", exact_zeros=True
)
def _partitioned(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.table(table, id=_id(table), partition_by=[of.key])


def _counted_keys(name: str, partitioned: bool, **more: object) -> None:
    def build(rows: Stream, of: Roles, table: str) -> Stream:
        counted = rows.key_by(of.key).aggregate(_id(table), x=td.count())
        return counted.upsert(table, partition_by=[of.key] if partitioned else [])

    _operator(name, "SELECT {k}, count(*) AS x FROM raw GROUP BY {k}", **more)(build)


_counted_keys("partitioned upsert", True)
_counted_keys("readers of an upsert table", False, filtered="{k}", states=("{k}", "x"))


def _aggregate(name: str, made: Callable[[Roles], AggregateColumn], value: str, kept: str = "true", **more: object):
    def by_key(rows: Stream, of: Roles, table: str) -> Stream:
        return rows.key_by(of.key).aggregate(_id(table), x=made(of), rows_of_key=td.count()).upsert(table)

    def of_all(rows: Stream, of: Roles, table: str) -> Stream:
        return rows.aggregate(_id(table), x=made(of)).upsert(table)

    def again(rows: Stream, of: Roles, table: str) -> Stream:
        some = _present(rows, of.filled(kept)).key_by(of.key)
        newest = td.deduplicate(some, f"{_id(table)}_newest", order_by=of.id, keep="last")
        return newest.key_by(of.gone).aggregate(_id(table), x=made(of)).upsert(table)

    ranked = "SELECT *, row_number() OVER (PARTITION BY {k} ORDER BY {id} DESC) AS nth_ FROM raw WHERE "
    newest = f"(SELECT * FROM ({ranked}{kept}) WHERE nth_ = 1)"
    keep = _operator(name, f"SELECT {{k}}, {value} AS x, count(*) AS rows_of_key FROM raw GROUP BY {{k}}", **more)
    keep(by_key)
    _operator(f"{name} of all", f"SELECT true AS _all, {value} AS x FROM raw", **more)(of_all)
    _operator(f"{name} of changes", f"SELECT {{gone}}, {value} AS x FROM {newest} GROUP BY {{gone}}", **more)(again)


_X: Final = ("x",)
_SMALL: Final = "coalesce(abs(cast({n} AS double)), 0) NOT BETWEEN 1e6 AND 1e300"
"""After large values have left, a variance keeps their rounding error, as the guide says."""
_aggregate("count", lambda of: td.count(of.value), "count({v})")
_aggregate("min", lambda of: td.min_of(of.value), "min({v})")
_aggregate("max", lambda of: td.max_of(of.value), "max({v})")
_aggregate("sum", lambda of: td.sum_of(of.amount), "sum({n})", about=_X)
_aggregate("avg", lambda of: td.avg_of(of.amount), "avg({n})", about=_X)
_aggregate("variance", lambda of: td.var_of(of.amount), "var_samp({n})", _SMALL, about=_X)
_aggregate("variance of all values", lambda of: td.var_of(of.amount, population=True), "var_pop({n})", _SMALL, about=_X)
_aggregate("deviation", lambda of: td.stddev_of(of.amount), "stddev_samp({n})", _SMALL, about=_X)
_aggregate("first", lambda of: td.first_of(of.value, order_by=[of.id]), "min_by({v}, {id})")
_aggregate("last", lambda of: td.last_of(of.value, order_by=[of.id]), "max_by({v}, {id})")
_aggregate("first by value", lambda of: td.first_of(of.id, order_by=[of.value]), "min(struct({v}, {id})).{id}")
_aggregate("last by value", lambda of: td.last_of(of.id, order_by=[of.value]), "max(struct({v}, {id})).{id}")
_aggregate(
    "first not null",
    lambda of: td.first_of(of.value, order_by=[of.id], ignore_nulls=True),
    "min_by({v}, {id}) FILTER (WHERE {v} IS NOT NULL)",
)
_aggregate(
    "min_by", lambda of: td.min_by(of.id, of.value), "min(struct({v}, {id})) FILTER (WHERE {v} IS NOT NULL).{id}"
)
_aggregate(
    "max_by", lambda of: td.max_by(of.id, of.value), "max(struct({v}, {id})) FILTER (WHERE {v} IS NOT NULL).{id}"
)
_aggregate("collect_list", lambda of: td.collect_list(of.value), "collect_list({v})", unordered=_X)
_aggregate("collect_set", lambda of: td.collect_set(of.value), "collect_set({v})", unordered=_X)
_aggregate("count_distinct", lambda of: td.count_distinct(of.value), "count(DISTINCT {v})")
_HASHES: Final = "count(DISTINCT CASE WHEN {v} IS NOT NULL THEN xxhash64({v}) END)"
"""Spark's estimate counts hashes, and `array()` has the hash of `array(NULL)`."""
_aggregate("approx_count_distinct", lambda of: td.approx_count_distinct(of.value), _HASHES)
_aggregate(
    "approx_percentile",
    lambda of: td.approx_percentile(of.amount, 0.5),
    "CASE WHEN count({n}) > 0 THEN element_at(sort_array(collect_list(cast({n} AS double))), "
    "cast(ceil(count({n}) * 0.5) AS int)) END",
    about=_X,
    nearly=0.0101,
)


@_operator(
    "aggregate of an aggregate", "SELECT c, count(*) AS x FROM (SELECT count(*) AS c FROM raw GROUP BY {k}) GROUP BY c"
)
def _twice(rows: Stream, of: Roles, table: str) -> Stream:
    per_key = rows.key_by(of.key).aggregate(f"{_id(table)}_first", c=td.count())
    return per_key.key_by("c").aggregate(_id(table), x=td.count()).upsert(table)


def _first_rows(name: str, keep: Literal["first", "last"], least: str) -> None:
    def build(rows: Stream, of: Roles, table: str) -> Stream:
        some = rows.select(of.key, of.id, of.value).key_by(of.key)
        return td.deduplicate(some, _id(table), order_by=of.id, keep=keep).upsert(table)

    sql = f"SELECT {{k}}, {least}({{id}}) AS {{id}}, {least}_by({{v}}, {{id}}) AS {{v}} FROM raw GROUP BY {{k}}"
    _operator(name, sql)(build)


_first_rows("deduplicate", "first", "min")
_first_rows("deduplicate, last", "last", "max")


def _top(name: str, order: str) -> None:
    def build(rows: Stream, of: Roles, table: str) -> Stream:
        some = rows.select(of.key, of.value, of.id).key_by(of.key)
        return td.top(some, _id(table), n=2, order_by=[of.value + order], row_number="nth").upsert(table)

    nth = f"row_number() OVER (PARTITION BY {{k}} ORDER BY {{v}} {order}, {{id}}) AS nth"
    _operator(name, f"SELECT * FROM (SELECT {{k}}, {{v}}, {{id}}, {nth} FROM raw) WHERE nth <= 2")(build)


_top("top", "")
_top("top, descending", " desc")


@_operator("keys of two columns", "SELECT {k}, {v}, count(*) AS x FROM raw GROUP BY {k}, {v}")
def _two_keys(rows: Stream, of: Roles, table: str) -> Stream:
    return rows.key_by(of.key, of.value).aggregate(_id(table), x=td.count()).upsert(table)


def _right(rows: Stream, of: Roles) -> Stream:
    right = StructType().add("rk", of.kinds[of.key].dataType).add("rid", LongType())
    sql = [of.filled(each) for each in ("{k} AS rk", "{id} AS rid")]
    kept = of.filled("{id} % 2 = 0")
    return rows.transform(lambda frame: frame.filter(kept).selectExpr(*sql), right)


_RIGHT: Final = "(SELECT {k} AS rk, {id} AS rid FROM raw WHERE {id} % 2 = 0)"
_LEFT: Final = "(SELECT {k}, {id}, {v} FROM raw WHERE {id} % 3 > 0)"


def _left(rows: Stream, of: Roles) -> Stream:
    return _present(rows.select(of.key, of.id, of.value), of.filled("{id} % 3 > 0"))


def _join(how: str) -> None:
    def build(rows: Stream, of: Roles, table: str) -> Stream:
        left, right = _left(rows, of).key_by(of.key), _right(rows, of).key_by("rk")
        joined = td.join(left, right, f"{_id(table)}_joined", how=how)  # type: ignore[arg-type] - one of its words
        return joined.key_by(of.id, "rid").aggregate(_id(table), x=td.count(), key=td.min_of(of.key)).upsert(table)

    sql = (
        f"SELECT {{id}}, rid, coalesce({{k}}, rk) AS key FROM {_LEFT} l {how.upper()} JOIN {_RIGHT} r ON l.{{k}} = r.rk"
    )
    query = f"SELECT {{id}}, rid, count(*) AS x, min(key) AS key FROM ({sql}) GROUP BY {{id}}, rid"
    _operator(f"{how} join", query)(build)


for _how in ("inner", "left", "right", "full"):
    _join(_how)


def _appended(name: str, how: Literal["inner", "semi"], columns: str) -> None:
    def build(rows: Stream, of: Roles, table: str) -> Stream:
        left, right = _left(rows, of).key_by(of.key), _right(rows, of).key_by("rk")
        return td.join(left, right, _id(table), how=how).table(table)

    _operator(name, f"SELECT {columns} FROM {_LEFT} l {how.upper()} JOIN {_RIGHT} r ON l.{{k}} = r.rk")(build)


_appended("inner join's rows", "inner", "l.{k}, {id}, {v}, rid")
_appended("semi join", "semi", "{k}, {id}, {v}")


@_operator("anti join", f"SELECT {{id}}, {{k}}, {{v}}, 1L AS x FROM {_LEFT} l ANTI JOIN {_RIGHT} r ON l.{{k}} = r.rk")
def _anti(rows: Stream, of: Roles, table: str) -> Stream:
    left = _left(rows, of).with_column("x", "1", LongType())
    kept = td.join(left.key_by(of.key), _right(rows, of).key_by("rk"), f"{_id(table)}_joined", how="anti")
    return td.deduplicate(kept.key_by(of.id), _id(table), order_by="x").upsert(table)


_NEWEST: Final = (
    "(SELECT *, row_number() OVER (PARTITION BY {k} ORDER BY {id} DESC) AS nth_ FROM raw WHERE {k} IS NOT NULL)"
)


def _applied(rows: Stream, of: Roles, table: str, **more: object) -> Stream:
    changes = _present(rows.select(of.key, of.value, of.id, of.gone), of.filled("{k} IS NOT NULL"))
    told = {"keys": [of.key], "sequence_by": of.id, "apply_as_deletes": of.gone, **more}
    return td.apply_changes(changes, _id(table), **told).upsert(table)  # type: ignore[arg-type] - its own names


_operator(
    "apply_changes",
    f"SELECT {{k}}, {{v}}, {{id}}, {{gone}} FROM {_NEWEST} WHERE nth_ = 1 AND NOT coalesce({{gone}}, false)",
)(_applied)


_HISTORY: Final = (
    "(SELECT {k}, {v}, {id}, {gone}, lead({id}) OVER (PARTITION BY {k} ORDER BY {id}) AS valid_to FROM raw "
    "WHERE {k} IS NOT NULL)"
)


_operator(
    "apply_changes, history",
    "SELECT {k}, {v}, {id}, {gone}, {id} AS valid_from, valid_to, valid_to IS NULL AS current "
    f"FROM {_HISTORY} WHERE NOT coalesce({{gone}}, false)",
)(lambda rows, of, table: _applied(rows, of, table, type=2, track_history_columns=[of.id]))


@_operator("enrich", f"SELECT l.*, 1L AS x FROM {_LEFT} l SEMI JOIN {_RIGHT} r ON l.{{k}} = r.rk")
def _enrich(rows: Stream, of: Roles, table: str) -> Stream:
    right = _present(_right(rows, of), "rk IS NOT NULL").with_column("x", "1", LongType())
    left = _present(_left(rows, of), of.filled("{k} IS NOT NULL"))
    return left.key_by(of.key).connect(right.key_by("rk")).enrich(_id(table), "x").table(table)


def _in_postgres(suffix: str) -> Callable[[Roles, pa.Schema], pa.Table]:
    def read_table(of: Roles, columns: pa.Schema) -> pa.Table:
        with psycopg.connect(postgres().url()) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            names = sql.SQL(", ").join(map(sql.Identifier, columns.names))
            query = sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(of.place + suffix))
            found = connection.execute(query).fetchall()
        given = [list(column) for column in zip(*found, strict=True)] or [[]] * len(columns)
        return pa.table([pa.array(each, field.type) for each, field in zip(given, columns, strict=True)], columns)

    return read_table


@_operator(
    "sink to PostgreSQL", "SELECT {id}, {k}, {n}, {gone} FROM raw", exact_zeros=True, elsewhere=_in_postgres("_sink")
)
def _postgres_sink(rows: Stream, of: Roles, table: str) -> Stream:
    sink = PostgresSink(postgres().url(), f"{of.place}_sink")
    return rows.select(of.id, of.key, of.amount, of.gone).table(table, id=_id(table), sink=sink)


def _from_json(lines: list[bytes], columns: pa.Schema) -> pa.Table:
    spark, schema = SparkSession.active(), from_arrow_schema(columns, prefer_timestamp_ntz=True)
    rows = spark.createDataFrame([(bytearray(line),) for line in lines], "line binary")
    parsed = rows.select(F.from_json(F.expr("decode(line, 'utf-8')"), schema, {"mode": "FAILFAST"}).alias("row"))
    return parsed.select("row.*").toArrow()


@_operator(
    "sink to Kafka",
    "SELECT {id}, {k}, {v}, {gone} FROM raw",
    exact_zeros=True,
    elsewhere=lambda of, columns: _from_json([value for *_, value in read(topic(f"{of.place}-sink"))], columns),
)
def _kafka_sink(rows: Stream, of: Roles, table: str) -> Stream:
    sink = KafkaSink(kafka().servers, topic(f"{of.place}-sink").name, key=of.id)
    return rows.select(of.id, of.key, of.value, of.gone).table(table, id=_id(table), sink=sink)


_COUNTED: Final = "SELECT {k}, count(*) AS x FROM raw WHERE {k} IS NOT NULL GROUP BY {k}"


def _counted(rows: Stream, of: Roles, table: str, sink: td.UpsertSink) -> Stream:
    keyed = _present(rows, of.filled("{k} IS NOT NULL")).key_by(of.key)
    return keyed.aggregate(_id(table), x=td.count()).upsert(table, sink=sink)


def _last_of_keys(of: Roles, columns: pa.Schema) -> pa.Table:
    return _from_json(list({key: value for _, _, key, value in read(topic(f"{of.place}-upsert"))}.values()), columns)


_operator("upsert sink to PostgreSQL", _COUNTED, elsewhere=_in_postgres("_upsert"))(
    lambda rows, of, table: _counted(rows, of, table, PostgresSink(postgres().url(), f"{of.place}_upsert"))
)
_operator("upsert sink to Kafka", _COUNTED, elsewhere=_last_of_keys)(
    lambda rows, of, table: _counted(rows, of, table, KafkaSink(kafka().servers, topic(f"{of.place}-upsert").name))
)


@dataclass(frozen=True)
class Passes:
    """Counts the rows of each key. Polars groups NaN keys, but does not join them."""

    key: str
    state_version = 1

    def process(self, inputs, state):
        new = inputs[0].select(self.key, seen=pl.lit(1, pl.Int64), new=True)
        both = pl.concat([new, state.select(self.key, "seen", new=False)]).group_by(self.key)
        kept = both.agg(pl.col("seen").sum(), pl.col("new").any()).filter("new").drop("new")
        return Processed(state=kept, output=kept)


@_operator("function", "SELECT {k}, count(*) AS seen FROM raw GROUP BY {k}", states=("{k}", "seen"))
def _function(rows: Stream, of: Roles, table: str) -> Stream:
    seen = StructType().add("seen", LongType())
    output = StructType().add(of.key, of.kinds[of.key].dataType).add("seen", LongType())
    return rows.key_by(of.key).process(_id(table), Passes(of.key), state=seen, output=output).upsert(table)


@dataclass(frozen=True)
class Meets:
    """Emits each key with the id of the broadcast row of the same key, and keeps this id."""

    key: str
    state_version = 1

    def process(self, inputs, state):
        return self._met(inputs[0], inputs[1])

    def broadcast_changed(self, state, broadcast):
        return self._met(state, broadcast)

    def _met(self, rows, broadcast):
        keys = rows.select(self.key, rid=pl.lit(None, pl.Int64), new=True)
        known = broadcast.select(pl.col("rk").alias(self.key), "rid", new=False)
        both = pl.concat([keys, known]).group_by(self.key)
        met = both.agg(pl.col("rid").max(), pl.col("new").any()).filter("new").drop("new")
        return Processed(state=met, output=met)


@_operator(
    "broadcast",
    f"SELECT l.{{k}}, max(rid) AS rid FROM {_LEFT} l LEFT JOIN {_RIGHT} r ON l.{{k}} <=> r.rk GROUP BY l.{{k}}",
    states=("{k}", "rid"),
    also=f"SELECT rk, max(rid) AS rid FROM {_RIGHT} GROUP BY rk",
)
def _broadcast(rows: Stream, of: Roles, table: str) -> Stream:
    state = StructType().add("rid", LongType())
    output = StructType().add(of.key, of.kinds[of.key].dataType).add("rid", LongType())
    met = td.broadcast(_right(rows, of), "rk", latest_by="rid").connect(_left(rows, of).key_by(of.key))
    return met.process(_id(table), Meets(of.key), state=state, output=output).upsert(table)
