"""Checks the spec's invariants on a job, from its retained entries and its newest cut."""

from collections.abc import Iterator
from typing import Final

from checkpointing.config import CheckpointingMode
from checkpointing.messages import Publication
from checkpointing.metadata.record import CheckpointRecord, RowKind
from orchestration.observation import Standing
from spec.history import CutWritten, Event, History, RowCommitted, TableChanged
from spec.rules.invariants import INVARIANTS

RULES: Final = ("ids-rise", "parent-line", "published-completely")
"""The invariants that can be checked from entries alone, without reading files."""


def broken_rules(stands: Standing) -> tuple[str, ...]:
    """Return the broken invariants. Before the first checkpoint there are none."""
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
    """Return the retained ancestors of the newest checkpoint, oldest first."""
    known = {record.checkpoint: record for record in stands.records if record.commits and not record.abandoned}
    line: list[CheckpointRecord] = []
    at = known.get(stands.checkpoint)
    while at is not None:
        line.append(at)
        at = known.get(at.parent) if at.parent < at.checkpoint else None
    return line[::-1]


def _events(stands: Standing, line: list[CheckpointRecord]) -> Iterator[Event]:
    for record in line:
        yield RowCommitted(record.model_copy(update={"kind": RowKind.CHECKPOINT}), ())  # it commits, whatever its kind
    newest = line[-1]
    for written in newest.tables:
        seen = stands.tables.get(written.table)
        if seen is not None:
            yield TableChanged(seen.shows, Publication(written.table, written.mode), seen.version, frozenset())
    cut = {} if stands.epoch is None else stands.epoch.versions
    if cut:
        yield CutWritten(newest.checkpoint, tuple(sorted(cut.items())), ())
