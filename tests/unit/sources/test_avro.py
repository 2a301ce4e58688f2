"""Tests Avro's types, and the decoding of single records without Spark."""

import json

import pyarrow as pa
import pytest

from jobs.sources.avro.schemas import AvroTypeError, column_types, written_out
from jobs.sources.kafka.records import UNDECODED_COLUMN, record_form
from jobs.sources.port import SourceError
from tests.avro_types import FIELDS, READ, RECORD, SCHEMA, encoded

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}, {"name": "who", "type": "string"}]}
ORDER_2 = {**ORDER, "fields": [*ORDER["fields"], {"name": "tag", "type": ["null", "string"], "default": None}]}


def record(avro):
    """Return a schema with one field."""
    return {"type": "record", "name": "One", "fields": [{"name": "f", "type": avro}]}


def decoded(values, schema, **given):
    """Return the rows of these values."""
    form = record_form("avro", schema, (), **given)
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "_position": list(range(len(values)))})
    (found,) = form.avro.run(iter([batch]))
    return found.to_pylist()


def test_each_type_becomes_one_of_spark():
    """The table in the module's docstring lists them."""
    types = {name: each.spark.simpleString() for name, each in column_types(written_out(SCHEMA, "it")).items()}
    assert {name: spark for name, _, _, spark, _ in FIELDS} == types
    assert list(types) == record_form("avro", json.dumps(SCHEMA), ()).value.names


def test_each_value_is_decoded():
    """Logical types may be at any depth."""
    (row,) = decoded([encoded(SCHEMA, RECORD)], SCHEMA)
    assert row.pop("map") == [("a", 1)]
    assert {name: value for name, value in READ.items() if name != "map"} == {
        name: row[name] for name in row if name in READ
    }
    assert (0, None) == (row["_position"], row[UNDECODED_COLUMN])


@pytest.mark.parametrize(
    ("avro", "said"),
    [
        ("null", "field f is always null"),
        (["int", "string"], "field f is a union of 2 types besides null"),
        (["null"], "field f is a union of 0 types besides null"),
        ({"type": "array", "items": ["int", "long"]}, r"field f\[\] is a union"),
        ({"type": "record", "name": "Empty", "fields": []}, "field f is a record without fields"),
        (
            {"type": "record", "name": "Tree", "fields": [{"name": "up", "type": ["null", "Tree"]}]},
            "field f.up is a Tree",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0}, r"field f is a decimal\(39, 0\)"),
    ],
)
def test_a_type_that_spark_does_not_have_is_refused_by_name(avro, said):
    """The message names the field before anything is read."""
    (found,) = column_types(written_out(record(avro), "it")).values()
    assert isinstance(found, AvroTypeError)
    with pytest.raises(SourceError, match=f"cannot be read into columns: {said}.*format='raw'"):
        record_form("avro", record(avro), ())


def test_bytes_that_are_no_record_are_kept():
    """They are too short or too long, or have other values or numbers that do not fit. A null value is no error."""
    good = encoded(ORDER, {"n": 1, "who": "a"})
    wide = encoded({**ORDER, "fields": [{"name": "n", "type": "long"}, ORDER["fields"][1]]}, {"n": 2**40, "who": "a"})
    bad = [b"", good[:-1], good + b"\0", b"\x02\x02\xff", wide, b"\xff" * 12]
    rows = decoded([good, None, *bad, good], ORDER)
    assert [1, None, *[None] * len(bad), 1] == [row["n"] for row in rows]
    assert [None, None, *bad, None] == [row[UNDECODED_COLUMN] for row in rows]


def test_confluents_wire_format_names_the_schema_of_each_record():
    """A record is decoded with the schema that wrote it. If the number is unknown, the bytes are kept."""
    first = b"\0\0\0\0\x07" + encoded(ORDER, {"n": 1, "who": "a"})
    second = b"\0\0\0\0\x09" + encoded(ORDER_2, {"n": 2, "who": "b", "tag": "t"})
    bad = [b"\0\0\0\0\x08" + first[5:], b"\x01" + first[1:], b"\0\0\0", first[5:]]
    rows = decoded([first, second, *bad], ORDER_2, writers={7: ORDER, 9: ORDER_2})
    assert [(1, "a", None), (2, "b", "t")] == [(row["n"], row["who"], row["tag"]) for row in rows[:2]]
    assert [None, None, *bad] == [row[UNDECODED_COLUMN] for row in rows]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("avro", None, ()), "needs schema=, the Avro schema"),
        (("avro", "{", ()), "is no JSON"),
        (("avro", {"type": "record"}, ()), "is no Avro schema"),
        (("avro", "string", ()), "is no JSON"),
        (("avro", '"string"', ()), "it describes no record"),
        (("avro", {**ORDER, "fields": []}, ()), "its record has no fields"),
        (("avro", ORDER, (), {1: "x"}), "schema 1 of a KafkaSource is no JSON"),
        (("raw", None, (), {1: ORDER}), "has no writer_schemas: they are for format='avro'"),
    ],
)
def test_unusable_schemas_are_refused_in_the_pipeline_code(given, said):
    """The refusal is one sentence."""
    with pytest.raises(SourceError, match=said):
        record_form(*given)
