"""Simulated targets of outside sinks. They keep what they have over every crash."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from checkpointing.commit.outside_sinks import SinkTransaction, to_commit, to_roll_back
from checkpointing.graph import TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, JobName, TableName
from checkpointing.messages import CheckTables, Publication
from spec.outside_events import (
    OutsideEvent,
    OutsidePassedOver,
    OutsidePreCommitted,
    OutsidePublished,
    OutsideRecovered,
    OutsideRefused,
    OutsideRolledBack,
)

JOB: Final = JobName("job")


@dataclass(slots=True)
class OutsideTargets:
    """What the targets of all outside sinks hold: rows, and the newest checkpoint, in one transaction."""

    shown: dict[TableName, CheckpointId] = field(default_factory=dict)
    paths: dict[TableName, list[str]] = field(default_factory=dict)

    pre_committed: dict[SinkTransaction, tuple[str, ...]] = field(default_factory=dict)
    """The transactions that can be committed in any case, with their files."""

    def publish(self, checkpoint: CheckpointId, publication: Publication) -> Iterator[OutsideEvent]:
        """Take a checkpoint's files once. A target that has a checkpoint as new as this one takes nothing.

        If it has pre-committed a transaction for the checkpoint, that is what it takes.
        """
        table, left = publication.table, self.left(publication.table)
        yield from self.roll_back(to_roll_back(left, checkpoint))
        for transaction in to_commit(left, checkpoint):
            self.shown[table] = max(checkpoint, self.shown.get(table, NO_CHECKPOINT))
            new = self.pre_committed.pop(transaction)
            self._take(publication, new)
            yield OutsidePublished(checkpoint, table, new)
        if self.shown.get(table, NO_CHECKPOINT) >= checkpoint:
            yield OutsidePassedOver(checkpoint, table)
            return
        new = self._due(publication)
        self.shown[table] = checkpoint
        self._take(publication, new)
        yield OutsidePublished(checkpoint, table, new)

    def _take(self, publication: Publication, new: tuple[str, ...]) -> None:
        before = self.paths.get(publication.table, []) if publication.mode is TableMode.APPEND else []
        self.paths[publication.table] = [*before, *new]

    def _due(self, publication: Publication) -> tuple[str, ...]:
        """Return the new files, or all files of an upsert table.

        The target of an upsert table takes what has changed since the checkpoint that it has, or else the whole table.
        """
        if publication.mode is TableMode.APPEND:
            return tuple(file.path for file in publication.adds)
        now, before = {file.path for file in publication.files}, self.paths.get(publication.table, [])
        if publication.since == self.shown.get(publication.table, NO_CHECKPOINT):
            were = {file.path for file in publication.before}
            now = (set(before) - (were - now)) | (now - were)
        return tuple(sorted(now))

    # -------------------------------------------------------------- phase one

    def left(self, table: TableName | None = None) -> tuple[SinkTransaction, ...]:
        """Return the transactions that one target, or each of them, has pre-committed."""
        return tuple(each for each in self.pre_committed if table in (None, each.table))

    def vote(self, effect: CheckTables, generation: Generation, *, refuses: int) -> Iterator[OutsideEvent]:
        """Let every target pre-commit, up to the one of this number, which refuses. Then none keeps a transaction."""
        mine: list[SinkTransaction] = []
        for number, publication in enumerate(effect.pre_commits):
            table, checkpoint = publication.table, effect.checkpoint
            if number == refuses:
                yield OutsideRefused(checkpoint, table)
                break
            yield from self.roll_back(to_roll_back(self.left(table), checkpoint))
            if self.shown.get(table, NO_CHECKPOINT) < checkpoint and not self.left(table):
                mine.append(SinkTransaction(JOB, table, generation, checkpoint))
                self.pre_committed[mine[-1]] = self._due(publication)
                yield OutsidePreCommitted(generation, checkpoint, table, self._due(publication))
        if refuses < len(effect.pre_commits) or not effect.keeps:
            yield from self.roll_back(mine)

    def settle(self, current: Generation, first_id: CheckpointId) -> Iterator[OutsideEvent]:
        """Roll back what was pre-committed for older checkpoints, as a starting tick does."""
        left = self.left()
        yield from self.roll_back(to_roll_back(left, first_id))
        if left:
            yield OutsideRecovered(current)

    def roll_back(self, transactions: Iterable[SinkTransaction]) -> Iterator[OutsideRolledBack]:
        """Drop these transactions."""
        for each in transactions:
            del self.pre_committed[each]
            yield OutsideRolledBack(each.checkpoint, each.table)
