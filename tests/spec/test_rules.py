"""Each invariant can fail, and fails alone: one thing in a healthy history is falsified, and the history is judged."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest

from checkpointing.channel_items import SourceSlice
from checkpointing.commit.fencing import Lease
from checkpointing.commit.recovery import publications
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import (
    CompactFiles,
    EndTick,
    LookForRival,
    MicroBatchFailed,
    NotifyAborted,
    Publication,
    RivalSeen,
    SavepointKind,
    SuitesJudged,
    TickOutcome,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, Holder, HookState, RowKind, Statistics, TableRecord
from spec.history import (
    CameToRest,
    CheckpointEnded,
    CheckpointTriggered,
    CutsSeen,
    CutWritten,
    DoorBroke,
    DoorStarted,
    FileMissed,
    FilesDiscarded,
    FoundFinished,
    HookRestoring,
    JobReleased,
    JudgementCancelled,
    LeftoversGone,
    NamedTooEarly,
    OrderBroken,
    OutsidePublished,
    PowerLost,
    ReservedGone,
    ResetAsked,
    RowCommitted,
    SavepointAnswered,
    SavepointAsked,
    SegmentsRun,
    TableChanged,
    TickOver,
    TickStuck,
    UnseenLeft,
    UnseenRefused,
    impolite,
)
from spec.reference.pipeline import HOOKS, position_before
from spec.rules.alignment import disordered
from spec.rules.invariants import INVARIANTS, badly_driven, violations
from spec.rules.rollbacks import no_way_back
from spec.rules.sinks import before_its_tables, left_inside, wrongly_outside
from spec.rules.tables import foreign_files
from spec.world.draw import NO_MOVES, Moves, drawn
from spec.world.simulator import simulate
from spec.world.simulator import simulate as run
from tests.spec.falsified import (
    FALSIFIED_AT_DOORS,
    FALSIFIED_COMPACTIONS,
    FALSIFIED_ELSEWHERE,
    FALSIFIED_OUTSIDE,
    FALSIFIED_STORED,
    build_on_another_version,
    check_a_table_less,
    count_a_row_more,
    declare_a_column_more,
    describe_no_state,
    drop_a_cut_of_an_entry,
    fail_before_anything_failed,
    fail_for_no_reason,
    judge_other_files,
    lose_rows_of_a_table,
    lose_state,
    mark_the_newest,
    measure_a_subtask_too_long,
    pin_what_holds_rows_in_flight,
    restart_uncounted,
    say_nothing_of_what_changed,
    say_that_orders_are_cuts,
    show_a_column_less,
    take_a_nonce_again,
    tell_a_split_too_far,
    tell_no_rename,
    try_again_at_once,
)


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


# ------------------------------------------------------------------
# Rules about what a door does in time, and what it says, on histories that are right and on false ones.


MOVES = Moves(hooks=True, rejects=True, declines=True, compacts=2)
SEEDS = range(41)


@pytest.fixture(scope="module")
def histories():
    """Return runs with hooks, suites that reject and small files."""
    return [simulate(seed, moves=MOVES).history for seed in SEEDS]


def _without(history, dropped):
    steps = {
        generation: [replace(step, effects=tuple(each for each in step.effects if not dropped(each))) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _with_limits(history, by_ms):
    """Return the history as if each hook had another time limit."""
    hooks = tuple(replace(hook, timeout_ms=hook.timeout_ms + by_ms) for hook in HOOKS)
    steps = {}
    for generation, (begun, *others) in history.steps.items():
        graph = begun.told.setup.graph
        graph = replace(graph, hooks=tuple(hook for hook in hooks if hook.name in {own.name for own in graph.hooks}))
        steps[generation] = [replace(begun, told=replace(begun.told, setup=replace(begun.told.setup, graph=graph)))]
        steps[generation] += others
    return replace(history, steps=steps)


def _woken(history, late_ms):
    """Return the history as if each door had asked to be woken so much later."""
    steps = {
        generation: [replace(step, effects=tuple(_later(each, late_ms) for each in step.effects)) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _later(effect, late_ms):
    return WakeAt(effect.at_ms + late_ms) if isinstance(effect, WakeAt) else effect


def _retold(history, change):
    steps = {
        generation: [replace(step, told=change(step.told)) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _otherwise(told):
    """Return a fact with other words."""
    if isinstance(told, SuitesJudged) and not told.passed:
        return replace(told, message="something else")
    return replace(told, error="something else") if isinstance(told, MicroBatchFailed) else told


@pytest.mark.parametrize(
    ("name", "falsify", "found"),
    [
        ("hooks-in-time", lambda history: _with_limits(history, -100), "still"),
        ("hooks-in-time", lambda history: _with_limits(history, 10_000), "no hook is late"),
        (
            "wakes-in-time",
            lambda history: _without(history, lambda effect: isinstance(effect, WakeAt)),
            "wakes at None",
        ),
        ("at-rest", lambda history: _woken(history, 5), "time alone sets"),
        ("compacts-again", lambda history: _without(history, lambda each: isinstance(each, CompactFiles)), "due are"),
        ("said-why", lambda history: _retold(history, _otherwise), "people hear"),
    ],
)
def test_what_comes_late_or_is_told_otherwise_is_found(histories, name, falsify, found):
    """The histories are right. As false ones, some of them break the rule."""
    assert [] == [what for history in histories for what in badly_driven(history, name)]
    wrong = [what for history in histories for what in badly_driven(falsify(history), name)]
    assert any(found in what for what in wrong), wrong[:3]


def test_the_histories_have_failures(histories):
    """Otherwise nobody would hear why."""
    steps = [step for history in histories for taken in history.steps.values() for step in taken]
    assert sum(isinstance(each, NotifyAborted) for step in steps for each in step.effects) > len(SEEDS)


def test_a_later_failure_is_not_the_reason_why_a_tick_ends():
    """In this run, the second failed checkpoint in a row ends the tick. A task that dies later is not the reason."""
    assert () == simulate(205199, moves=drawn(205199)).violations


# ------------------------------------------------------------------
# Judges single histories of outside sinks: a rollback to an entry that has an upsert table under another name.


EMPTIED = TableRecord(table="gold/totals", mode=TableMode.UPSERT, parent_version=1)
BACK = CheckpointRecord(
    job="small",
    kind=RowKind.ROLLBACK,
    checkpoint=9,
    parent=3,
    generation=1,
    nonce="n/9",
    max_parallelism=4,
    vertices=(),
    tables=(EMPTIED,),
    outside=("gold/totals",),
    statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
)


@pytest.mark.parametrize(
    ("shown", "wrong", "left"), [((), False, False), (("a",), True, False), (None, False, True)], ids=repr
)
def test_a_rollback_that_empties_a_table_empties_its_sink(shown, wrong, left):
    """The rules want an empty target before the cut. Seed 560 with `holds` and `imports` met it."""
    told = () if shown is None else (OutsidePublished(9, "gold/totals", shown),)
    history = SimpleNamespace(without_flow=[RowCommitted(BACK, (3, 9)), *told, CutWritten(9, (), ())])
    assert (wrong, left) == (bool([*wrongly_outside(history)]), bool([*left_inside(history)]))


@pytest.mark.parametrize(("kept", "wrong"), [((3, 9), False), ((9,), True)], ids=str)
def test_the_entry_before_an_unpublished_one_stays(kept, wrong):
    """Without it, nobody could go back from an entry that a sink never takes."""
    history = SimpleNamespace(baseline=(3,), pinned=(), without_flow=[RowCommitted(BACK, kept)])
    assert wrong == bool([*no_way_back(history)])


@pytest.mark.parametrize("first", ["table", "sink"])
def test_a_sink_gets_an_entry_after_its_tables(first):
    """A table that refuses the entry afterwards would leave rows in the sink that no table shows."""
    shown = TableChanged(9, Publication(table="gold/totals", mode=TableMode.UPSERT), 2, frozenset())
    both = [shown, OutsidePublished(9, "gold/totals", ())]
    events = [RowCommitted(BACK, (3, 9)), *(both if first == "table" else reversed(both))]
    assert (first == "sink") == bool([*before_its_tables(SimpleNamespace(without_flow=events))])


# ------------------------------------------------------------------
# The rule `pauses` judges when a tick tries again after its checkpoint has failed.


SEED = 6
"""Its ticks have no interval and no quota, so all checkpoints are their own."""


def with_a_failure(history, later_ms):
    """Let the first checkpoint of the last tick fail before it has begun, and let so much time pass."""
    generation, (begun, *others) = list(history.steps.items())[-1]
    first, now_ms = begun.told.setup.claim.first_id, begun.told.now_ms
    expired = NotifyAborted(first, CheckpointFailureReason.CHECKPOINT_EXPIRED, "slow")
    fails = replace(begun, told=TimeAdvanced(now_ms), effects=(expired, LookForRival(generation)))
    nobody = replace(begun, told=RivalSeen(None), effects=())
    later = replace(begun, told=TimeAdvanced(now_ms + later_ms), effects=())
    return replace(history, steps={**history.steps, generation: [begun, fails, nobody, later, *others]})


@pytest.mark.parametrize(("later_ms", "is_wrong"), [(0, True), (999, True), (1_000, False)])
def test_a_tick_waits_a_second_after_its_first_failure(later_ms, is_wrong):
    """A checkpoint that begins before the pause is over breaks the rule, and a later one does not."""
    history = with_a_failure(simulate(SEED, moves=NO_MOVES).history, later_ms)
    found = [what for what in badly_driven(history, "pauses") if "before the pause" in what]
    assert is_wrong == bool(found)


def test_a_tick_that_could_try_again_does():
    """Nothing moves any more, and the pause is over. No checkpoint begins, and the tick does not end."""
    history = simulate(SEED, moves=NO_MOVES).history
    generation, (begun, *others, last) = list(history.steps.items())[-1]
    expired = NotifyAborted(begun.told.setup.claim.first_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "slow")
    at_ms = max(step.told.now_ms for step in others if isinstance(step.told, TimeAdvanced))
    fails = replace(last, effects=(expired,))
    later = replace(last, told=TimeAdvanced(at_ms + 1_500), effects=())
    steps = {**history.steps, generation: [begun, *others, fails, later, replace(last, told=later.told)]}
    assert not list(badly_driven(history, "pauses"))
    (found,) = badly_driven(replace(history, steps=steps), "pauses")
    assert "no checkpoint begins" in found


# ------------------------------------------------------------------
# Rules about what entries and publications say besides the rows, on histories that are right and on false ones.


SEEDS_OF_WHAT_IS_SAID = range(1, 12)


def test_a_subtask_has_no_file_of_other_key_groups():
    """With twice as many key groups, the files of a vertex with several subtasks lie in other ranges."""
    histories = [simulate(seed).history for seed in SEEDS_OF_WHAT_IS_SAID]
    assert not [what for history in histories for what in foreign_files(history)]
    false = [replace(history, max_parallelism=2 * history.max_parallelism) for history in histories]
    found = [what for history in false for what in foreign_files(history)]
    assert "holds key groups" in found[0]


def test_a_publication_says_what_changed_since_the_parents_cut():
    """Without it, the store would compare all files of the table."""
    histories = [simulate(seed).history for seed in SEEDS_OF_WHAT_IS_SAID]
    assert not [what for history in histories for what in badly_driven(history, "changes-said")]
    false = map(say_nothing_of_what_changed, histories)
    found = [what for history in false for what in badly_driven(history, "changes-said")]
    assert "nothing is said of what changed" in found[0]


def test_a_tick_begins_with_a_look_for_small_files():
    """The same history is judged as one whose first slices asked for nothing, and as one that asked for too much."""
    history = simulate(0, moves=Moves(compacts=2)).history
    assert not list(badly_driven(history, "compacts-first"))
    for change in (lambda _: (), lambda effect: (replace(effect, tables=(*effect.tables, "more")),)):
        assert list(badly_driven(_compacting(history, change), "compacts-first"))


def _compacting(history, change):
    steps = {
        generation: [
            replace(
                step,
                effects=tuple(
                    made
                    for each in step.effects
                    for made in (change(each) if isinstance(each, CompactFiles) else (each,))
                ),
            )
            for step in taken
        ]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def test_a_process_that_is_refused_leaves_the_unseen_holder_with_a_lease():
    """Otherwise nobody could ever take over from a holder that is dead."""
    history = simulate(1).history
    lease = Lease(Generation(3), 500)
    assert not list(impolite(replace(history, events=[UnseenRefused(Generation(3), lease)])))
    for wrong in (None, Lease(Generation(2), 500)):
        assert list(impolite(replace(history, events=[UnseenRefused(Generation(3), wrong)])))


# ------------------------------------------------------------------
# Judges the order of channels and the fence of generations by messages alone, so it can judge real traces too.


SEED_OF_CHANNEL_ORDER = 49


def test_a_healthy_run_is_in_order():
    """No channel changes its order when rows are restored, rescaled, overtaken or held back."""
    assert [] == [what for seed in range(40) for what in disordered(simulate(seed).history)]


def test_two_segments_in_the_wrong_order_are_found():
    """A micro-batch gets its segments newest first. This breaks `fifo` and nothing else, because no file shows it."""
    history, place = next(
        (history, place)
        for history in (simulate(seed).history for seed in range(1, 40))  # in seed 0 the micro-batch is tried again
        for place, event in enumerate(history.events)
        if isinstance(event, SegmentsRun) and meets_one_split_twice(event)
    )
    event = history.events[place]
    (entry,) = event.inputs
    turned = replace(event, inputs=(replace(entry, segments=tuple(reversed(entry.segments))),))
    events = [*history.events[:place], turned, *history.events[place + 1 :]]
    assert {"fifo"} == {violation.invariant for violation in violations(replace(history, events=events))}


def test_a_second_door_of_one_generation_is_found():
    """The files of two coordinators of one generation could not be told apart, so a generation has one coordinator."""
    history = simulate(SEED_OF_CHANNEL_ORDER).history
    place = next(place for place, event in enumerate(history.events) if isinstance(event, DoorStarted))
    twice = [*history.events[: place + 1], *history.events[place:]]
    found = violations(replace(history, events=twice))
    assert {"one-generation"} == {violation.invariant for violation in found}


def meets_one_split_twice(event):
    """Return True if a micro-batch ran over two slices of one split."""
    splits = [part.split for entry in event.inputs for part in entry.segments if isinstance(part, SourceSlice)]
    return len(set(splits)) < len(splits)
