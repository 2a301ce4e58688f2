"""The ways between the parts of a job: what a subtask says reaches all who must hear it."""

from checkpointing.channel_items import CancelMarker
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.identifiers import EdgeId, SubtaskId
from checkpointing.job.door import Wiring
from checkpointing.job.setup import JobSetup
from checkpointing.task.messages import BroadcastCancelMarker


def test_the_marker_of_a_cancelled_checkpoint_goes_into_every_channel_of_its_subtask(job, monkeypatch):
    """Here two vertices read the same source."""
    readers = [Vertex(name, VertexKind.KEYED, 1, (Table(f"out/{name}", TableMode.APPEND),)) for name in ("one", "two")]
    source = Vertex("left", VertexKind.SOURCE, 1, splits=("l",))
    graph = JobGraph((source, *readers), tuple(EdgeId("left", each.id) for each in readers))
    setup = JobSetup(graph=graph, config=CheckpointConfig(), job="j", claim=job.claim, at_version=1)
    wiring, sent = Wiring(setup), []
    monkeypatch.setattr(wiring, "arrive", lambda channel, item: sent.append((channel.edge.downstream, item)))
    wiring.from_subtask(SubtaskId("left", 0), (BroadcastCancelMarker(7),))
    assert [("one", CancelMarker(7)), ("two", CancelMarker(7))] == sent
