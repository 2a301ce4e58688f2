"""Falsifies what histories say about outside sinks. Their invariants must find it."""

from dataclasses import replace

from checkpointing.identifiers import CheckpointId, TableName
from spec.history import RowCommitted
from spec.outside_events import OutsidePublished


def publish_outside_without_an_entry(events):
    """Return the history with rows that go outside for a checkpoint that nobody committed."""
    return [*events, OutsidePublished(CheckpointId(99_999), TableName("bronze/orders"), ("a",))]


def give_every_table_a_sink(events):
    """Return the history with entries whose tables had sinks. Nothing was published into them."""
    return [_with_sinks(event) if isinstance(event, RowCommitted) else event for event in events]


def _with_sinks(event):
    tables = tuple(table.table for table in event.record.tables)
    return replace(event, record=event.record.model_copy(update={"outside": tables}))


FALSIFIED_OUTSIDE = {
    "outside-follows": publish_outside_without_an_entry,
    "outside-completely": give_every_table_a_sink,
}
