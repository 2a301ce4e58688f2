"""The commit refuses facts that it does not wait for. The machine of the commit tests all other facts."""

import pytest

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.two_phase import (
    TRANSITIONS,
    CommitIdentity,
    CommitState,
    Draft,
    TwoPhaseCommit,
    UnexpectedFactError,
    files_to_sync,
)
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, StagedFile
from checkpointing.identifiers import EdgeId
from checkpointing.messages import (
    CutRecorded,
    PublishFailed,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
    TablesChecked,
)
from checkpointing.metadata.record import ErasedFile, Statistics, TableRecord, VertexRecord
from tests.unit.digest import digest
from tests.unit.full_entry import plain_entry

GRAPH = JobGraph(
    (
        Vertex("s", VertexKind.SOURCE, 1, splits=("a",)),
        Vertex(
            "v", VertexKind.KEYED, 1, (Table("out/log", TableMode.APPEND), Table("out/sums", TableMode.UPSERT, ("k",)))
        ),
    ),
    (EdgeId("s", "v"),),
)


STAGED = SubtaskSnapshot(staged=(StagedFile("out/log", FileHandle("a", 1, 1, 0), 0),))
DRAFT = Draft(
    7,
    (
        VertexRecord(vertex="s", micro_batch=0, subtasks=(SubtaskSnapshot(position="1"),), splits=("a",)),
        VertexRecord(vertex="v", micro_batch=1, subtasks=(STAGED,)),
    ),
    Statistics(triggered_ms=0, committed_ms=0, rows=1),
    (),
)


@pytest.fixture
def door():
    identity = CommitIdentity(job="j", generation=2, nonce="n", max_parallelism=128)
    return TwoPhaseCommit(GRAPH, identity, parent=None, versions={}, at_version=5)


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
    """The commit refuses a fact for another checkpoint, and a fact without a transition from the present state."""
    before = digest([door])
    with pytest.raises(UnexpectedFactError):
        door.step(fact, 10)
    assert before == digest([door])
    door.offer(DRAFT, 10)
    before = digest([door])
    with pytest.raises(UnexpectedFactError):
        door.step(fact, 20)
    assert before == digest([door])


def test_every_transition_of_the_table_leads_to_a_known_state():
    assert all(targets for targets in TRANSITIONS.values())
    assert not any(state is CommitState.ENDED for state, _ in TRANSITIONS)


def snapshots(adds, *subtasks):
    """Return an entry that adds these files. Each letter is a file.

    A capital is a file whose content is in the entry.
    """

    def handles(names):
        return tuple(FileHandle(each, 1, 1, 0, inline="QQ==" if each.isupper() else "") for each in names)

    own = (SubtaskSnapshot(staged=tuple(StagedFile("out/log", each, 0) for each in handles(one))) for one in subtasks)
    vertex = VertexRecord(vertex="v", micro_batch=1, subtasks=tuple(own))
    table = TableRecord(table="out/log", mode=TableMode.APPEND, adds=handles(adds), parent_version=1)
    return plain_entry(vertices=(vertex,), tables=(table,))


def test_only_files_that_no_retained_entry_names_are_synced():
    """Subtask 0 has a new file and keeps one. Subtask 1 takes a file over, 2 stays, and 3 is new. Rows were erased."""
    before, other = snapshots("xy", "ab", "c", "d"), snapshots("", *"uvw")
    into = FileHandle("o", 1, 1, 0)
    erased = tuple(ErasedFile(table="out/log", path=name, into=after) for name, after in (("x", None), ("y", into)))
    now = snapshots("zZ", "bfF", "ac", "d", "g").model_copy(update={"erased": erased})
    assert tuple("zofg") == files_to_sync(now, [other, before])
    assert tuple("zobfacdg") == files_to_sync(now, [])
    assert () == files_to_sync(before, [now, before]), "one subtask less"
