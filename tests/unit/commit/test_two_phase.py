"""Commits one checkpoint at a time: check, append, publish, record (F3, G5; issue 4, item 17)."""

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.two_phase import (
    TRANSITIONS,
    CheckpointCommitted,
    CommitEnded,
    CommitIdentity,
    CommitState,
    Draft,
    IdsReserved,
    TwoPhaseCommit,
    UnexpectedFactError,
)
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import EdgeId
from checkpointing.messages import (
    CheckTables,
    CutRecorded,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
    TablesChecked,
)
from checkpointing.metadata.record import Claim, Holder, RowKind, Statistics, VertexRecord
from tests.unit.digest import digest

GRAPH = JobGraph(
    (
        Vertex("s", VertexKind.SOURCE, 1, splits=("a",)),
        Vertex(
            "v", VertexKind.KEYED, 1, (Table("out/log", TableMode.APPEND), Table("out/sums", TableMode.UPSERT, ("k",)))
        ),
    ),
    (EdgeId("s", "v"),),
)


def handle(name):
    return FileHandle(name, 1, 1, 0)


def ranged(name, batch):
    keyed = KeyedFile(handle(name), KeyedFileKind.BASE, 0, 127, Version(1, batch))
    return (RangeFiles("out/sums", (keyed,)),)


def draft(checkpoint, staged=(), ranges=(), subsumed=(), **kind):
    """Return an acknowledged checkpoint with these files."""
    snapshot = SubtaskSnapshot(
        staged=tuple(StagedFile("out/log", handle(n), after) for n, after in staged), ranges=ranges
    )
    vertices = (
        VertexRecord(vertex="s", micro_batch=0, subtasks=(SubtaskSnapshot(position="1"),), splits=("a",)),
        VertexRecord(vertex="v", micro_batch=1, subtasks=(snapshot,)),
    )
    return Draft(checkpoint, vertices, Statistics(triggered_ms=0, committed_ms=0, rows=1), subsumed, **kind)


@pytest.fixture
def door():
    identity = CommitIdentity(job="j", generation=2, nonce="n", max_parallelism=128)
    return TwoPhaseCommit(GRAPH, identity, parent=None, versions={}, at_version=5)


def committed(door, offered, version, tables=2):
    """Drive a checkpoint up to its recorded cut. Return its entry."""
    (check,) = door.offer(offered, 10)
    assert isinstance(check, CheckTables)
    (append,) = door.step(TablesChecked(offered.checkpoint, ()), 20)
    effects = door.step(RowAppended(append.row.nonce, version), 30)
    publishes = [effect for effect in effects if isinstance(effect, PublishTable)]
    assert tables == len(publishes)
    for place, publish in enumerate(publishes):
        effects = door.step(TablePublished(offered.checkpoint, publish.publication.table, place + 1), 40)
    (record,) = effects
    assert isinstance(record, RecordCut)
    done = door.step(CutRecorded(offered.checkpoint), 50)
    assert isinstance(done[0], CheckpointCommitted)
    return done[0].record


def test_a_commit_goes_check_append_publish_record(door):
    """Nothing is published before the entry is in, and the cut is recorded last."""
    row = committed(door, draft(1, staged=[("a", 0)], ranges=ranged("r1", 1)), 6)
    assert (0, 1, 2, "n/1") == (row.parent, row.checkpoint, row.generation, row.nonce)
    assert CommitState.IDLE is door.state


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        (RowRefused("n/1", "process 9"), CheckpointFailureReason.FENCED),
        (RowUnknown("n/1", "no answer"), CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE),
    ],
)
def test_an_entry_refused_or_unknown_ends_the_tick(door, fact, reason):
    """If the entry is refused or its outcome unknown, the tick commits nothing more.

    Only a new claim can go on (G5, E3).
    """
    door.offer(draft(1), 10)
    door.step(TablesChecked(1, ()), 20)
    (ended,) = door.step(fact, 30)
    assert isinstance(ended, CommitEnded)
    assert reason is ended.reason
    assert () == door.offer(draft(2), 40)


def test_subsumed_entries_leave_in_the_same_commit(door):
    """One append adds the new entry and removes the subsumed ones."""
    door.offer(draft(9, subsumed=(4, 5)), 10)
    (append,) = door.step(TablesChecked(9, ()), 20)
    assert (4, 5) == append.subsumed


def test_a_further_block_of_ids_is_reserved_between_commits(door):
    """A second claim of the same generation waits for its turn, and IdsReserved answers it."""
    door.offer(draft(1), 10)
    claim = Claim(
        generation=2, holder=Holder(host="h", pid=1, started="s"), first_id=11, last_id=20, at_ms=0, nonce="n+11"
    )
    assert () == door.reserve(claim)
    door.step(TablesChecked(1, ()), 20)
    door.step(RowAppended("n/1", 6), 30)
    _, append = door.step(CutRecorded(1), 40)
    assert (claim, 6) == (append.row, append.at_version)
    assert (IdsReserved(11, 20),) == door.step(RowAppended("n+11", 7), 50)


UNAWAITED = [
    TablesChecked(1, ()),
    RowAppended("n/1", 6),
    RowRefused("n/1", "x"),
    RowUnknown("n/1", "x"),
    TablePublished(1, "out/log", 1),
    PublishFailed(1, "out/log", "x"),
    CutRecorded(1),
]


@pytest.mark.parametrize("fact", UNAWAITED, ids=lambda fact: type(fact).__name__)
def test_a_fact_that_nobody_waits_for_raises_and_changes_nothing(door, fact):
    """Every pair of state and fact that is not in the table is refused. So is a fact for another checkpoint."""
    before = digest([door])
    with pytest.raises(UnexpectedFactError):
        door.step(fact, 10)
    assert before == digest([door])
    door.offer(draft(7, staged=[("a", 0)]), 10)
    before = digest([door])
    with pytest.raises(UnexpectedFactError):
        door.step(fact, 20)
    assert before == digest([door])


def test_every_transition_of_the_table_leads_to_a_known_state():
    assert all(targets for targets in TRANSITIONS.values())
    assert not any(state is CommitState.ENDED for state, _ in TRANSITIONS)


PLAIN = {"kind": RowKind.SAVEPOINT, "pinned": True}


def test_a_plain_savepoint_overtaken_by_a_newer_checkpoint_is_declined(door):
    """It has no parent any more with which its tables could be compared. It might repeat rows, so it is declined."""
    committed(door, draft(2, staged=[("a", 0)]), 6, tables=1)
    (declined,) = door.offer(draft(1, **PLAIN), 60)
    assert (1, CheckpointFailureReason.CHECKPOINT_SUBSUMED) == (declined.checkpoint, declined.reason)
    assert CommitState.IDLE is door.state


def test_net_files_are_the_files_since_the_committed_parent(door):
    """Files that a failed checkpoint staged are in the next entry. Files that the parent published are not."""
    committed(door, draft(1, staged=[("a", 0)]), 6, tables=1)
    row = committed(door, draft(3, staged=[("a", 0), ("b", 1), ("c", 2)]), 7, tables=1)
    assert ("b", "c") == tuple(file.path for file in row.tables[0].adds)
