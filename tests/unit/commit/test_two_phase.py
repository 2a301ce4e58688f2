"""The commit refuses facts that nobody waits for. The machine of the commit judges what it does with the others."""

import pytest

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.two_phase import (
    TRANSITIONS,
    CommitIdentity,
    CommitState,
    Draft,
    TwoPhaseCommit,
    UnexpectedFactError,
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
from checkpointing.metadata.record import Statistics, VertexRecord
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
    """Every pair of state and fact that is not in the table is refused. So is a fact for another checkpoint."""
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
