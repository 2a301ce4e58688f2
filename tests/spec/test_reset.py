"""Judges resets: a sound history with a reset passes, and each fault is found.

Also judges rows read twice or skipped.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from checkpointing.channel_items import SourceSlice
from checkpointing.commit.at_rest import Move, SourceReset, Stamp
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
    """Return a simulated history in which a source was read for a while, its last entry, and that entry's cut."""
    for seed in range(200):
        history = simulate(seed, moves=NO_MOVES).history
        commits = [event for event in history.events if isinstance(event, RowCommitted) and event.record.commits]
        cuts = {event.checkpoint: event for event in history.events if isinstance(event, CutWritten)}
        if not commits or commits[-1].record.checkpoint not in cuts:
            continue
        last = commits[-1]
        claims = [event.claim for event in history.events if isinstance(event, JobClaimed)]
        if claims[-1].generation > last.record.generation:
            continue
        read = positions(last.record)
        if read.get(A, 0) > 1 and read.get(C) and not last.record.is_savepoint and last.record.tables:
            return history, last, cuts[last.record.checkpoint]
    raise AssertionError("no seed reads two sources")


def reset_to(positions_asked, /, *, kept=None, versions=None, asked=None, **changes):
    """Return a history that ends in a reset of the orders to these positions, and the entry of the reset."""
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
    """Return the vertices of an entry, with other snapshots for the payments."""
    return tuple(
        vertex.model_copy(update={"subtasks": tuple(replace(each, **changes) for each in vertex.subtasks)})
        if C in vertex.splits
        else vertex
        for vertex in row.vertices
    )


def test_a_reset_is_in_order():
    """The reset goes back or forth.

    It drops no row, its cut is its parent's, and the tables are as the reference says.
    """
    for position in (None, ONE, FAR):
        history, row = reset_to({A: position})
        assert (set(), RowKind.RESET) == (broken(history), row.kind)


def test_a_faulty_reset_is_found():
    """Faults: a split that nobody asked for, a missing split, another cut, an entry that is pinned or publishes."""
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
def test_a_reset_that_breaks_a_rule_of_all_entries_is_found(fault, invariant):
    """A reset's entry publishes no rows, and its id is above all others."""
    assert invariant in broken(reset_to({A: ONE}, **fault)[0])


def test_a_reset_without_a_recorded_request_moves_one_source():
    """The entries of a warehouse at rest are enough to judge this."""
    history, _ = reset_to({A: ONE}, asked={B: FAR})
    rows_alone = replace(history, events=[each for each in history.events if not isinstance(each, ResetAsked)])
    assert [] == list(badly_moved(rows_alone))


# ---------------------------------------------------------------- the reference


def a_row(kind, checkpoint, positions_read):
    """Return an entry like the last one of the healthy history, of that kind, with the orders at these positions."""
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


def test_a_reset_ends_a_stretch_at_its_parents_position():
    """After a reset back, some rows are in two stretches. After a reset forth, some are in none.

    An unmoved split is the same.
    """
    line = (
        a_row(RowKind.CHECKPOINT, 1, {A: 5, B: 4, C: 3}),
        a_row(RowKind.RESET, 2, {A: 2, B: 8, C: 3}),
        a_row(RowKind.CHECKPOINT, 3, {A: 6, B: 9, C: 7}),
    )
    assert {A: [(0, 5), (2, 6)], B: [(0, 4), (8, 9)], C: [(0, 3), (3, 7)]} == read_on(line)


def test_rows_read_twice_count_twice_and_skipped_rows_never():
    """This holds in the tables, and in results that join each row with all others of its key."""
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
    """Row 24 of split a comes before row 0 of the same key. After a reset this is right.

    Otherwise the rows were mixed up.
    """
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


def test_a_slice_that_is_read_again_may_follow_its_first_reading():
    """The slice was in flight when the source was reset to a place before it.

    To run it before older slices is wrong.
    """
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
