"""The allowed changes of a state: columns are added, dropped and widened. No other change is allowed (D6)."""

import pytest

from checkpointing.state_evolution import Column, Compatibility, StateSchema, is_wider, reads_narrower, verdict
from checkpointing.state_evolution import changes as changes_of
from checkpointing.state_meaning import Argument, ColumnMeaning, meaning_changes


def struct(**fields):
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def array(element):
    return {"type": "array", "elementType": element}


def schema(keys=("k",), /, **columns):
    """Return a state schema. Without types, every column is long."""
    return StateSchema(tuple(Column(name, kind) for name, kind in columns.items()), keys)


def changes(was, now):
    return changes_of("state of operator 'sums'", was, now)


WAS = schema(k="string", total="integer", note="string")


def test_adding_dropping_and_widening_columns_is_a_migration():
    """Each change is reported by column, and none is refused."""
    found = changes(WAS, schema(k="string", total="long", extra="double"))
    expected = [
        "state of operator 'sums': column total was int and is now bigint",
        "state of operator 'sums': column extra (double) is new, null in old rows",
        "state of operator 'sums': column note (string) is dropped",
    ]
    assert expected == [str(change) for change in found]
    assert ["widened", "null in old rows", "dropped"] == [change.verdict for change in found]
    assert Compatibility.AFTER_MIGRATION is verdict(found)


def test_another_type_is_refused_with_the_way_out():
    """The message names the column, both types, and what can be done."""
    (found,) = changes(WAS, schema(k="string", total="string", note="string"))
    assert Compatibility.INCOMPATIBLE is verdict([found])
    assert str(found) == (
        "state of operator 'sums': column total was int and is now string: old values might not survive that; keep "
        "int, or give the new column another name, or give the operator another id and start it without state"
    )
    assert "refused" == found.verdict


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (schema(k="string", v="long"), schema(k="long", v="long")),
        (schema(k="integer", v="long"), schema(k="long", v="long")),
        (schema(("k",), k="string", v="string"), schema(("k", "v"), k="string", v="string")),
        (schema(("k", "v"), k="string", v="string"), schema(("k",), k="string")),
        (schema(("a", "b"), a="string", b="string"), schema(("b", "a"), b="string", a="string")),
        (StateSchema((Column("a", "string"),), None), schema(("b",), b="string")),
    ],
)
def test_a_changed_key_is_refused(was, now):
    """A wider type, other names, another order or number: each could move a row to another key group."""
    refused = [change.refused for change in changes(was, now) if change.refused]
    assert 1 == len(refused)
    assert "other key groups" in refused[0]


WIDER = [
    ("byte", "short"),
    ("short", "long"),
    ("integer", "long"),
    ("integer", "double"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
    ("decimal(10,2)", "decimal(12,2)"),
    ("decimal(10,2)", "decimal(12,4)"),
    ("integer", "decimal(12,2)"),
    ("long", "decimal(20,0)"),
    (struct(a="integer"), struct(a="long", b="string")),
    (struct(a="integer", b="string"), struct(a="integer")),
    (array(struct(a="float")), array(struct(a="double", b="date"))),
    (
        {"type": "map", "keyType": "string", "valueType": "byte"},
        {"type": "map", "keyType": "string", "valueType": "short"},
    ),
]

NOT_WIDER = [
    ("long", "integer"),
    ("long", "double"),
    ("double", "float"),
    ("integer", "float"),
    ("date", "timestamp"),
    ("timestamp_ntz", "timestamp"),
    ("string", "long"),
    ("boolean", "integer"),
    ("decimal(10,2)", "decimal(10,3)"),
    ("decimal(10,2)", "decimal(12,1)"),
    ("decimal(5,0)", "long"),
    ("long", "decimal(19,0)"),
    ("integer", "decimal(10,2)"),
    ("string", array("string")),
    (struct(a="long"), struct(a="integer")),
    (array("long"), array("integer")),
    (array("long"), struct(a="long")),
    ({"type": "map", "keyType": "byte", "valueType": "byte"}, {"type": "map", "keyType": "short", "valueType": "byte"}),
]


@pytest.mark.parametrize(("was", "now"), WIDER)
def test_widening_loses_no_value(was, now):
    """Delta's list of widenings counts at every depth. Fields of a struct come and go like columns."""
    assert is_wider(was, now)


@pytest.mark.parametrize(("was", "now"), NOT_WIDER)
def test_a_change_that_could_lose_a_value_is_no_widening(was, now):
    """Examples are narrowing, another kind of type, a date that depends on a time zone, and the key of a map."""
    assert not is_wider(was, now)


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("long", "bigint"),
        ("string", "string"),
        (array("short"), "array<smallint>"),
        (struct(a="integer", b=array("byte")), "struct<a: int, b: array<tinyint>>"),
        ({"type": "map", "keyType": "string", "valueType": struct(v="long")}, "map<string, struct<v: bigint>>"),
        ({"type": "udt", "class": "Point"}, "udt"),
    ],
)
def test_a_message_shows_types_in_sql(kind, written):
    """A user reads `bigint`, also inside arrays, structs and maps, and never the engine's notation."""
    (found,) = changes(schema(k="string"), schema(k="string", v=kind))
    assert str(found).endswith(f"column v ({written}) is new, null in old rows")


@pytest.mark.parametrize(
    ("was", "now", "fits"),
    [
        ("byte", "long", True),
        ("integer", "long", True),
        ("float", "double", True),
        ("decimal(10,2)", "decimal(22,2)", True),
        ("decimal(10,2)", "decimal(14,4)", False),
        ("integer", "double", False),
        ("integer", "decimal(20,0)", False),
        ("date", "timestamp_ntz", False),
        ("long", "integer", False),
    ],
)
def test_what_readers_convert_by_themselves(was, now, fits):
    """Measured with Spark, delta-rs, Polars and DuckDB. It is a part of what is wider, and holds inside values too."""
    assert fits == reads_narrower(was, now)
    assert not fits or is_wider(was, now)
    structs = [{"type": "struct", "fields": [{"name": "f", "type": kind}]} for kind in (was, now)]
    assert fits == reads_narrower(*structs)
    arrays = [{"type": "array", "elementType": kind} for kind in (was, now)]
    assert fits == reads_narrower(*arrays)


# ------------------------------------------------------------------
# A pipeline may use old state only if its columns still have the same meanings (D6).


THING = "state of operator 'sums'"
V = Argument("v", "bigint")


def meaning(function, *arguments, column="m", version=1):
    return ColumnMeaning(column=column, function=function, arguments=arguments, version=version)


def differences(was, now, held=("k", "m")):
    return meaning_changes(THING, None if was is None else [was], [now], held)


def test_the_refusal_names_operator_column_meanings_and_every_way_out():
    """They are a new column name, a new operator id with earlier rows read again, and another warehouse."""
    (found,) = differences(meaning("max", V), meaning("count"))
    said = str(found)
    assert said.startswith("state of operator 'sums': column m was max(v bigint) and is now count(): ")
    for way_out in ("keep max(v bigint)", "another name", "another id", "'tidemark reset'", "--warehouse EMPTY_FOLDER"):
        assert way_out in said


def test_an_unrecorded_meaning_is_accepted():
    """So a job of an older version goes on. The report says that no meanings were compared."""
    (found,) = differences(None, meaning("count"))
    assert ("not recorded", "count()", "") == (found.was, found.now, found.refused)
    assert "older format" in found.verdict
