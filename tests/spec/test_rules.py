"""Judges single histories that no planted bug produces, and compares results of the judges with the product's."""

from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.at_rest import Move, SourceReset, Stamp
from checkpointing.commit.live_files import live_files
from checkpointing.commit.recovery import publications
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, SplitId
from checkpointing.key_groups import key_group_ranges
from checkpointing.messages import LookForRival, NotifyAborted, Publication, RivalSeen, TimeAdvanced
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import (
    Claim,
    Holder,
    RowKind,
    TableKeys,
    TableRecord,
    VertexRecord,
)
from spec.history import CutWritten, JobClaimed, LeftoversGone, OutsidePublished, ResetAsked, RowCommitted, TableChanged
from spec.reference.contents import files_of_table, key_groups_of, named_files, positions, publishes, read_on
from spec.reference.pipeline import ORDERS, graph_of, position_before, replay
from spec.rules.invariants import badly_driven, violations
from spec.rules.rollbacks import only_positions_move, way_back_stays
from spec.rules.sinks import outside_completely, outside_follows, outside_last
from spec.rules.tables import overwrites_only_rise
from spec.world.draw import NO_MOVES, Moves
from spec.world.simulator import simulate
from tests.unit.full_entry import plain_entry

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
    """The reset moves the position back or forth.

    It drops no entry, its cut is its parent's, and the tables show what the reference computes.
    """
    for position in (None, ONE, FAR):
        history, row = reset_to({A: position})
        assert (set(), RowKind.RESET) == (broken(history), row.kind)


def test_a_faulty_reset_is_found():
    """The faults: a split that was not asked for, a missing split, another cut, a pinned entry, a publication."""
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
    assert [] == list(only_positions_move(sound))
    for said, (history, _) in wrong.items():
        assert any(said in text for text in only_positions_move(history)), said


def a_row(kind, checkpoint, positions_read):
    """Return a copy of the healthy history's last entry, with this kind, this checkpoint and these positions.

    The copy has only the vertices with splits. `positions_read` maps each split to its position, as a number of rows.
    """
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

    An unmoved split has one stretch.
    """
    line = (
        a_row(RowKind.CHECKPOINT, 1, {A: 5, B: 4, C: 3}),
        a_row(RowKind.RESET, 2, {A: 2, B: 8, C: 3}),
        a_row(RowKind.CHECKPOINT, 3, {A: 6, B: 9, C: 7}),
    )
    assert {A: [(0, 5), (2, 6)], B: [(0, 4), (8, 9)], C: [(0, 3), (3, 7)]} == read_on(line)


def test_rows_read_twice_count_twice_and_skipped_rows_never():
    """This holds for the tables, and for results that join each row with all other rows of its key."""
    once = replay({A: [(0, 12)], C: [(0, 12)]}, {}, Counter())
    again = replay({A: [(0, 12), (0, 12)], C: [(0, 12)]}, {}, Counter())
    assert {row: 2 * times for row, times in once.orders.items()} == again.orders
    assert {pair: 2 * times for pair, times in once.joined.items()} == again.joined
    assert {key: (2 * count, 2 * total) for key, (count, total) in once.totals.items()} == again.totals
    left_out = replay({A: [(0, 4), (8, 12)]}, {}, Counter())
    assert once.orders - left_out.orders == replay({A: [(4, 8)]}, {}, Counter()).orders


def test_files_and_publications_are_those_of_the_product():
    """The entries include savepoints, rollbacks and renames."""
    moves = Moves(savepoints_max=3, rollbacks_max=2, releases=True)
    rows = [each.record for seed in range(12) for each in _committed(simulate(seed, moves=moves).history)]
    for row in rows:
        assert files_of(row) == named_files(row)
        assert all(publishes(row, each) for each in publications(row))
        vertices = {each.vertex: each for each in row.vertices}
        for vertex in graph_of(row).operators():
            for table in vertex.tables:
                assert {file.path for file in live_files(table, vertices[vertex.id])} == files_of_table(
                    table, vertices[vertex.id]
                )
    assert len(rows) > 20


def test_key_groups_are_those_of_the_product():
    """The two are compared for every subtask of every small parallelism."""
    for most in range(1, 12):
        for parallelism in range(1, most + 1):
            for index, own in enumerate(key_group_ranges(parallelism=parallelism, max_parallelism=most)):
                assert set(range(own.first, own.last + 1)) == key_groups_of(index, parallelism, most)


def _committed(history):
    return (event for event in history.events if isinstance(event, RowCommitted))


def entry(checkpoint, *folders, kind=RowKind.CHECKPOINT):
    """Return an entry whose overwrite table has a file in each of these folders."""
    files = (
        FileHandle(f"o/t/_data/1/{folder}/newest-{checkpoint}-{place:032x}.parquet", 1, 1, 0)
        for place, folder in enumerate(folders)
    )
    keyed = tuple(KeyedFile(file, KeyedFileKind.BASE, 0, 0, Version(1, checkpoint)) for file in files)
    was = VertexRecord(
        vertex="newest",
        micro_batch=checkpoint,
        subtasks=(SubtaskSnapshot(ranges=(RangeFiles("o/t", keyed),)),),
        table_keys=(TableKeys(table="o/t", columns=("v",), mode=TableMode.OVERWRITE),),
    )
    record = plain_entry(
        job="job", kind=kind, checkpoint=checkpoint, parent=checkpoint - 1, max_parallelism=4, vertices=(was,)
    )
    return RowCommitted(record, ())


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([entry(1, "version.number.9"), entry(2, "version.number.10")], None),
        ([entry(1, "version.number.10"), entry(2, "version.number.9")], "smaller version"),
        ([entry(1, "version.number.-1"), entry(2, "version.number.-2")], "smaller version"),
        ([entry(1, "version.date.2024-05-01"), entry(2, "version.date.2024-04-30")], "smaller version"),
        ([entry(1, "version.text.9"), entry(2, "version.text.10")], "smaller version"),
        ([entry(1, "version.number.1", "version.number.2")], "has versions"),
        ([entry(1, "d=1/version.number.1", "d=2/version.number.2")], None),
        ([entry(1, "d=1/version.number.1"), entry(2, "d=2/version.number.1")], "smaller version"),
        ([entry(1, "version.number.2"), entry(2, "version.number.1", kind=RowKind.ROLLBACK)], None),
        ([entry(1, "version.number.2"), entry(2, "version.number.1", kind=RowKind.RESET)], "smaller version"),
    ],
)
def test_an_entry_with_two_versions_or_a_smaller_one_is_found(entries, told):
    """Versions are compared as numbers or as texts, depending on their kind.

    Each partition is judged alone, and only rollbacks may lower a version.
    """
    found = list(overwrites_only_rise(replace(healthy()[0], events=entries)))
    assert bool(told) == bool(found)
    assert all(told in each for each in found)


EMPTIED = TableRecord(table="gold/totals", mode=TableMode.UPSERT, parent_version=1)


BACK = plain_entry(
    kind=RowKind.ROLLBACK,
    checkpoint=9,
    parent=3,
    nonce="n/9",
    max_parallelism=4,
    tables=(EMPTIED,),
    outside=("gold/totals",),
)


@pytest.mark.parametrize(
    ("shown", "wrong", "left"), [((), False, False), (("a",), True, False), (None, False, True)], ids=repr
)
def test_a_rollback_that_empties_a_table_empties_its_sink(shown, wrong, left):
    """The rules demand an empty target before the cut, as in seed 560 with `holds` and `imports`."""
    told = () if shown is None else (OutsidePublished(9, "gold/totals", shown),)
    history = SimpleNamespace(without_flow=[RowCommitted(BACK, (3, 9)), *told, CutWritten(9, (), ())])
    assert (wrong, left) == (bool([*outside_follows(history)]), bool([*outside_completely(history)]))


@pytest.mark.parametrize(("kept", "wrong"), [((3, 9), False), ((9,), True)], ids=str)
def test_the_entry_before_an_unpublished_one_stays(kept, wrong):
    """Without the parent, no rollback could replace an entry that a sink never takes."""
    history = SimpleNamespace(baseline=(3,), pinned=(), without_flow=[RowCommitted(BACK, kept)])
    assert wrong == bool([*way_back_stays(history)])


@pytest.mark.parametrize("first", ["table", "sink"])
def test_a_sink_gets_an_entry_after_its_tables(first):
    """A table that refuses the entry afterwards would leave rows in the sink that no table shows."""
    shown = TableChanged(9, Publication(table="gold/totals", mode=TableMode.UPSERT), 2, frozenset())
    both = [shown, OutsidePublished(9, "gold/totals", ())]
    events = [RowCommitted(BACK, (3, 9)), *(both if first == "table" else reversed(both))]
    assert (first == "sink") == bool([*outside_last(SimpleNamespace(without_flow=events))])


SEED = 6


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
    """No work is left and the pause is over, but no checkpoint begins, and the tick does not end."""
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
