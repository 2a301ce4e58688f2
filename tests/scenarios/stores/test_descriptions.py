"""Tests that a table's metadata repeat what the pipeline says of it, in the commit that publishes a checkpoint."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkpointing.columns import TableColumn
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import Publication, TablePublished
from jobs.sinks.port import NOTHING_SAID, Description
from jobs.warehouse.output_tables import Shows

SAYS = Description("orders as they came", {"k": "the shop's number"}, {"team": "sales"})
K, V = TableColumn("k", "string"), TableColumn("v", "long")
LATE = TableColumn("late", "double", CheckpointId(1))


def opened(tables, table) -> DeltaTable:
    """Return the table as any reader would open it."""
    return DeltaTable(str(tables.warehouse.path(table)))


def comments(table: DeltaTable) -> dict[str, str]:
    """Return the columns' comments by name."""
    return {field.name: field.metadata["comment"] for field in table.schema().fields if field.metadata}


def published(tables, table, number, columns=(K, V)) -> str:
    """Publish a checkpoint of one file, and return its note."""
    says = Publication(table, TableMode.APPEND, adds=(tables.stage(table, {str(number): 1}),), columns=columns)
    done = tables.publisher.publish(says, CheckpointId(number))
    assert isinstance(done, TablePublished)
    return done.note


def test_a_new_table_is_made_with_its_description(tables, silver, schema) -> None:
    """Readers see it before the first row is there."""
    tables.output.ensure(silver, schema, TableMode.APPEND, says=SAYS)
    table = opened(tables, silver)
    assert ("orders as they came", "sales") == (table.metadata().description, table.metadata().configuration["team"])
    assert {"k": "the shop's number"} == comments(table)
    assert "flights" == table.metadata().configuration["tidemark.job"]


@pytest.fixture
def plain(tables, silver, schema):
    """Return a table that shows checkpoint 1 and says nothing of itself. A user has given it a property."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    published(tables, silver, 1)
    opened(tables, silver).alter.set_table_properties({"quality": "good"}, raise_if_not_exists=False)
    return silver


def test_a_table_that_exists_gets_its_description_with_the_next_rows(tables, plain, schema) -> None:
    """The same commit publishes the checkpoint. What others have set stays, and so do the columns."""
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), SAYS)
    assert opened(tables, plain).metadata().description is None
    assert not published(tables, plain, 2)
    table = opened(tables, plain)
    assert {"team": "sales", "quality": "good"}.items() <= table.metadata().configuration.items()
    assert {"k": "the shop's number"} == comments(table)
    assert 2 == table.transaction_version(tables.warehouse.paths.transaction_id(plain))
    assert pa.table({"k": ["1", "2"], "v": [1, 1]}) == table.to_pyarrow_table().sort_by("k").cast(schema)


def test_metadata_are_written_only_when_they_change(tables, plain, schema) -> None:
    """A log that repeated them at each checkpoint would be long for nothing."""
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), SAYS)
    for number in (2, 3, 4):
        published(tables, plain, number)
    log = tables.warehouse.path(plain) / "_delta_log"
    assert [True, False, False] == ["metaData" in entry.read_text() for entry in sorted(log.glob("*.json"))[-3:]]


def test_a_description_that_is_taken_out_stays_in_the_table(tables, plain, schema) -> None:
    """Tidemark cannot know whether somebody else relies on it by now."""
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), SAYS)
    published(tables, plain, 2)
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), NOTHING_SAID)
    published(tables, plain, 3)
    assert "orders as they came" == opened(tables, plain).metadata().description


def test_a_comment_comes_before_the_words_that_say_since_when_a_column_is_valid(tables, plain, schema) -> None:
    """Nobody may take the nulls of a late column for values, so these words stay."""
    said = Description(columns={"late": "minutes of delay"})
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), said)
    note = published(tables, plain, 2, (K, V, LATE))
    assert "column late is new and minutes of delay; holds only what came after checkpoint 1" == note
    assert {"late": "minutes of delay; holds only what came after checkpoint 1"} == comments(opened(tables, plain))
