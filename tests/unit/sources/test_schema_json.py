"""Tests that JSON beside input is data: it becomes a schema or an error, and never imports a module."""

import json
import sys
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.delta.delta_source import DeltaSource
from jobs.sources.files.file_source import FOUND, FileSource
from jobs.sources.port import SourceError
from jobs.sources.schema_json import NESTING_MAX, SchemaJsonError, schema_of_json
from tests.unit.sources.delta_tables import append, poll

MODULE = "a_strangers_module"
STRANGER = {"type": "udt", "class": "X", "pyClass": f"{MODULE}.Kind", "sqlType": "integer"}
SCHEMA = StructType().add("id", "long").add("word", "string")


@pytest.fixture(autouse=True)
def stranger(tmp_path, monkeypatch):
    """Put a module on the path that PySpark's parser would import, and check that it was not imported."""
    folder = tmp_path / "importable"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text("class Kind:\n    pass\n")
    monkeypatch.syspath_prepend(str(folder))
    yield
    assert MODULE not in sys.modules


def struct(*kinds, **also):
    fields = [{"name": f"c{i}", "type": kind, "nullable": True, "metadata": {}} | also for i, kind in enumerate(kinds)]
    return {"type": "struct", "fields": fields}


def nested(kind, depth):
    for _ in range(depth):
        kind = {"type": "array", "elementType": kind, "containsNull": True}
    return kind


NAMES = ["integer", "string", "timestamp_ntz", "decimal(38,18)", "varchar(3)", "interval day to second", "time(6)"]
GOOD = st.recursive(
    st.sampled_from(NAMES),
    lambda inner: st.one_of(
        st.builds(lambda each: nested(each, 1), inner),
        st.builds(
            lambda one, other: {"type": "map", "keyType": one, "valueType": other, "valueContainsNull": False},
            inner,
            inner,
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda kinds: struct(*kinds)),
    ),
    max_leaves=8,
)
ODD = st.recursive(
    st.one_of(
        st.none(),
        st.integers(),
        st.text(max_size=5),
        st.sampled_from(
            [*NAMES, "udt", "decimal(99,1)", "decimal(1,9)", "decimal(x)", "interval day to year", STRANGER]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "fields", "name", "nullable", "metadata", "elementType", "containsNull", "pyClass"]
            ),
            inner,
            max_size=5,
        ),
        st.lists(inner, max_size=3).map(lambda kinds: struct(*kinds)),
        st.builds(lambda each: nested(each, 1), inner),
        st.builds(lambda each, about: struct(each, metadata=about), inner, inner),
        st.builds(lambda each: struct("string", metadata={"__COLLATIONS": each}), inner),
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(GOOD, max_size=4))
def test_each_schema_is_read_as_spark_reads_it(kinds):
    """A schema without a user-defined type comes back as it is, from its value and from its text."""
    said = struct(*kinds)
    wanted = StructType.fromJson(said)
    assert wanted == schema_of_json(said) == schema_of_json(json.dumps(said)) == schema_of_json(wanted.jsonValue())


@settings(max_examples=500, deadline=None)
@given(ODD)
def test_json_of_any_kind_is_read_or_refused(said):
    """Nothing but SchemaJsonError comes of it. The fixture sees an import."""
    for each in (said, json.dumps(said)):
        with suppress(SchemaJsonError):
            assert isinstance(schema_of_json(each), StructType)


@pytest.mark.parametrize(
    "kind",
    [STRANGER, nested(STRANGER, 3), struct("string", STRANGER), {"type": "map", "keyType": "string"}, "decimal(39,0)"],
)
def test_a_type_that_spark_does_not_have_is_named_with_its_column(kind):
    """A user-defined type is refused at any depth. So is a decimal with more digits than Spark's."""
    with pytest.raises(SchemaJsonError, match="'c1"):
        schema_of_json(struct("string", kind))


def test_a_schema_that_is_nested_too_deep_is_refused():
    """A depth that would overflow Python's stack, or break Spark's parser, is a SchemaJsonError."""
    assert NESTING_MAX == str(schema_of_json(struct(nested("string", NESTING_MAX - 1)))).count("ArrayType") + 1
    for depth in (NESTING_MAX, 150, 20_000):
        with pytest.raises(SchemaJsonError, match=r"nested|no such schema"):
            schema_of_json(struct(nested("string", depth)))
    with pytest.raises(SchemaJsonError):
        schema_of_json('{"type":"struct","fields":' + "[" * 100_000)


def test_a_source_of_files_imports_nothing_that_its_folder_names(tmp_path):
    """`_columns.json` lies beside the input, and an attacker may have written it."""
    folder = tmp_path / "input"
    (folder / "a").mkdir(parents=True)
    (folder / FOUND).write_text(json.dumps({"format": 1, "columns": struct(STRANGER)}))
    with pytest.raises(SourceError, match="'c0' is a user-defined type"):
        FileSource(folder, SCHEMA, columns="evolve").schema()


def test_a_source_of_a_table_imports_nothing_that_its_log_names(tmp_path):
    """A commit of the input table may change its columns to a user-defined type."""
    table = tmp_path / "orders"
    append(table, 1, 2)
    source = DeltaSource(table)
    read = poll(source)
    log = table / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    meta = next(each for each in first if "metaData" in each)
    meta["metaData"]["schemaString"] = json.dumps(struct(STRANGER))
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, [{"commitInfo": {"operation": "x"}}, meta])))
    with pytest.raises(SourceError, match="cannot be read"):
        poll(source, read.end)
    with pytest.raises(SourceError, match="'c0' is a user-defined type"):
        source._history.commit(1)


@pytest.mark.parametrize("said", [json.dumps(struct(STRANGER)), "no JSON"])
def test_a_file_that_is_set_aside_gives_spark_no_types_of_a_stranger(tmp_path, said):
    """For such a file, Spark gets no columns.

    So it would read them from the footer, and PySpark would import the module.
    """
    (tmp_path / "input" / "a").mkdir(parents=True)
    rows = pa.table({"other": [1]}).replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": said})
    pq.write_table(rows, tmp_path / "input" / "a" / "1.parquet")
    source = FileSource(tmp_path / "input", SCHEMA, columns="quarantine", corrupt_column="bad")
    with pytest.raises(SourceError, match=r"1\.parquet: its footer names user-defined types"):
        source.poll(PollSource(VertexId("in"), SplitId("a"), None, 100))


def test_a_file_with_sparks_own_schema_is_set_aside(tmp_path):
    """Spark writes its schema into each file. A schema of plain types is harmless."""
    (tmp_path / "input" / "a").mkdir(parents=True)
    said = json.dumps(struct("string"))
    rows = pa.table({"other": [1]}).replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": said})
    pq.write_table(rows, tmp_path / "input" / "a" / "1.parquet")
    source = FileSource(tmp_path / "input", SCHEMA, columns="quarantine", corrupt_column="bad")
    assert 1 == source.poll(PollSource(VertexId("in"), SplitId("a"), None, 100)).rows
