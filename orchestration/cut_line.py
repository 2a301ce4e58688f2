"""The spec's invariants on a job at rest: the retained rows and the newest cut, told as a history."""

from collections.abc import Iterator
from typing import Final

from checkpointing.config import CheckpointingMode
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord, RowKind
from orchestration.observation import Standing
from spec.history import CutWritten, Event, History, RowCommitted, TableChanged
from spec.invariants import INVARIANTS

RULES: Final = ("ids-rise", "parent-line", "published-completely")
"""Invariants that need no file's contents and that rows at rest can tell."""


def broken_rules(stands: Standing) -> tuple[str, ...]:
    """Return what the rows, and the tables as they are, break of the spec's invariants; nothing before the first."""
    if stands.epoch is None:
        return ()
    line = _line(stands)
    history = History(
        mode=CheckpointingMode.EXACTLY_ONCE,
        retained=len(line),
        max_parallelism=stands.epoch.record.max_parallelism,
        rows=lambda _path: (),
        state=lambda _file: {},
        baseline=(line[0].parent,),
        events=list(_events(stands, line)),
    )
    return tuple(f"{rule}: {what}" for rule in RULES for what in INVARIANTS[rule](history))


def _line(stands: Standing) -> list[CheckpointRecord]:
    """Return the retained checkpoints that the newest one was built on, by their parents, oldest first."""
    known = {record.checkpoint: record for record in stands.records if record.commits and not record.abandoned}
    line: list[CheckpointRecord] = []
    at = known.get(stands.checkpoint)
    while at is not None:
        line.append(at)
        at = known.get(at.parent) if at.parent < at.checkpoint else None
    return line[::-1]


def _events(stands: Standing, line: list[CheckpointRecord]) -> Iterator[Event]:
    for record in line:
        yield RowCommitted(record.model_copy(update={"kind": RowKind.CHECKPOINT}), ())  # it commits, whatever it is
    newest = line[-1]
    for written in newest.tables:
        seen = stands.tables.get(written.table)
        if seen is not None:
            yield TableChanged(seen.shows, Publication(written.table, written.mode), seen.version, frozenset())
    cut = {} if stands.epoch is None else stands.epoch.versions
    if cut:
        yield CutWritten(newest.checkpoint, tuple(sorted(cut.items())), ())
