"""Decides what becomes of transactions that outside sinks have pre-committed (F3; Flink: `TwoPhaseCommitSinkFunction`).

A sink that votes writes the rows of checkpoint n into a transaction before the commit point, and pre-commits it. From
then on the target can commit it, whatever happens, and nobody sees its rows yet. If the target refuses the rows, the
checkpoint is declined. Once the entry of checkpoint n is in, publishing commits the transaction.

Invariant: a transaction is rolled back only if its checkpoint can never be published into this target any more.

- Publishing checkpoint n, or pre-committing it, rolls back the transactions of older checkpoints. A checkpoint is
  pre-committed only after the cut of the one before is recorded. So the older ones have failed, or are published.
- A starting tick rolls back all that are older than its own ids, after it has rolled forward. Ids rise from claim to
  claim. So a process that was taken over never rolls back a transaction of its successor.
- A held cut may wait for days, and a pre-committed transaction holds locks. So its sinks vote, and roll back at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName


@dataclass(frozen=True, slots=True)
class SinkTransaction:
    """One checkpoint's rows for the sink of one table. The generation wrote them."""

    job: JobName
    table: TableName
    generation: Generation
    checkpoint: CheckpointId


def to_commit(left: Iterable[SinkTransaction], checkpoint: CheckpointId) -> tuple[SinkTransaction, ...]:
    """Return the pre-committed transaction that publishing this checkpoint commits. None if nobody has voted on it."""
    return tuple(each for each in left if each.checkpoint == checkpoint)


def to_roll_back(left: Iterable[SinkTransaction], before: CheckpointId) -> tuple[SinkTransaction, ...]:
    """Return the pre-committed transactions of checkpoints older than this id."""
    return tuple(each for each in left if each.checkpoint < before)
