"""Resets: a sound history passes with one behind it, each fault is found; rows given again, left out, and in order."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from checkpointing.channel_items import SourceSlice
from checkpointing.commit.at_rest import SourceReset, Stamp
from checkpointing.commit.reset import Move
from checkpointing.identifiers import CheckpointId, Generation, SplitId
from checkpointing.messages import InputSegments, RunMicroBatch
from checkpointing.metadata.record import Claim, Holder, RowKind
from spec.channel_order import disordered
from spec.cut_contents import positions, read_on
from spec.history import (
    CutWritten,
    DoorStarted,
    JobClaimed,
    LeftoversGone,
    OrderBroken,
    ResetAsked,
    RowCommitted,
    SegmentSent,
    SegmentsRun,
)
from spec.invariants import violations
from spec.micro_batches import MicroBatches
from spec.model import replay
from spec.moves import NO_MOVES
from spec.pipeline import BRONZE_ORDERS, JOINED, ORDERS, ORDERS_TABLE, graph, position_before
from spec.reset import badly_moved
from spec.simulator import simulate
from spec.table_log import Written
from spec.world import World

A, B, C = (SplitId(split) for split in "abc")
ONE, FAR = position_before(1), position_before(1000)


@cache
def healthy():
    """Return a simulated history in which a source was read some way, its last row, and that row's cut."""
    for seed in range(200):
        history = simulate(seed, moves=NO_MOVES).history
        commits = [event for event in history.events if isinstance(event, RowCommitted) and event.record.commits]
        cuts = {event.checkpoint: event for event in history.events if isinstance(event, CutWritten)}
        if not commits or commits[-1].record.checkpoint not in cuts:
            continue
        last = commits[-1]
        read = positions(last.record)
        if read.get(A) and read.get(C) and not last.record.is_savepoint and last.record.tables:
            return history, last, cuts[last.record.checkpoint]
    raise AssertionError("no seed reads two sources")


def reset_to(positions_asked, /, *, kept=None, versions=None, asked=None, **changes):
    """Return a history that ends in a reset of the orders to these positions, and the reset's row."""
    history, last, cut = healthy()
    newest = last.record
    claim = Claim(
        generation=Generation(newest.generation + 1),
        holder=Holder(host="here", pid=1, started=""),
        first_id=CheckpointId(newest.checkpoint + 1000),
        last_id=CheckpointId(newest.checkpoint + 2000),
        at_ms=0,
        nonce="n",
    )
    row = SourceReset(newest, Move(ORDERS, positions_asked)).row(claim, Stamp(0, "r"))
    row = row.model_copy(update=changes)
    events = [
        JobClaimed(claim),
        LeftoversGone(claim.generation),
        ResetAsked(tuple((asked or positions_asked).items())),
        RowCommitted(row, kept or (*last.kept, row.checkpoint)),
        replace(cut, checkpoint=row.checkpoint, versions=cut.versions if versions is None else versions),
    ]
    return replace(history, events=[*history.events, *events]), row


def broken(history):
    return {violation.invariant for violation in violations(history)}


def other(row, **changes):
    """Return the vertices of a row, those of the payments with other snapshots."""
    return tuple(
        vertex.model_copy(update={"subtasks": tuple(replace(each, **changes) for each in vertex.subtasks)})
        if C in vertex.splits
        else vertex
        for vertex in row.vertices
    )


def test_a_reset_is_in_order():
    """Back or forth: it drops no row, its cut is its parent's, and the tables are as the reference says."""
    for position in (None, ONE, FAR):
        history, row = reset_to({A: position})
        assert (set(), RowKind.RESET) == (broken(history), row.kind)


def test_what_a_reset_must_not_do_is_found():
    """Splits that nobody asked for, or not those that somebody did; another cut; a row that is pinned or publishes."""
    sound, row = reset_to({A: ONE})
    newest = healthy()[1].record
    wrong = {
        "has split b at": reset_to({A: ONE, B: FAR}, asked={A: ONE}),
        "has split a at": reset_to({B: ONE}, asked={A: ONE, B: ONE}),
        "of more than one source": reset_to({A: ONE}, vertices=other(row, position=FAR)),
        "holds another cut": reset_to({A: ONE}, vertices=row.vertices[:-1]),
        "or publishes something": reset_to({A: ONE}, tables=newest.tables),
        "stays for ever": reset_to({A: ONE}, pinned=True),
        "which never was": reset_to({A: ONE}, parent=CheckpointId(99_999)),
        "that of": reset_to({A: ONE}, versions=()),
    }
    assert [] == list(badly_moved(sound))
    for said, (history, _) in wrong.items():
        assert any(said in text for text in badly_moved(history)), said


@pytest.mark.parametrize(
    ("fault", "invariant"),
    [({"kept": (CheckpointId(1),)}, "retention"), ({"checkpoint": CheckpointId(1)}, "ids-rise")],
)
def test_a_reset_that_is_no_row_like_any_other_is_found(fault, invariant):
    """It takes no row along, and its id is above all others."""
    assert invariant in broken(reset_to({A: ONE}, **fault)[0])


def test_a_reset_that_nobody_was_heard_to_ask_for_moves_one_source():
    """Rows of a warehouse at rest tell that much."""
    history, _ = reset_to({A: ONE}, asked={B: FAR})
    rows_alone = replace(history, events=[each for each in history.events if not isinstance(each, ResetAsked)])
    assert [] == list(badly_moved(rows_alone))


# ---------------------------------------------------------------- the reference


def a_row(kind, checkpoint, positions_read):
    """Return a row like the healthy one's last, of that kind, with the orders' splits there."""
    newest = healthy()[1].record
    vertices = tuple(
        vertex.model_copy(
            update={
                "subtasks": tuple(
                    replace(each, position=_after(positions_read[SplitId(split)]))
                    for each, split in zip(vertex.subtasks, vertex.splits, strict=True)
                )
            }
        )
        for vertex in newest.vertices
        if vertex.splits
    )
    return newest.model_copy(update={"kind": kind, "checkpoint": CheckpointId(checkpoint), "vertices": vertices})


def _after(rows):
    return None if rows is None else position_before(rows)


def test_a_reset_ends_a_stretch_where_its_parent_stood():
    """Back: rows lie in two stretches; forth: some in none; of a split that stays the two are as good as one."""
    line = (
        a_row(RowKind.CHECKPOINT, 1, {A: 5, B: 4, C: 3}),
        a_row(RowKind.RESET, 2, {A: 2, B: 8, C: 3}),
        a_row(RowKind.CHECKPOINT, 3, {A: 6, B: 9, C: 7}),
    )
    assert {A: [(0, 5), (2, 6)], B: [(0, 4), (8, 9)], C: [(0, 3), (3, 7)]} == read_on(line)


def test_rows_given_again_count_twice_and_rows_left_out_never():
    """In the tables and, joined with all others of their key, in what is made of them."""
    once = replay({A: [(0, 12)], C: [(0, 12)]}, {}, Counter())
    again = replay({A: [(0, 12), (0, 12)], C: [(0, 12)]}, {}, Counter())
    assert {row: 2 * times for row, times in once.orders.items()} == again.orders
    assert {pair: 2 * times for pair, times in once.joined.items()} == again.joined
    assert {key: (2 * count, 2 * total) for key, (count, total) in once.totals.items()} == again.totals
    left_out = replay({A: [(0, 4), (8, 12)]}, {}, Counter())
    assert once.orders - left_out.orders == replay({A: [(4, 8)]}, {}, Counter()).orders


# ---------------------------------------------------------------- order


def started(restored):
    return DoorStarted(Generation(7), graph(1), restored)


@pytest.mark.parametrize(("restored_at", "is_broken"), [({A: None, B: None, C: None}, False), (None, True)])
def test_rows_of_a_split_may_come_again_after_a_reset_and_only_then(restored_at, is_broken):
    """Row 24 of split a, then row 0 of the same key: the reset gave it again, or somebody mixed them up."""
    history, _, _ = healthy()
    world = World(lambda world: replace(history, events=[], rows=world.rows_of, state=world.state_of))
    before = a_row(RowKind.CHECKPOINT, 1, {A: 9, B: 0, C: 0})
    row = a_row(RowKind.RESET, 2, restored_at or {A: 9, B: 0, C: 0})
    row = row.model_copy(update={"parent": before.checkpoint})
    world.history.events += [RowCommitted(before, (1,)), RowCommitted(row, (1, 2)), started(row)]
    rows = ((24,), (0,))
    file = world.write(ORDERS_TABLE, Written(Generation(7), BRONZE_ORDERS, 1, rows), 2)
    effect = RunMicroBatch(
        vertex=JOINED, micro_batch=1, generation=Generation(7), inputs=(), state=((),), ranges=((),), end_of_input=False
    )
    MicroBatches(world, in_order=True)._keyed_join(effect, world.files[file.path].rows, ())
    assert is_broken is any(isinstance(event, OrderBroken) for event in world.history.events)


def test_a_slice_that_comes_again_behind_itself_is_in_order():
    """It was in flight when the source was reset to before it; run over before what was sent before it, it is not."""
    early, late = slice_of(0, 3), slice_of(3, 5)

    def events(*run):
        sent = [SegmentSent(Generation(7), ORDERS, 0, each) for each in (late, early, late)]
        return [started(None), *sent, *(ran(each) for each in run)]

    history, _, _ = healthy()
    assert [] == list(disordered(replace(history, events=events(late, early, late))))
    assert [] != list(disordered(replace(history, events=events(early, late, early))))


def slice_of(start, end):
    return SourceSlice(ORDERS, A, position_before(start), position_before(end), "", end - start, 10)


def ran(segment):
    entry = InputSegments(0, ORDERS, (segment,))
    return SegmentsRun(Generation(7), BRONZE_ORDERS, 1, (entry,))
