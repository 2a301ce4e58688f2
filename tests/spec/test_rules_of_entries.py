"""Judges resets: a sound history with a reset passes, and each fault is found.

Also judges rows read twice or skipped.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from checkpointing.channel_items import RangeFiles, SourceSlice, SubtaskSnapshot
from checkpointing.commit.at_rest import Move, Rollback, SourceReset, Stamp
from checkpointing.commit.live_files import live_files
from checkpointing.commit.recovery import publications
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, SplitId
from checkpointing.key_groups import key_group_ranges
from checkpointing.messages import EndTick, InputSegments, RunMicroBatch, TickOutcome
from checkpointing.metadata.files import files_of
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, RowKind, Statistics, TableKeys, VertexRecord
from spec.history import (
    CutWritten,
    DoorStarted,
    JobClaimed,
    LeftoversGone,
    ListsWereStale,
    OrderBroken,
    ResetAsked,
    RowCommitted,
    SegmentSent,
    SegmentsRun,
    TickOver,
)
from spec.reference.contents import files_of_table, key_groups_of, named_files, positions, publishes, read_on
from spec.reference.pipeline import (
    AUDIT_TABLE,
    BRONZE_ORDERS,
    JOINED,
    NEWEST_TABLE,
    ORDERS,
    ORDERS_TABLE,
    delivery_of,
    graph,
    graph_of,
    position_before,
    replay,
)
from spec.rules.alignment import disordered
from spec.rules.entries import recovered_out_of_order
from spec.rules.invariants import INVARIANTS, violations
from spec.rules.rollbacks import badly_moved, not_gone_back, off_the_line
from spec.rules.tables import fallen_back
from spec.rules.tick_end import left_uncommitted
from spec.world.draw import NO_MOVES, Moves
from spec.world.micro_batches import MicroBatches
from spec.world.simulator import simulate
from spec.world.simulator import simulate as run
from spec.world.stores import World, Written

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


# ------------------------------------------------------------------
# Judges rollbacks: a healthy history passes, also with a rollback at its end, and each fault is found.


@cache
def healthy_of_rollback():
    """Return a simulated history of one warehouse at whose end some cuts still exist."""
    for seed in range(200):
        history = simulate(seed, moves=NO_MOVES).history
        commits = [event for event in history.events if isinstance(event, RowCommitted) and event.record.commits]
        if not commits:
            continue
        kept = set(commits[-1].kept)
        older = [event.record for event in commits[:-1] if event.record.checkpoint in kept]
        if older and not any(record.is_savepoint for record in older):
            return history, older[-1], commits[-1]
    raise AssertionError("no seed keeps two checkpoints")


def rolled_back(**changes):
    """Return a history that ends in a rollback to an older cut, and the entry of the rollback."""
    history, target, last = healthy_of_rollback()
    by = next(event.claim for event in reversed(history.events) if isinstance(event, JobClaimed))
    by = by.model_copy(update={"first_id": CheckpointId(last.record.checkpoint + 1000)})
    row = Rollback(target, target.tables).row(by, Stamp(0, "r")).model_copy(update=changes)
    kept = (*(each for each in last.kept if each <= target.checkpoint), row.checkpoint)
    cut = next(e for e in history.events if isinstance(e, CutWritten) and e.checkpoint == target.checkpoint)
    events = [RowCommitted(row, kept), replace(cut, checkpoint=row.checkpoint)]
    return replace(history, events=[*history.events, *events]), row


def test_a_history_without_rollbacks_is_one_line():
    """Whatever is killed and restored, each entry builds on the one before, and each tick begins from the newest."""
    for seed in range(15):
        history = simulate(seed, moves=NO_MOVES).history
        assert [] == [*off_the_line(history), *not_gone_back(history)], seed


def test_a_rollback_is_in_order():
    """Its entry goes back, the entries after the target leave, and its cut is its parent's."""
    history, _ = rolled_back()
    assert [] == [*off_the_line(history), *not_gone_back(history)]


@pytest.mark.parametrize(("hears", "is_shown"), [(True, True), (True, False), (False, True)])
def test_a_rollback_deletes_leftovers_unless_it_leaves_an_entry_behind(hears, is_shown):
    """It does not know that a cut is recorded if the store's reply was lost, or if a stale list lacks the cut.

    If it found every cut recorded when it claimed the job, it must delete the leftovers before its entry.
    """
    history, row = rolled_back(generation=Generation(99))
    claim = next(event.claim for event in history.events if isinstance(event, JobClaimed))
    claimed = JobClaimed(claim.model_copy(update={"generation": row.generation}))
    *before, entry, cut = history.events
    place = max(at for at, event in enumerate(before) if isinstance(event, CutWritten))
    looked = [] if is_shown else [ListsWereStale((before[place].checkpoint,))]
    told = [*before[: place + hears], *looked, claimed, *before[place + hears :]]
    history = replace(history, events=[*told, entry, cut])
    assert (hears and is_shown) == any("99 had deleted leftovers" in what for what in recovered_out_of_order(history))


def test_a_tick_from_the_old_line_is_found():
    """After a rollback, a tick must begin from its entry.

    `parent-line` says that the tick's first entry builds on it.
    """
    history, row = rolled_back()
    started = next(event for event in history.events if isinstance(event, DoorStarted))
    old = next(e.record for e in reversed(history.events) if isinstance(e, RowCommitted) and e.record != row)
    on_the_old = old.model_copy(update={"checkpoint": row.checkpoint + 1, "parent": old.checkpoint})
    events = [
        replace(started, generation=row.generation + 1, restored=old),
        RowCommitted(on_the_old, (row.checkpoint, on_the_old.checkpoint)),
    ]
    wrong = replace(history, events=[*history.events, *events])
    assert [f"began from {old.checkpoint}"] == [
        " ".join(each.split(",")[0].split()[2:]) for each in off_the_line(wrong)
    ]
    assert [f"row {on_the_old.checkpoint} builds on {old.checkpoint}, not on {row.checkpoint}"] == list(
        INVARIANTS["parent-line"](wrong)
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"checkpoint": 1}, "came after row"),
        ({"parent": 99_999}, "goes back to 99999, which is not there"),
    ],
)
def test_an_entry_that_is_no_rollback_of_this_line_is_found(fault, said):
    """Faults: an id that was used before, and a parent that does not exist."""
    history, _ = rolled_back(**fault)
    assert any(said in text for text in off_the_line(history))


def test_an_entry_of_the_abandoned_line_that_stays_is_found():
    """It is not pinned, so it must leave with the commit of the rollback."""
    history, row = rolled_back()
    last = history.events[-2]
    left = max(
        event.record.checkpoint
        for event in history.events[:-2]
        if isinstance(event, RowCommitted) and event.record.commits
    )
    events = [*history.events[:-2], replace(last, kept=(*last.kept, left)), history.events[-1]]
    found = list(off_the_line(replace(history, events=events)))
    assert [f"row {left} is still there after rollback {row.checkpoint} to {row.parent}"] == found


def test_positions_and_files_of_another_cut_are_found():
    """Faults: a rollback leaves a vertex, or a table, as it was."""
    history, row = rolled_back()
    wrong = replace(history.events[-2], record=row.model_copy(update={"vertices": row.vertices[1:]}))
    found = list(not_gone_back(replace(history, events=[*history.events[:-2], wrong, history.events[-1]])))
    assert [f"rollback {row.checkpoint} holds other positions or state than {row.parent}"] == found
    cut = history.events[-1]
    table = next(name for name, active in cut.active if active)
    other = replace(cut, active=tuple((name, frozenset() if name == table else each) for name, each in cut.active))
    found = list(not_gone_back(replace(history, events=[*history.events[:-1], other])))
    assert [f"{table} shows other files at rollback {row.checkpoint} than at checkpoint {row.parent}"] == found


@pytest.mark.parametrize(("behind", "is_broken"), [(1, False), (0, True)])
def test_a_zombie_that_ends_after_a_rollback_left_no_rows_unread(behind, is_broken):
    """It had caught up before the rollback. The rows that must be read again are not its fault."""
    history, row = rolled_back()
    more = ((split_of_orders(row), 1_000_000),)
    over = TickOver(Generation(row.generation - behind), EndTick(TickOutcome.CAUGHT_UP), more, row)
    found = list(left_uncommitted(replace(history, events=[*history.events, over])))
    assert is_broken is bool(found)


def split_of_orders(row):
    return next(SplitId(vertex.splits[0]) for vertex in row.vertices if vertex.splits)


# ------------------------------------------------------------------
# The judges compute some facts by themselves. These agree with the product's, on simulated entries of every kind.


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
    """This is compared for every subtask of every small parallelism."""
    for most in range(1, 12):
        for parallelism in range(1, most + 1):
            for index, own in enumerate(key_group_ranges(parallelism=parallelism, max_parallelism=most)):
                assert set(range(own.first, own.last + 1)) == key_groups_of(index, parallelism, most)


def _committed(history):
    return (event for event in history.events if isinstance(event, RowCommitted))


# ------------------------------------------------------------------
# The rule on new tables finds a table that shows files of an older table of its name.


def show_rows_of_before(events):
    """A table that is new to the job shows a file that its name had before."""
    place, cut = next(
        (place, each) for place, each in enumerate(events) if isinstance(each, CutWritten) and is_new(events, each)
    )
    active = {**dict(cut.active), AUDIT_TABLE: frozenset({f"{AUDIT_TABLE}/_data/1/audit-1-before.parquet"})}
    return [*events[:place], replace(cut, active=tuple(active.items())), *events[place + 1 :]]


def is_new(events, cut):
    """Return True if this is the first cut of a table that comes and goes."""
    rows = {each.record.checkpoint: each.record for each in events if isinstance(each, RowCommitted)}
    row = rows.get(cut.checkpoint)
    before = rows.get(row.parent) if row is not None else None
    has = [each is not None and any(said.table == AUDIT_TABLE for said in each.columns) for each in (before, row)]
    return before is not None and row.kind is RowKind.CHECKPOINT and [False, True] == has


def test_a_new_table_that_shows_old_rows_is_found():
    """A history in which a table comes is falsified in this way. It breaks exactly the invariant that forbids it."""
    for seed in range(40):
        history = run(seed, moves=Moves(vertices=True)).history
        if any(isinstance(each, CutWritten) and is_new(history.events, each) for each in history.events):
            broken = violations(replace(history, events=show_rows_of_before(list(history.events))))
            assert {"new-tables-begin-empty"} == {each.invariant for each in broken}
            return
    raise AssertionError("no seed has a table that comes")


# ------------------------------------------------------------------
# The rules about overwrite tables can fail, and judge only what they say.


SEED = 0
"""A run with several cuts, restores and numbers of one digit and of two."""


@pytest.fixture(scope="module")
def healthy_of_overwriting():
    """Return the history of a run with an overwrite table. It breaks nothing."""
    outcome = simulate(SEED, moves=Moves(overwrites=True))
    assert () == outcome.violations
    return outcome.history


def broken_of_overwriting(history, rows):
    """Return the rules that the history breaks if the files of the overwrite table have other rows."""

    def read(path):
        return rows(history.rows(path)) if path.startswith(f"{NEWEST_TABLE}/") else history.rows(path)

    return {violation.invariant for violation in violations(replace(history, rows=read, events=[*history.events]))}


@pytest.mark.parametrize(
    "rows",
    [
        lambda rows: rows[1:],
        lambda rows: rows * 2,
        lambda rows: tuple((row + 4 * 2 * 100,) for (row,) in rows),
        lambda rows: (*rows, (0,)),
    ],
    ids=["a row is lost", "each row comes twice", "other rows", "a row of an older delivery"],
)
def test_a_cut_with_other_rows_than_the_newest_is_found(healthy_of_overwriting, rows):
    """Only the rule about the newest rows judges them, and each difference is found."""
    assert {"overwrites-show-newest"} == broken_of_overwriting(healthy_of_overwriting, rows)


def test_the_run_has_deliveries_of_one_digit_and_of_two(healthy_of_overwriting):
    """Otherwise the rule could not tell numbers from texts."""
    files = [
        file
        for event in healthy_of_overwriting.events
        if isinstance(event, RowCommitted)
        for file in named(event.record)
    ]
    written = [delivery_of(row) for path in files for (row,) in healthy_of_overwriting.rows(path)]
    assert min(written) < 10 <= max(written)


def named(record):
    """Return the paths that an entry names for the overwrite table."""
    ranges = (own for was in record.vertices for subtask in was.subtasks for own in subtask.ranges)
    return [keyed.file.path for own in ranges if own.table == NEWEST_TABLE for keyed in own.files]


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
    record = CheckpointRecord(
        job="job",
        kind=kind,
        checkpoint=checkpoint,
        parent=checkpoint - 1,
        generation=1,
        nonce="n",
        max_parallelism=4,
        vertices=(was,),
        tables=(),
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
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
def test_an_entry_with_two_versions_or_a_smaller_one_is_found(healthy_of_overwriting, entries, told):
    """Numbers and texts are compared by their kind. Each partition is judged alone, and only rollbacks go back."""
    found = list(fallen_back(replace(healthy_of_overwriting, events=entries)))
    assert bool(told) == bool(found)
    assert all(told in each for each in found)
