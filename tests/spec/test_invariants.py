"""Each invariant can fail, and fails alone: one thing in a healthy history is falsified, and the history is judged."""

from dataclasses import replace
from functools import cache

import pytest

from checkpointing.commit.recovery import publications
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import EndTick, SavepointKind, TickOutcome
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import Holder, HookState, RowKind
from spec.history import (
    CheckpointEnded,
    CheckpointTriggered,
    CutWritten,
    DoorBroke,
    DoorStarted,
    FileMissed,
    FilesDiscarded,
    JobReleased,
    LeftoversGone,
    OrderBroken,
    ResetAsked,
    RowCommitted,
    SavepointAnswered,
    SavepointAsked,
    SegmentsRun,
    TableChanged,
    TickOver,
    TickStuck,
)
from spec.hook_events import HookRestoring
from spec.invariants import INVARIANTS, violations
from spec.judgement_events import JudgementCancelled
from spec.mishap_events import CutsSeen, NamedTooEarly, PowerLost
from spec.moves import Moves
from spec.pipeline import position_before
from spec.politeness import UnseenLeft
from spec.rest_events import CameToRest, FoundFinished, ReservedGone
from spec.simulator import simulate as run
from tests.spec.at_doors_falsified import FALSIFIED_AT_DOORS
from tests.spec.columns_falsified import declare_a_column_more, show_a_column_less
from tests.spec.compactions_falsified import FALSIFIED_COMPACTIONS
from tests.spec.declining_falsified import (
    fail_before_anything_failed,
    fail_for_no_reason,
    restart_uncounted,
    try_again_at_once,
)
from tests.spec.descriptions_falsified import describe_no_state
from tests.spec.entries_falsified import (
    FALSIFIED_STORED,
    build_on_another_version,
    check_a_table_less,
    count_a_row_more,
    drop_a_cut_of_an_entry,
    judge_other_files,
    lose_rows_of_a_table,
    lose_state,
    mark_the_newest,
    measure_a_subtask_too_long,
    pin_what_holds_rows_in_flight,
    say_that_orders_are_cuts,
    take_a_nonce_again,
    tell_a_split_too_far,
)
from tests.spec.falsified_elsewhere import FALSIFIED_ELSEWHERE
from tests.spec.names_falsified import tell_no_rename
from tests.spec.outside_falsified import FALSIFIED_OUTSIDE


@cache
def healthy(seed, **moves):
    """A run with several ticks, restores and some cuts. It breaks nothing."""
    outcome = run(seed, moves=Moves(**moves))
    assert () == outcome.violations
    return outcome.history


def falsified(change, seed, **moves):
    """Return the invariants that a falsified copy of the healthy history breaks."""
    history = healthy(seed, **moves)
    events = change(list(history.events))
    return {violation.invariant for violation in violations(replace(history, events=events))}


def first(events, kind, holds=lambda event: True, skip=0):
    """Return the place of an event of that kind."""
    return [place for place, event in enumerate(events) if isinstance(event, kind) and holds(event)][skip]


def without(events, place):
    return events[:place] + events[place + 1 :]


def put(events, place, event):
    return [*events[:place], event, *events[place:]]


def swap(events, place, event):
    return [*events[:place], event, *events[place + 1 :]]


def record_another_cut(events):
    place = first(events, CutWritten)
    cut = events[place]
    other = tuple((table, version + 1) for table, version in cut.versions)
    return put(events, place + 1, replace(cut, versions=other))


def publish_before_the_commit(events):
    place = first(events, TableChanged)
    row = first(events, RowCommitted, lambda row: row.record.checkpoint == events[place].checkpoint)
    return put(without(events, place), row, events[place])


def commit_before_the_cut(events):
    cut = first(events, CutWritten)
    row = first(events, RowCommitted, lambda row: row.record.checkpoint > events[cut].checkpoint)
    told = first(events, CheckpointEnded, lambda told: told.checkpoint == events[cut].checkpoint)
    moved = put(events, row + 1, events[cut])
    moved = put(moved, row + 2, events[told]) if told < row else moved
    return [event for place, event in enumerate(moved) if place not in (cut, told)]


def record_without_publishing(events):
    return without(events, first(events, TableChanged))


def amend(events, place, **changes):
    return swap(events, place, replace(events[place], record=events[place].record.model_copy(update=changes)))


def commit_by_an_old_generation(events):
    return amend(events, first(events, RowCommitted, skip=-1), generation=Generation(1))


def give_an_id_again(events):
    place = first(events, CheckpointTriggered)
    return put(events, place + 1, events[place])


def keep_too_many(events):
    place = first(events, RowCommitted, skip=-1)
    kept = (CheckpointId(1), *events[place].kept)
    return swap(events, place, replace(events[place], kept=kept))


def forget_an_end(events):
    over = first(events, TickOver, lambda over: over.end.outcome is TickOutcome.CAUGHT_UP, skip=-1)
    return without(
        events, first(events, CheckpointEnded, lambda end: end.generation == events[over].generation, skip=-1)
    )


def tell_too_early(events):
    cut = first(events, CutWritten)
    told = first(events, CheckpointEnded, lambda told: told.checkpoint == events[cut].checkpoint)
    return put(without(events, told), cut, events[told])


def end_before_the_cut(events):
    over = next(
        event for event in events if isinstance(event, TickOver) and event.end.outcome is not TickOutcome.FAILED
    )
    mine = first(events, RowCommitted, lambda row: row.record.generation == over.generation and row.record.commits)
    return put(events, mine + 1, over)


def end_with_rows_unread(events):
    place = first(events, TickOver, lambda over: over.end.outcome is TickOutcome.CAUGHT_UP, skip=-1)
    more = tuple((split, rows + 1) for split, rows in events[place].readable)
    return swap(events, place, replace(events[place], readable=more))


def publish_a_savepoint(events):
    place = first(events, RowCommitted, lambda row: row.record.kind is RowKind.SAVEPOINT and row.record.tables)
    record = events[place].record
    publication = publications(record)[0]
    columns = frozenset(column.name for column in publication.columns)
    return put(events, place + 1, TableChanged(record.checkpoint, publication, 1, frozenset(), columns))


def delete_a_file_of_a_savepoint(events):
    place = first(events, RowCommitted, lambda row: row.record.kind is RowKind.SAVEPOINT and files_of(row.record))
    return put(events, place + 1, FilesDiscarded((min(files_of(events[place].record)),), ()))


def delete_a_file_of_the_cut_below_a_savepoint(events):
    rows = {event.record.checkpoint: event.record for event in events if isinstance(event, RowCommitted)}

    def others(saved):  # the files of the entry below that the savepoint does not name
        below = rows.get(saved.parent) if saved.kind is RowKind.SAVEPOINT else None
        return frozenset() if below is None or below.pinned else files_of(below) - files_of(saved)

    place = first(events, RowCommitted, lambda row: others(row.record))
    return put(events, place + 1, FilesDiscarded((min(others(events[place].record)),), ()))


def drop_a_savepoint(events):
    place = first(events, RowCommitted, lambda row: row.record.kind is RowKind.SAVEPOINT)
    later = first(events, RowCommitted, lambda row: row.record.checkpoint > events[place].record.checkpoint)
    kept = tuple(row for row in events[later].kept if row != events[place].record.checkpoint)
    return swap(events, later, replace(events[later], kept=kept))


def answer_twice(events):
    place = first(events, SavepointAnswered)
    return put(events, place + 1, replace(events[place], checkpoint=None))


def never_answer(events):
    return without(events, first(events, SavepointAnswered, lambda answer: answer.checkpoint is None))


def take_a_plain_savepoint_for_a_stop(events):
    place = first(events, SavepointAnswered, lambda answer: answer.checkpoint is not None)
    asked = first(events, SavepointAsked, lambda asked: asked.request == events[place].request)
    assert SavepointKind.PLAIN is events[asked].kind
    return swap(events, asked, replace(events[asked], kind=SavepointKind.SUSPEND))


def go_on_after_a_stop(events):
    kinds = {(asked.generation, asked.request): asked.kind for asked in events if isinstance(asked, SavepointAsked)}
    stops = [
        answer.generation
        for answer in events
        if isinstance(answer, SavepointAnswered)
        and answer.checkpoint is not None
        and kinds[answer.generation, answer.request] is not SavepointKind.PLAIN
    ]
    place = first(events, TickOver, lambda over: over.generation == stops[0])
    return swap(events, place, replace(events[place], end=EndTick(TickOutcome.FAILED)))


def append(event):
    return lambda events: [*events, event]


GEN = Generation(1)
HERE, THERE = (Holder(host=host, pid=1, started="") for host in ("here", "there"))


def begin_from_an_older_row(events):
    commits = [event.record for event in events if isinstance(event, RowCommitted)]
    began = events[first(events, DoorStarted)]
    return [*events, replace(began, generation=Generation(999), restored=commits[-2])]


def still_held(events):
    """No release follows the claim."""
    return [event for event in events if not isinstance(event, JobReleased)]


def release_twice(events):
    release = events[first(events, JobReleased, skip=-1)].release
    return [*events, JobReleased(release.model_copy(update={"nonce": "again"}))]


def delete_leftovers_before_the_cut(events):
    place = first(events, CutWritten, skip=-1)
    return put(events, place, LeftoversGone(Generation(1_000)))


def go_back_to_what_is_newest(events):
    """The entry of a rollback names its target, and has the cut at which the job stood."""
    last = events[first(events, RowCommitted, skip=-1)]
    older = last.kept[-2]
    wrong = {"kind": RowKind.ROLLBACK, "parent": older, "checkpoint": last.record.checkpoint + 1000, "nonce": "back"}
    row = last.record.model_copy(update=wrong)
    return [*still_held(events), RowCommitted(row, (*last.kept[:-1], row.checkpoint))]


def move_the_payments_too(events):
    """A reset of the orders also moves the payments."""
    last = events[first(events, RowCommitted, lambda event: event.record.commits, skip=-1)]
    vertices = tuple(
        vertex.model_copy(
            update={"subtasks": tuple(replace(each, position=position_before(99)) for each in vertex.subtasks)}
        )
        for vertex in last.record.vertices
    )
    wrong = {"kind": RowKind.RESET, "parent": last.record.checkpoint, "checkpoint": last.record.checkpoint + 1000}
    row = last.record.model_copy(
        update={**wrong, "nonce": "moved", "pinned": False, "tables": (), "vertices": vertices}
    )
    asked = ResetAsked((("a", position_before(99)), ("b", position_before(99))))
    return [*still_held(events), asked, RowCommitted(row, (*last.kept, row.checkpoint))]


def show_a_cut_without_its_files(events):
    cut = events[first(events, CutWritten, lambda cut: any(files for _, files in cut.active))]
    return [*events, CutsSeen(GEN, ((cut.checkpoint, tuple((table, frozenset()) for table, _ in cut.active)),))]


def keep_what_no_hook_answered(events):
    return amend(events, first(events, RowCommitted), hooks=(HookState(hook="ledger", state="1"),))


def skip_a_micro_batch(events):
    place = first(events, SegmentsRun, lambda event: any(entry.segments for entry in event.inputs))
    return without(events, place)


FALSIFIED = (
    FALSIFIED_STORED
    | FALSIFIED_COMPACTIONS
    | {
        "at-one-cut": say_that_orders_are_cuts,
        "tables-follow": build_on_another_version,
        "marks": mark_the_newest,
        "epochs-are-counted": count_a_row_more,
        "files-go": append(CameToRest(frozenset({"a"}), frozenset(), ())),
        "tables-are-checked": check_a_table_less,
        "positions-are-true": tell_a_split_too_far,
        "cuts-stay": drop_a_cut_of_an_entry,
        "statistics-are-true": measure_a_subtask_too_long,
        "columns-of-cut": show_a_column_less,
        "columns-follow": declare_a_column_more,
        "names-follow": tell_no_rename,
        "alignment": skip_a_micro_batch,
        "cut-is-exact": lose_rows_of_a_table,
        "state-is-exact": lose_state,
        "state-is-described": describe_no_state,
        "cut-is-one": record_another_cut,
        "fifo": append(OrderBroken("joined", "row 8 came after row 12")),
        "visible-after-commit": publish_before_the_commit,
        "published-in-order": commit_before_the_cut,
        "published-completely": record_without_publishing,
        "one-generation": commit_by_an_old_generation,
        "held": release_twice,
        "nonces-differ": take_a_nonce_again,
        "recovered-in-order": delete_leftovers_before_the_cut,
        "parent-line": lambda events: amend(events, first(events, RowCommitted, skip=1), parent=CheckpointId(777)),
        "ids-rise": give_an_id_again,
        "line": begin_from_an_older_row,
        "durable": append(PowerLost((), ("state/totals/a",))),
        "synced-first": append(NamedTooEarly(CheckpointId(1), ("a",))),
        "cuts-hold": show_a_cut_without_its_files,
        "discarded-is-unreferenced": append(FilesDiscarded(("a",), ("a",))),
        "reserved-stays": append(ReservedGone("a")),
        "left-alone": append(UnseenLeft(GEN, HERE, GEN, THERE, None, 0)),
        "no-file-is-missed": append(FileMissed("a", "micro-batch 3 of joined")),
        "retention": keep_too_many,
        "hooks-restored": append(HookRestoring(GEN, "ledger", None, "1")),
        "hook-states": keep_what_no_hook_answered,
        "judgements": append(JudgementCancelled(GEN, "joined", CheckpointId(1))),
        "declines": fail_for_no_reason,
        "failures-counted": fail_before_anything_failed,
        "tried-again": try_again_at_once,
        "attempts": restart_uncounted,
        "triggers-end": forget_an_end,
        "ends-settled": end_before_the_cut,
        "told-truly": tell_too_early,
        "caught-up-is-committed": end_with_rows_unread,
        "no-deadlock": append(TickStuck(GEN, "it waits for nothing")),
        "doors-hold": append(DoorBroke(GEN, "KeyError")),
        "finished-is-final": append(FoundFinished(None, frozenset(), frozenset())),
        **FALSIFIED_OUTSIDE,
    }
)

FALSIFIED_ROLLBACKS = {"gone-back": go_back_to_what_is_newest, "only-positions-move": move_the_payments_too}

FALSIFIED_SAVEPOINTS = (
    ("files-are-judged", judge_other_files),
    ("savepoint-is-aligned", pin_what_holds_rows_in_flight),
    ("savepoint-is-silent", publish_a_savepoint),
    ("pinned-stays", delete_a_file_of_a_savepoint),
    ("pinned-stays", drop_a_savepoint),
    ("requests-are-answered", answer_twice),
    ("requests-are-answered", never_answer),
    ("answers-are-true", take_a_plain_savepoint_for_a_stop),
    ("answers-are-true", go_on_after_a_stop),
)


CUT_STAYS = "cut-of-a-savepoint-stays"


def test_each_invariant_is_falsified_here():
    """The lists have every invariant. If nothing can break an invariant, it is none."""
    lists = {
        *FALSIFIED,
        *FALSIFIED_AT_DOORS,
        *FALSIFIED_ROLLBACKS,
        *(name for name, _ in FALSIFIED_SAVEPOINTS),
        CUT_STAYS,
    }
    assert set(INVARIANTS) == lists | FALSIFIED_ELSEWHERE


@pytest.mark.parametrize("name", FALSIFIED)
def test_each_invariant_can_fail_alone(name):
    """A history in which one thing is falsified breaks exactly the invariant that forbids it."""
    assert {name} == falsified(FALSIFIED[name], 308)


@pytest.mark.parametrize("name", FALSIFIED_AT_DOORS)
def test_each_invariant_at_doors_can_fail_alone(name):
    """The doors of this history are said to have been built with other settings."""
    assert {name} == {broken.invariant for broken in violations(FALSIFIED_AT_DOORS[name](healthy(1)))}


@pytest.mark.parametrize("name", FALSIFIED_ROLLBACKS)
def test_each_invariant_of_rollbacks_can_fail_alone(name):
    """At the end of this history, two entries exist as targets of a rollback or reset."""
    assert {name} == falsified(FALSIFIED_ROLLBACKS[name], 15)


@pytest.mark.parametrize(("name", "change"), FALSIFIED_SAVEPOINTS)
def test_each_invariant_of_savepoints_can_fail_alone(name, change):
    """This history has savepoints and stops."""
    assert {name} == falsified(change, 513, savepoints_max=4)


def test_the_invariant_of_a_savepoints_cut_can_fail_alone():
    """In this history, a plain savepoint stands on a checkpoint that has other state files."""
    assert {CUT_STAYS} == falsified(delete_a_file_of_the_cut_below_a_savepoint, 31, savepoints_max=4)
