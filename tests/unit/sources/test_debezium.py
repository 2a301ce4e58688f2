"""Decodes Debezium's events of each database, as Debezium's documentation shows them and its converters write them."""

import base64
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.sources.change_rows import HEAD
from jobs.sources.debezium.columns import Encodings, RowColumns
from jobs.sources.debezium.connect_types import NoEventError, of_avro, of_json_block, spark_columns
from jobs.sources.debezium.envelope import boundary_of, change_rows, json_event, rows_of
from jobs.sources.python.ddl import schema_of_text

POSTGRES = {"connector": "postgresql", "name": "b", "db": "bank", "schema": "public", "table": "giro", "ts_ms": 1_000}
POSTGRES |= {"txId": 555, "lsn": 24_023_128, "snapshot": "false"}
MYSQL = {"connector": "mysql", "db": "bank", "table": "giro", "ts_ms": 2_000, "ts_us": 2_000_123}
MYSQL |= {"file": "mysql-bin.000003", "pos": 484, "snapshot": "false"}
SQL_SERVER = {"connector": "sqlserver", "db": "bank", "schema": "dbo", "table": "giro", "ts_ms": 3_000}
SQL_SERVER |= {"commit_lsn": "00000027:00000758:0005", "snapshot": "true"}
MONGODB = {"connector": "mongodb", "db": "bank", "collection": "giro", "ts_ms": 5_000, "ord": 7, "snapshot": "false"}


def event(op, source, before=None, after=None, key=None, **more):
    said = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 9, **more}
    return json_event(json.dumps(said), None if key is None else json.dumps(key))


def rows(found):
    return [tuple(row) for row in rows_of(found)]


def test_each_database_names_its_table_and_its_place():
    def head(found):
        return found.table, found.lsn, found.xid, found.committed_us, found.place

    row = {"id": 1}
    assert head(event("c", POSTGRES, after=row)) == ("public.giro", 24_023_128, 555, 1_000_000, "postgresql 0/16E9058")
    assert head(event("c", MYSQL, after=row)) == (
        "bank.giro", (3 << 32) + 484, None, 2_000_123, "mysql mysql-bin.000003:484",
    )  # fmt: skip
    assert head(event("r", SQL_SERVER, after=row)) == (
        "bank.dbo.giro", None, None, None, "sqlserver 00000027:00000758:0005",
    )  # fmt: skip
    assert head(event("r", POSTGRES, after=row))[1:4] == (24_023_128, None, None)
    document = json.dumps({"_id": {"$oid": "5f"}, "balance": 3})
    found = event("c", MONGODB, after=document, key={"id": '{"$oid": "5f"}'})
    assert (found.table, found.lsn) == ("bank.giro", (5 << 32) + 7)
    assert rows(found) == [("insert", {"id": '{"$oid": "5f"}', "document": document})]


def test_each_op_gives_the_rows_of_postgres_changes():
    old, new = {"id": 1, "balance": 2}, {"id": 1, "balance": 3}
    assert rows(event("r", MYSQL, after=new)) == [("snapshot", new)]
    assert rows(event("c", MYSQL, after=new)) == [("insert", new)]
    assert rows(event("u", MYSQL, old, new)) == [("update_before", old), ("update_after", new)]
    assert rows(event("u", POSTGRES, None, new)) == [("update_after", new)]
    assert rows(event("d", POSTGRES, old)) == [("delete", old)]
    assert rows(event("t", POSTGRES)) == [("truncate", None)]
    assert rows(event("d", MONGODB, key={"id": "7"})) == [("delete", {"id": "7"})]
    assert event("m", POSTGRES) is None
    assert json_event(None, '{"id": 1}') is None
    assert json_event('{"ts_ms": 1}') is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('{"id": 1, "balance": 2}', "flattens events"),
        ('{"op": "x", "source": {"table": "t"}}', "one of r, c, u, d, t"),
        ('{"op": "c", "source": {"table": "t"}, "after": 3}', "a row in it is a int"),
        ('{"op": "c", "source": {}, "after": {}}', "names no table"),
        ("[1]", "is a list"),
        ("{", "is no JSON"),
    ],
)
def test_a_record_that_is_no_event_says_what_it_lacks(value, says):
    with pytest.raises(NoEventError, match=says):
        json_event(value)


def test_an_update_without_its_document_names_the_setting():
    with pytest.raises(NoEventError, match="change_streams_update_full"):
        rows(event("u", MONGODB, key={"id": "7"}))


FIELDS = [
    {"field": "id", "type": "int32"},
    {"field": "small", "type": "int16"},
    {"field": "balance", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
     "parameters": {"scale": "2", "connect.decimal.precision": "12"}},
    {"field": "wide", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
     "parameters": {"scale": "3", "connect.decimal.precision": "60"}},
    {"field": "free", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal",
     "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]},
    {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
    {"field": "ms", "type": "int64", "name": "io.debezium.time.Timestamp"},
    {"field": "us", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    {"field": "ns", "type": "int64", "name": "io.debezium.time.NanoTimestamp"},
    {"field": "at", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
    {"field": "daytime", "type": "int64", "name": "io.debezium.time.MicroTime"},
    {"field": "doc", "type": "string", "name": "io.debezium.data.Json"},
    {"field": "tags", "type": "array", "items": {"type": "string", "optional": True}},
    {"field": "raw", "type": "bytes"},
]  # fmt: skip
BLOCK = {"type": "struct", "fields": [
    {"field": "before", "type": "struct", "fields": FIELDS}, {"field": "after", "type": "struct", "fields": FIELDS},
]}  # fmt: skip


def encoded(number):
    return base64.b64encode(number.to_bytes(24, signed=True)).decode()


def test_an_event_that_tells_its_types_needs_no_declared_column():
    us = 1_700_000_000_123_456
    row = {"id": 1, "small": 2, "balance": encoded(-12345), "wide": encoded(10**50), "day": 19_000, "ms": us // 1000}
    row |= {"free": {"scale": 4, "value": encoded(15)}, "us": us, "ns": us * 1000 + 999, "doc": '{"a": 1}'}
    row |= {"at": "2026-01-31T12:00:00.5+02:00", "daytime": 45_000_500_000, "tags": ["a", None]}
    row |= {"raw": base64.b64encode(b"__debezium_unavailable_value").decode()}
    said = {"schema": BLOCK, "payload": {"op": "c", "source": POSTGRES, "after": row}}
    for text in (json.dumps(said, separators=(",", ":")), json.dumps({"payload": said["payload"], "schema": BLOCK})):
        found = json_event(text)
        columns = spark_columns(found.types)
        assert columns.simpleString() == (
            "struct<id:int,small:smallint,balance:decimal(12,2),wide:string,free:string,day:date,ms:timestamp_ntz,"
            "us:timestamp_ntz,ns:timestamp_ntz,at:timestamp,daytime:string,doc:string,tags:array<string>,raw:binary>"
        )
        values, unsent = RowColumns(columns).values(found.after, found.types)
        assert values == [
            1, 2, Decimal("-123.45"), "1" + "0" * 47 + ".000", "0.0015", 19_000, us // 1000 * 1000, us, us,
            1_769_853_600_500_000, "12:30:00.5", '{"a": 1}', ["a", None], None,
        ]  # fmt: skip
        assert unsent == ["raw"]
    assert pa.array([values[7]], pa.timestamp("us"))[0].as_py().isoformat() == "2023-11-14T22:13:20.123456"


def test_avro_tells_the_same_types():
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    decimal |= {"connect.name": "org.apache.kafka.connect.data.Decimal", "connect.parameters": {"scale": "2"}}
    fields = [
        {"name": "id", "type": {"type": "int", "connect.type": "int16"}},
        {"name": "balance", "type": ["null", decimal]},
        {"name": "us", "type": ["null", {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}]},
    ]
    columns = spark_columns(of_avro({"type": "record", "name": "Value", "fields": fields}))
    assert columns.simpleString() == "struct<id:smallint,balance:decimal(12,2),us:timestamp_ntz>"


def test_without_types_the_connectors_settings_say_what_a_value_means():
    columns = schema_of_text("balance decimal(12,2), at timestamp_ntz")

    def read(encodings, **row):
        return RowColumns(columns, encodings).values(row)[0]

    assert read(Encodings(), balance=1.5, at="2026-01-31T12:00:00") == [Decimal("1.50"), 1_769_860_800_000_000]
    assert read(Encodings(decimals="string", times="millis"), balance="1234", at=7) == [Decimal(1234), 7_000]
    assert read(Encodings(decimals="precise", times="nanos"), balance=encoded(150), at=7_999) == [Decimal("1.50"), 7]
    with pytest.raises(NoEventError, match="decimals='precise' or 'string'"):
        read(Encodings(), balance="1234")
    with pytest.raises(NoEventError, match="times='millis'"):
        read(Encodings(), at=7)
    with pytest.raises(NoEventError, match="more digits"):
        read(Encodings(), balance=1.555)


def test_a_row_has_the_head_and_the_columns():
    columns = RowColumns(schema_of_text("id int, balance int"))
    assert [*change_rows(event("u", POSTGRES, {"id": 1}, {"id": 1, "balance": 3}), columns)] == [
        ("update_before", "public.giro", 24_023_128, 555, 1_000_000, None, 1, None),
        ("update_after", "public.giro", 24_023_128, 555, 1_000_000, None, 1, 3),
    ]


def test_boundaries_of_transactions():
    listed = [{"data_collection": "public.giro", "event_count": 2}]
    end = {"status": "END", "id": "571:53195832", "ts_ms": 1, "event_count": 2, "data_collections": listed}
    assert boundary_of(json.dumps(end)) == ("571:53195832", True, {"public.giro": 2})
    assert boundary_of({"status": "BEGIN", "id": "571", "data_collections": None}) == ("571", False, {})
    with pytest.raises(NoEventError, match="topic that ends in"):
        boundary_of('{"op": "c"}')


def test_a_type_that_is_no_type_is_refused():
    with pytest.raises(ValueError, match="Kafka Connect"):
        of_json_block({"type": "money"})


RECORDED = json.loads((Path(__file__).parent / "debezium_postgresql.json").read_text(encoding="utf-8"))
"""What Debezium 3.5.0 wrote for a table of PostgreSQL 18, for each `time.precision.mode`.

With `connect`, `decimal.handling.mode` was `string`. The block `schema` is kept only once, with only the table.
"""


@pytest.mark.parametrize("mode", ["adaptive", "connect"])
def test_what_debezium_wrote_for_a_table_of_postgresql(mode):
    """The row is the same in both modes, except for what a mode leaves out.

    Its key changes, and its large value stays.
    """
    schema, found = RECORDED[mode]["schema"], []
    for topic, key, payload in RECORDED[mode]["records"]:
        if topic.endswith("transaction"):
            assert boundary_of(payload).id
        else:
            value = payload and json.dumps({"schema": schema, "payload": payload}, separators=(",", ":"))
            said = json_event(value, json.dumps(key))
            if said is not None:
                columns = RowColumns(spark_columns(said.types))
                found += [dict(zip([*HEAD.names, *columns.columns.names], row, strict=True))
                          for row in change_rows(said, columns)]  # fmt: skip
    kinds = [(row["_kind"], row["id"], row["_unchanged"]) for row in found]
    assert kinds == [
        ("snapshot", 1, None), ("insert", 2, None), ("update_after", 2, ["note"]), ("delete", 2, None),
        ("insert", 3, ["note"]), ("delete", 3, None), ("update_before", 1, None), ("update_after", 1, None),
        ("truncate", None, None),
    ]  # fmt: skip
    own = {name: value for name, value in found[0].items() if not name.startswith("_")}
    us = 1_769_860_800_123_456 if mode == "adaptive" else 1_769_860_800_123_000
    assert own == {
        "id": 1, "small": 2, "balance": Decimal("-123.45") if mode == "adaptive" else "-123.45", "free": "0.0015",
        "wide": "1" + "0" * 50 + ".000", "day": 19_000, "ts": us, "ts3": 1_769_860_800_123_000,
        "at": 1_769_853_600_500_000, "t": "12:30:00.5", "note": None, "doc": '{"a": 1}',
        "u": "7d0c8a4a-3f0e-4f6e-9a3c-2b6b3f1f6a55", "tags": ["a", None], "raw": b"\x01\x02", "ok": True, "r": 1.5,
        "d": 2.5, "i": 86_400_000_000,
    }  # fmt: skip
    assert {"public.giro"} == {row["_table"] for row in found}
    assert [756, 757, 758, 758, 759] == [row["_xid"] for row in found[1:6]]
