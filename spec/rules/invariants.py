"""Loads all rules and applies them to a run. Also holds the rules of tables' contents and of the commit."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from checkpointing.config import CheckpointingMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from spec.history import (
    CheckpointTriggered,
    CutWritten,
    DoorBroke,
    DoorStarted,
    FileMissed,
    FilesDiscarded,
    History,
    RowCommitted,
    RowsErased,
    TableChanged,
    TickStuck,
)
from spec.reference import pipeline
from spec.reference.contents import (
    expected,
    first_cuts,
    held,
    other_files,
    publishes,
    publishes_whole,
    repeated_keys,
    shown,
)
from spec.rules import (
    DOOR_JUDGES,
    INVARIANTS,
    alignment,
    columns,
    entries,
    measures,
    rollbacks,
    rule,
    savepoints,
    sinks,
    sources_and_timers,
    suites_and_hooks,
    tables,
    tick_end,
    time,
)
from spec.rules.rollbacks import goes_back
from spec.rules.savepoints import drained_rows, plain_savepoints
from spec.rules.watching import watch

if TYPE_CHECKING:
    from checkpointing.metadata.record import CheckpointRecord


MODULES: Final = (
    alignment,
    columns,
    entries,
    measures,
    rollbacks,
    savepoints,
    sinks,
    sources_and_timers,
    suites_and_hooks,
    tables,
    tick_end,
    time,
)
"""Importing them registers their rules."""
__all__ = ["INVARIANTS", "NEED_CONTENTS", "Violation", "badly_driven", "violations"]


def badly_driven(history: History, name: str) -> Iterator[str]:
    """Yield what this judge finds wrong in the steps of any door."""
    steps = sum(map(len, history.steps.values()))
    if history.found_at_doors[0] != steps:
        found: dict[str, list[str]] = {name: [] for name in DOOR_JUDGES}
        for generation, taken in history.steps.items():
            for judge, by in zip(watch(taken, DOOR_JUDGES.values()), DOOR_JUDGES, strict=False):
                found[by] += (f"generation {generation}: {what}" for what in judge.found)
        history.found_at_doors = (steps, found)
    yield from history.found_at_doors[1].get(name, ())


@dataclass(frozen=True, slots=True)
class Violation:
    """The id of an invariant that a run broke, and how the run broke it."""

    invariant: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.what}"


NEED_CONTENTS = frozenset(
    {
        "broadcast-is-exact",
        "cut-is-exact",
        "state-is-exact",
        "cut-is-one",
        "cuts-hold",
        "overwrites-show-newest",
        "watermark-is-true",
        "idle-by-the-clock",
        "nothing-due-is-left",
        "windows-are-exact",
    }
)
"""Invariants that open files. They know the simulator's small pipeline, its rows and the rows' times."""


def violations(history: History, *, contents: bool = True) -> tuple[Violation, ...]:
    """Return all violations, invariant by invariant, each at most three times.

    Without `contents`, invariants that open files are left out. A trace of a real run has handles only.
    """
    found = []
    judges = {name: judge for name, judge in INVARIANTS.items() if contents or name not in NEED_CONTENTS}
    for name, invariant in judges.items():
        for count, what in enumerate(invariant(history)):
            if count == 3:  # noqa: PLR2004 - the first ones tell the story
                break
            found.append(Violation(name, what))
    return tuple(found)


@rule("cut-is-exact")
def cut_is_exact(history: History) -> Iterator[str]:
    """At cut n every table shows the effect of the rows before barrier n once, except rows in flight at n.

    The same holds at a plain savepoint, for the tables of its parent's cut with the savepoint's net files. In
    at-least-once mode, each row counts once or more often.
    """
    compare = pipeline.differences if history.mode is CheckpointingMode.EXACTLY_ONCE else pipeline.shortfalls
    drains = drained_rows(history)
    for record, cut in (*first_cuts(history), *plain_savepoints(history)):
        due = expected(history, record, drains)
        for what in compare(due, shown(history, record, cut, due)):
            yield f"checkpoint {record.checkpoint}, tables: {what}"
        for key in repeated_keys(history, record, cut):
            yield f"checkpoint {record.checkpoint}, tables: key {key} has more than one row"


@rule("state-is-exact")
def state_is_exact(history: History) -> Iterator[str]:
    """The state files of entry n hold the effect of the rows before barrier n once, except rows in flight at n."""
    compare = pipeline.differences if history.mode is CheckpointingMode.EXACTLY_ONCE else pipeline.shortfalls
    drains = drained_rows(history)
    for event in history.of(RowCommitted):
        due = expected(history, event.record, drains)
        for what in compare(due, held(history, event.record, due)):
            yield f"checkpoint {event.record.checkpoint}, state: {what}"


@rule("cut-is-one")
def cut_is_one(history: History) -> Iterator[str]:
    """All ticks record the same cut of a checkpoint. Its upsert and state tables consist of the entry's files."""
    seen: dict[CheckpointId, CutWritten] = {}
    records = {event.record.checkpoint: event.record for event in history.of(RowCommitted)}
    for event in history.of(CutWritten):
        first = seen.setdefault(event.checkpoint, event)
        if first.versions != event.versions:
            yield f"checkpoint {event.checkpoint} was recorded as {first.versions} and as {event.versions}"
        if event.checkpoint in records and first is event:
            yield from other_files(records[event.checkpoint], event)


INVARIANTS |= {name: partial(badly_driven, name=name) for name in DOOR_JUDGES}


# ------------------------------------------------------------------ commit


@rule("visible-after-commit")
def visible_after_commit(history: History) -> Iterator[str]:
    """A table changes only for a checkpoint whose entry is in, and exactly as that entry says."""
    records: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        if isinstance(event, RowCommitted):
            records[event.record.checkpoint] = event.record
        elif isinstance(event, RowsErased):
            records |= {each.checkpoint: each for each in event.after}
        elif isinstance(event, TableChanged):
            record = records.get(event.checkpoint)
            if record is None:
                yield f"{event.publication.table} shows checkpoint {event.checkpoint}, which is not committed"
            elif not (publishes(record, event.publication) or publishes_whole(record, event.publication)):
                yield f"{event.publication.table} shows something else than row {event.checkpoint} says"


@rule("published-in-order")
def published_in_order(history: History) -> Iterator[str]:
    """Before the cut of a checkpoint is recorded, no later entry is committed and no table shows a newer checkpoint.

    A rollback may leave an entry behind that it could not publish. That entry is dropped or abandoned, and needs no
    cut.
    """
    committed: list[CheckpointId] = []
    recorded: set[CheckpointId] = {NO_CHECKPOINT}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, kept, abandoned):
                if goes_back(record):
                    stay = {*kept} - {*(abandoned or ())}
                    committed = [one for one in committed if one in recorded or one in stay]
                waiting = [one for one in committed if one not in recorded]
                if waiting:
                    yield f"row {record.checkpoint} was committed while the cut of {waiting[0]} was not recorded"
                if record.commits:
                    committed.append(record.checkpoint)
            case TableChanged(checkpoint):
                older = [one for one in committed if one < checkpoint and one not in recorded]
                if older:
                    yield f"{event.publication.table} shows {checkpoint} before the cut of {older[0]} is recorded"
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case _:
                pass


@rule("published-completely")
def published_completely(history: History) -> Iterator[str]:
    """When a cut is recorded, every table that its entry names shows the entry."""
    records: dict[CheckpointId, CheckpointRecord] = {}
    shown: dict[TableName, CheckpointId] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                records[record.checkpoint] = record
            case TableChanged(checkpoint, publication):
                shown[publication.table] = checkpoint
            case CutWritten(checkpoint) if checkpoint in records:
                for table in records[checkpoint].tables:
                    if shown.get(table.table, NO_CHECKPOINT) < checkpoint:
                        yield f"the cut of {checkpoint} was recorded before {table.table} showed it"
            case _:
                pass


@rule("parent-line")
def parent_line(history: History) -> Iterator[str]:
    """Every entry continues from the last committed cut.

    None continues from a plain savepoint, except a rollback to it.
    """
    newest = history.baseline[-1] if history.baseline else NO_CHECKPOINT
    for event in history.without_flow:
        match event:
            case DoorStarted(_, _, restored) if restored is not None:
                newest = max(newest, restored.checkpoint)
            case RowCommitted(record, _):
                if record.parent != newest and not goes_back(record):
                    yield f"row {record.checkpoint} builds on {record.parent}, not on {newest}"
                newest = record.checkpoint if record.commits else newest
            case _:
                pass


@rule("ids-rise")
def ids_rise(history: History) -> Iterator[str]:
    """Checkpoint ids rise, also over restarts, and none is used twice."""
    newest_row, given = NO_CHECKPOINT, set[CheckpointId]()
    newest_of: dict[Generation, CheckpointId] = {}
    for event in history.without_flow:
        if isinstance(event, CheckpointTriggered):
            if event.checkpoint in given:
                yield f"id {event.checkpoint} was given out twice"
            if event.checkpoint <= newest_of.get(event.generation, NO_CHECKPOINT):
                yield f"id {event.checkpoint} came after {newest_of[event.generation]}"
            given.add(event.checkpoint)
            newest_of[event.generation] = event.checkpoint
        elif isinstance(event, RowCommitted) and event.record.commits:
            if event.record.checkpoint <= newest_row:
                yield f"row {event.record.checkpoint} was committed after row {newest_row}"
            newest_row = event.record.checkpoint


@rule("discarded-is-unreferenced")
def discarded_is_unreferenced(history: History) -> Iterator[str]:
    """No retained entry names a deleted file, and no table shows one."""
    for event in history.of(FilesDiscarded):
        if event.needed:
            yield f"{event.needed[0]} was deleted, but a row or a table names it"


@rule("no-file-is-missed")
def no_file_is_missed(history: History) -> Iterator[str]:
    """A process that holds the job, or that publishes, never needs a file that was deleted."""
    for event in history.of(FileMissed):
        yield f"{event.wanted_by} wanted {event.path}, which had been deleted"


@rule("no-deadlock")
def no_deadlock(history: History) -> Iterator[str]:
    """A tick never waits for nothing, and never works without end."""
    for event in history.of(TickStuck):
        yield f"generation {event.generation}: {event.why}"


@rule("doors-hold")
def doors_hold(history: History) -> Iterator[str]:
    """No door raises an error, and a tick without faults catches up, whatever came before it."""
    for event in history.of(DoorBroke):
        yield f"generation {event.generation}: {event.error}"
