"""Tests what DebeziumSource decides without a server: column types, settings of the engine, and changed tables."""

import json

import pytest

from jobs.sources.debezium.changes import DebeziumSource
from jobs.sources.debezium.running import Said
from jobs.sources.debezium.server import BinlogServer, LogPlace, described_table, type_of_text
from jobs.sources.debezium.staging import DebeziumReading, EventRows, _exactly
from jobs.sources.port import SourceError

URL = "mysql://u:p%40ss@db:3307/shop"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tinyint(1)", "boolean"),
        ("tinyint(4) unsigned", "smallint"),
        ("smallint(5) unsigned zerofill", "int"),
        ("mediumint unsigned", "int"),
        ("int unsigned", "bigint"),
        ("bigint(20)", "bigint"),
        ("decimal(38,9)", "decimal(38,9)"),
        ("decimal(39,9)", "string"),
        ("float(7,4)", "float"),
        ("bit(1)", "boolean"),
        ("bit(9)", "binary"),
        ("enum('a(1)','unsigned')", "string"),
        ("varchar(20)", "string"),
    ],
)
def test_a_type_of_the_server_becomes_a_spark_type(text, found):
    assert found == type_of_text(text)


def test_an_event_describes_a_table_as_the_catalog_does():
    """Debezium writes length and scale of a type beside the type's name."""
    columns = [("id", "BIGINT UNSIGNED", 20, None), ("price", "DECIMAL", 12, 2), ("ok", "BOOLEAN", None, None)]
    columns += [("d", "DOUBLE PRECISION", None, None), ("n", "INT UNSIGNED ZEROFILL", 10, None)]
    said = {"id": '"shop"."my orders"', "table": {"primaryKeyColumnNames": ["id"], "columns": []}}
    for name, kind, length, scale in columns:
        said["table"]["columns"].append({"name": name, "typeName": kind, "length": length, "scale": scale})
    table = described_table("shop", said)
    assert ("shop.my orders", ("id",)) == (table.full_name, table.keys)
    assert ["decimal(20,0)", "decimal(12,2)", "boolean", "double", "bigint"] == [each.type for each in table.columns]


def test_mysql_gets_its_own_connector_and_names_are_no_patterns(tmp_path):
    reading = DebeziumReading(
        server=BinlogServer(URL), tables=["a.b", "c$"], snapshot="none", new_columns="fail", settings={"x": "y"}
    )
    settings = reading.engine({"file": "f"}, ["line"])
    properties = settings.properties
    assert "io.debezium.connector.mysql.MySqlConnector" == properties["connector.class"]
    assert ("db", "3307", "u", "p@ss") == tuple(
        properties[f"database.{name}"] for name in ("hostname", "port", "user", "password")
    )
    assert r"shop\.a\.b,shop\.c\$" == properties["table.include.list"]
    assert ("no_data", "y") == (properties["snapshot.mode"], properties["x"])
    assert {"offset": {"file": "f"}, "history": ["line"]}.items() <= json.loads(settings.text([])).items()
    for shown in (repr(settings), repr(reading), repr(DebeziumSource(URL, ["a"], staged=tmp_path))):
        assert "p@ss" not in shown
        assert "p%40ss" not in shown
    assert r"my\ table" == _exactly("my table")


def test_declared_columns_need_no_server(tmp_path):
    source = DebeziumSource(URL, ["a"], staged=tmp_path, schema={"a": "id int, price decimal(9,2)"})
    assert "shop_a:struct<id:int,price:decimal(9,2)>" in source.schema().simpleString()
    with pytest.raises(SourceError, match="which no column gets"):
        DebeziumSource(URL, ["a"], staged=tmp_path, schema={"a": "id map<string,int>"})
    with pytest.raises(SourceError, match="name the same tables"):
        DebeziumSource(URL, ["a"], staged=tmp_path, schema={"b": "id int"})


class Answers:
    """An engine's answers to two questions of the source."""

    def said(self):
        yield Said("I", "binlog.000009 7")
        yield Said("D", '{"tableChanges": []}', '{"pos": 9}')
        yield Said("I", "binlog.000010 4")
        raise AssertionError("the source reads on, although the place was reached")


def test_an_answer_to_an_older_question_is_no_answer_to_this_one(tmp_path):
    """The source asked for a first place, and had enough rows before the answer came.

    Then it asked for a later place.
    """
    source = DebeziumSource("mariadb://tick:word@db/shop", ["giro"], staged=tmp_path)
    staging = source._staging
    assert not staging._take(Answers(), EventRows((), None), (), LogPlace("binlog.000010", 4), 1)
    assert {"pos": 9} == staging._offset
