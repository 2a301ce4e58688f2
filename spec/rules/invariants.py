"""The invariants of what passes between a door and its driver."""

from collections.abc import Callable, Iterator
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
    OrderBroken,
    RowCommitted,
    TableChanged,
    TickStuck,
    impolite,
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
from spec.rules import entries, sinks, suites_and_hooks, tables
from spec.rules.alignment import Announced, disordered, misaligned, mixed_cuts
from spec.rules.columns import wrongly_said, wrongly_shown
from spec.rules.entries import (
    changed_cuts,
    dropped_cuts,
    held_wrongly,
    left_behind,
    named_too_early,
    overtaken,
    recovered_out_of_order,
    repeated_nonces,
    reserved_gone,
    taken_by_power_cuts,
    unchecked,
    uncounted,
    undescribed,
    unjudged,
    wrongly_gone_on,
)
from spec.rules.measures import Measured, miscounted, wrongly_measured
from spec.rules.rollbacks import (
    badly_moved,
    goes_back,
    left_to_a_tick,
    no_way_back,
    not_gone_back,
    off_the_line,
    wrongly_imported,
    wrongly_marked,
    wrongly_retained,
)
from spec.rules.savepoints import (
    badly_answered,
    cut_not_kept,
    drained_rows,
    falsely_answered,
    left_by_rejected,
    not_kept,
    not_silent,
    plain_savepoints,
    seen_too_early,
    unpinned,
)
from spec.rules.sinks import before_its_tables, left_inside, wrongly_outside
from spec.rules.sources_and_timers import (
    AtRest,
    Credit,
    FailingSplits,
    HooksInTime,
    InputsEnd,
    Pacing,
    Pauses,
    TooEarly,
    TooLate,
    Wakes,
    WholeSlices,
)
from spec.rules.suites_and_hooks import wrongly_judged
from spec.rules.tables import (
    ChangesSaid,
    CompactsAgain,
    CompactsFirst,
    fallen_back,
    foreign_files,
    left_uncompacted,
    not_begun_empty,
    not_the_newest,
    wrongly_compacted,
    wrongly_netted,
    wrongly_positioned,
    wrongly_renamed,
)
from spec.rules.tick_end import (
    EndsSoon,
    GivesWay,
    GoesOn,
    WaitsForSavepoints,
    Whys,
    badly_ended,
    badly_retried,
    falsely_told,
    left_uncommitted,
    left_unsettled,
    wrongly_counted,
    wrongly_declined,
    wrongly_fenced,
    wrongly_repeated,
)
from spec.rules.watching import DoorJudge, watch

if TYPE_CHECKING:
    from checkpointing.metadata.record import CheckpointRecord


DOOR_JUDGES: Final[dict[str, type[DoorJudge]]] = {
    "credit": Credit,
    "splits-fail-alone": FailingSplits,
    "paced": Pacing,
    "slices-whole": WholeSlices,
    "not-too-early": TooEarly,
    "not-too-late": TooLate,
    "measured": Measured,
    "cut-announced": Announced,
    "gives-way": GivesWay,
    "checkpoints-go-on": GoesOn,
    "inputs-end": InputsEnd,
    "savepoints-waited-for": WaitsForSavepoints,
    "ends-soon": EndsSoon,
    "pauses": Pauses,
    "changes-said": ChangesSaid,
    "compacts-first": CompactsFirst,
    "compacts-again": CompactsAgain,
    "hooks-in-time": HooksInTime,
    "wakes-in-time": Wakes,
    "at-rest": AtRest,
    "said-why": Whys,
}
"""The judge of each invariant, by the invariant's id."""


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


# ------------------------------------------------------------------
# The named predicates that every run must fulfil. Each takes a history and yields what breaks it.
#
# They know entries, cuts, files and notifications, but not how these came about. So the same predicates judge
# simulations, traces of real runs, and a warehouse at rest. This module needs no clock and no test library.


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that a run broke, by its id, and how."""

    invariant: str
    what: str

    def __str__(self) -> str:
        """Return `id: what`."""
        return f"{self.invariant}: {self.what}"


Invariant = Callable[[History], Iterator[str]]
INVARIANTS: dict[str, Invariant] = {}


def _named(name: str) -> Callable[[Invariant], Invariant]:
    def register(invariant: Invariant) -> Invariant:
        INVARIANTS[name] = invariant
        return invariant

    return register


NEED_CONTENTS = frozenset(
    {"broadcast-is-exact", "cut-is-exact", "state-is-exact", "cut-is-one", "cuts-hold", "overwrites-show-newest"}
)
"""Invariants that open files, and know the small pipeline of the simulator."""


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


@_named("cut-is-exact")
def cut_is_exact(history: History) -> Iterator[str]:
    """At cut n every table shows the effect of the rows before barrier n once, except rows in flight at n.

    The same holds at a plain savepoint, with the tables of its parent's cut and its net files. At least once, each row
    counts at least once.
    """
    compare = pipeline.differences if history.mode is CheckpointingMode.EXACTLY_ONCE else pipeline.shortfalls
    drains = drained_rows(history)
    for record, cut in (*first_cuts(history), *plain_savepoints(history)):
        due = expected(history, record, drains)
        for what in compare(due, shown(history, record, cut, due)):
            yield f"checkpoint {record.checkpoint}, tables: {what}"
        for key in repeated_keys(history, record, cut):
            yield f"checkpoint {record.checkpoint}, tables: key {key} has more than one row"


@_named("state-is-exact")
def state_is_exact(history: History) -> Iterator[str]:
    """The state files of entry n hold the effect of the rows before barrier n once, except rows in flight at n."""
    compare = pipeline.differences if history.mode is CheckpointingMode.EXACTLY_ONCE else pipeline.shortfalls
    drains = drained_rows(history)
    for event in history.of(RowCommitted):
        due = expected(history, event.record, drains)
        for what in compare(due, held(history, event.record, due)):
            yield f"checkpoint {event.record.checkpoint}, state: {what}"


@_named("broadcast-is-whole")
def broadcast_is_whole(history: History) -> Iterator[str]:
    """All subtasks of a vertex hold the same files of its broadcast state, at every entry (D1)."""
    return tables.not_whole(history)


@_named("broadcast-is-exact")
def broadcast_is_exact(history: History) -> Iterator[str]:
    """The broadcast state of entry n holds the effect of the rows before barrier n once, except rows in flight at n."""
    return tables.not_exact(history)


@_named("cut-is-one")
def cut_is_one(history: History) -> Iterator[str]:
    """Every tick records the same cut of a checkpoint. Its upsert and state tables are the entry's files."""
    seen: dict[CheckpointId, CutWritten] = {}
    records = {event.record.checkpoint: event.record for event in history.of(RowCommitted)}
    for event in history.of(CutWritten):
        first = seen.setdefault(event.checkpoint, event)
        if first.versions != event.versions:
            yield f"checkpoint {event.checkpoint} was recorded as {first.versions} and as {event.versions}"
        if event.checkpoint in records and first is event:
            yield from other_files(records[event.checkpoint], event)


@_named("fifo")
def fifo(history: History) -> Iterator[str]:
    """A vertex gets the rows of a channel in the order in which they were sent, also after a restore."""
    for event in history.of(OrderBroken):
        yield f"{event.vertex}: {event.what}"
    yield from disordered(history)


@_named("at-one-cut")
def at_one_cut(history: History) -> Iterator[str]:
    """At every entry, all splits that read tables of one upstream job stand at one and the same cut of it (A10)."""
    yield from mixed_cuts(history)


INVARIANTS |= {name: partial(badly_driven, name=name) for name in DOOR_JUDGES}


# ------------------------------------------------------------------ commit


@_named("visible-after-commit")
def visible_after_commit(history: History) -> Iterator[str]:
    """A table changes only for a checkpoint whose entry is in, and exactly as that entry says."""
    records: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        if isinstance(event, RowCommitted):
            records[event.record.checkpoint] = event.record
        elif isinstance(event, TableChanged):
            record = records.get(event.checkpoint)
            if record is None:
                yield f"{event.publication.table} shows checkpoint {event.checkpoint}, which is not committed"
            elif not (publishes(record, event.publication) or publishes_whole(record, event.publication)):
                yield f"{event.publication.table} shows something else than row {event.checkpoint} says"


@_named("published-in-order")
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


@_named("published-completely")
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


@_named("parent-line")
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


@_named("ids-rise")
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


@_named("discarded-is-unreferenced")
def discarded_is_unreferenced(history: History) -> Iterator[str]:
    """No retained entry names a deleted file, and no table shows it."""
    for event in history.of(FilesDiscarded):
        if event.needed:
            yield f"{event.needed[0]} was deleted, but a row or a table names it"


@_named("no-file-is-missed")
def no_file_is_missed(history: History) -> Iterator[str]:
    """A process that holds the job, or that publishes, never needs a file that was deleted."""
    for event in history.of(FileMissed):
        yield f"{event.wanted_by} wanted {event.path}, which had been deleted"


@_named("no-deadlock")
def no_deadlock(history: History) -> Iterator[str]:
    """A tick never waits for nothing, and never works without end."""
    for event in history.of(TickStuck):
        yield f"generation {event.generation}: {event.why}"


@_named("doors-hold")
def doors_hold(history: History) -> Iterator[str]:
    """No door raises an error, and a tick without faults catches up, whatever came before it."""
    for event in history.of(DoorBroke):
        yield f"generation {event.generation}: {event.error}"


# rules in modules of their own

INVARIANTS |= {
    "state-is-described": undescribed,
    "alignment": misaligned,
    "columns-of-cut": wrongly_shown,
    "new-tables-begin-empty": not_begun_empty,
    "columns-follow": wrongly_said,
    "names-follow": wrongly_renamed,
    "one-generation": wrongly_fenced,
    "held": held_wrongly,
    "left-alone": impolite,
    "state-in-range": foreign_files,
    "nonces-differ": repeated_nonces,
    "recovered-in-order": recovered_out_of_order,
    "retention": wrongly_retained,
    "way-back-stays": no_way_back,
    "savepoint-is-silent": not_silent,
    "pinned-stays": unpinned,
    "cut-of-a-savepoint-stays": cut_not_kept,
    "requests-are-answered": badly_answered,
    "answers-are-true": falsely_answered,
    "line": off_the_line,
    "marks": wrongly_marked,
    "gone-back": not_gone_back,
    "only-positions-move": badly_moved,
    "imports-are-new": wrongly_imported,
    "triggers-end": badly_ended,
    "told-truly": falsely_told,
    "tables-follow": wrongly_netted,
    "positions-are-true": wrongly_positioned,
    "tables-are-checked": unchecked,
    "files-are-judged": unjudged,
    "empty-is-judged": uncounted,
    "savepoint-is-aligned": overtaken,
    "caught-up-is-committed": left_uncommitted,
    "statistics-are-true": wrongly_measured,
    "epochs-are-counted": miscounted,
    "files-go": left_behind,
    "reserved-stays": reserved_gone,
    "manifests-hold": entries.read_otherwise_of_manifests,
    "manifests-first": entries.named_too_early_of_manifests,
    "manifests-are-shared": entries.written_again,
    "manifests-stay": entries.deleted_too_early,
    "formats-keep-their-meaning": entries.read_otherwise,
    "false-entries-refused": entries.believed,
    "durable": taken_by_power_cuts,
    "synced-first": named_too_early,
    "cuts-hold": changed_cuts,
    "cuts-stay": dropped_cuts,
    "compaction-keeps-rows": wrongly_compacted,
    "compaction-is-committed": left_uncompacted,
    "overwrites-show-newest": not_the_newest,
    "overwrites-only-rise": fallen_back,
    "hooks-restored": suites_and_hooks.badly_restored,
    "hook-states": suites_and_hooks.wrongly_kept,
    "judgements": wrongly_judged,
    "declines": wrongly_declined,
    "failures-counted": wrongly_counted,
    "tried-again": badly_retried,
    "ends-settled": left_unsettled,
    "attempts": wrongly_repeated,
    "finished-is-final": wrongly_gone_on,
    "held-is-invisible": seen_too_early,
    "held-is-kept": not_kept,
    "published-at-once": left_to_a_tick,
    "rejected-leaves-nothing": left_by_rejected,
    "outside-follows": wrongly_outside,
    "outside-completely": left_inside,
    "outside-last": before_its_tables,
    "votes-count": sinks.wrongly_voted,
    "pre-committed-stays": sinks.rolled_back_too_early,
    "pre-committed-goes": sinks.left_pre_committed,
}
