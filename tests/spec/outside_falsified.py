"""Falsifies what histories say about outside sinks. Their invariants must find it."""

from dataclasses import replace

from checkpointing.identifiers import CheckpointId, Generation, TableName
from spec.history import RowCommitted
from spec.outside_events import (
    OutsidePreCommitted,
    OutsidePublished,
    OutsideRecovered,
    OutsideRefused,
    OutsideRolledBack,
)


def publish_outside_without_an_entry(events):
    """Return the history with rows that go outside for a checkpoint that nobody committed."""
    return [*events, OutsidePublished(CheckpointId(99_999), TableName("bronze/orders"), ("a",))]


def give_every_table_a_sink(events):
    """Return the history with entries whose tables had sinks. Nothing was published into them."""
    return [_with_sinks(event) if isinstance(event, RowCommitted) else event for event in events]


def _with_sinks(event):
    tables = tuple(table.table for table in event.record.tables)
    return replace(event, record=event.record.model_copy(update={"outside": tables}))


def commit_what_a_sink_has_refused(events):
    """Return the history with a vote against each checkpoint."""
    ids = [event.record.checkpoint for event in events if isinstance(event, RowCommitted)]
    return [*(OutsideRefused(each, TableName("bronze/orders")) for each in ids), *events]


def roll_back_what_is_committed(events):
    """Return the history with a transaction of the newest entry that is rolled back in the end."""
    newest = max(event.record.checkpoint for event in events if isinstance(event, RowCommitted))
    return [*events, OutsideRolledBack(newest, TableName("bronze/orders"))]


def leave_a_transaction(events):
    """Return the history with a transaction that a start finds and leaves."""
    left = OutsidePreCommitted(Generation(99_999), CheckpointId(99_999), TableName("bronze/orders"), ("a",))
    return [*events, left, OutsideRecovered(Generation(100_000))]


FALSIFIED_OUTSIDE = {
    "votes-count": commit_what_a_sink_has_refused,
    "pre-committed-stays": roll_back_what_is_committed,
    "pre-committed-goes": leave_a_transaction,
    "outside-follows": publish_outside_without_an_entry,
    "outside-completely": give_every_table_a_sink,
}
