"""The invariants of outside sinks that vote: a checkpoint needs their votes, and no transaction is lost or forgotten.

A history knows which tables vote from the graph with which each generation began.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.history import DoorStarted, Event, History, JobReleased, RowCommitted, TickOver
from spec.outside import due_outside
from spec.outside_events import (
    OutsidePreCommitted,
    OutsidePublished,
    OutsideRecovered,
    OutsideRefused,
    OutsideRolledBack,
)

_Of = tuple[CheckpointId, TableName]


@dataclass(slots=True)
class _Left:
    """The transactions that targets have pre-committed, with their generations and files."""

    open: dict[_Of, OutsidePreCommitted] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        match event:
            case OutsidePreCommitted(_, checkpoint, table):
                self.open[checkpoint, table] = event
            case OutsidePublished(checkpoint, table) | OutsideRolledBack(checkpoint, table):
                self.open.pop((checkpoint, table), None)
            case _:
                pass


def wrongly_voted(history: History) -> Iterator[str]:
    """Yield every checkpoint that was committed against the vote of a sink, or without it, or with other rows.

    Only sinks that vote are asked.
    """
    voters: dict[Generation, frozenset[TableName]] = {}
    refused: set[CheckpointId] = set()
    left = _Left()
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph):
                voters[generation] = frozenset(table.name for table in graph.tables() if table.votes)
            case OutsideRefused(checkpoint):
                refused.add(checkpoint)
            case OutsidePreCommitted(generation, checkpoint, table) if table not in voters.get(generation, (table,)):
                yield f"checkpoint {checkpoint} asks {table} for its vote, and that sink has none"
            case RowCommitted(record) if record.kind is RowKind.CHECKPOINT and record.generation in voters:
                if record.checkpoint in refused:
                    yield f"checkpoint {record.checkpoint} is committed, and an outside sink refused it"
                for table, paths in _due(record, voters[record.generation]):
                    vote = left.open.get((record.checkpoint, table))
                    if vote is None or vote.paths != paths:
                        yield f"checkpoint {record.checkpoint} is committed, {table} voted on {vote}, due is {paths}"
            case _:
                pass
        left.note(event)


def _due(record: CheckpointRecord, voters: frozenset[TableName]) -> Iterator[tuple[TableName, tuple[str, ...]]]:
    return ((table, paths) for table, paths in due_outside(record).items() if table in voters)


def rolled_back_too_early(history: History) -> Iterator[str]:
    """Yield every transaction that was rolled back although its checkpoint was committed and not published yet.

    A rollback of the job may leave such a checkpoint behind.
    """
    committed: set[CheckpointId] = set()
    for event in history.without_flow:
        match event:
            case RowCommitted(record) if record.kind is RowKind.CHECKPOINT:
                committed.add(record.checkpoint)
            case RowCommitted(record) if record.kind is RowKind.ROLLBACK:
                committed.clear()
            case OutsideRolledBack(checkpoint, table) if checkpoint in committed:
                yield f"{table} rolled back what it had pre-committed for checkpoint {checkpoint}, which is committed"
            case _:
                pass


def left_pre_committed(history: History) -> Iterator[str]:
    """Yield every transaction that stays behind: a held cut's, a tick's that ended in order, an older generation's.

    A target has at most one of a table. So the locks of a transaction that failed never stop the next one.
    """
    left, orderly = _Left(), set[Generation]()
    for event in history.without_flow:
        if isinstance(event, TickOver) and event.end.outcome is not TickOutcome.FAILED:
            orderly.add(event.generation)
        for each in left.open.values():
            why = _must_be_gone(each, event, orderly)
            if why is not None:
                yield f"{why}, and {each.table} keeps what it has pre-committed for checkpoint {each.checkpoint}"
        left.note(event)


def _must_be_gone(left: OutsidePreCommitted, event: Event, orderly: set[Generation]) -> str | None:
    match event:
        case OutsideRecovered(generation) if left.generation < generation:
            return f"generation {generation} has recovered"
        case JobReleased(release) if left.generation == release.generation and release.generation in orderly:
            return f"generation {release.generation} has ended in order"
        case RowCommitted(record) if record.kind is RowKind.HELD and record.checkpoint == left.checkpoint:
            return "the cut is held"
        case OutsidePreCommitted(_, checkpoint, table) if table == left.table:
            return f"checkpoint {checkpoint} is pre-committed"
        case _:
            return None
