"""The model of inputs that read named outputs: a cut with rows in flight is restored only if they are read on.

The rows in flight of an input are in files of all outputs of its upstream vertex. The input takes those of its output,
and passes over the others. Rule `outputs-are-read-on`: a cut is refused exactly if an input that has rows in flight
reads another output than at the cut. An entry that does not say what was read is restored.

The entry is the one that the product composes for the graph of then, and the check is that of a starting tick.
"""

from itertools import product
from typing import Final

from checkpointing.channel_items import ChannelState, StagedSegment, SubtaskSnapshot
from checkpointing.coordinator.messages import CommitCheckpoint
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.coordinator.task import AcknowledgedState
from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import (
    NO_CHECKPOINT,
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    JobName,
    SubtaskId,
    VertexId,
)
from checkpointing.job import restoring
from checkpointing.job.drafts import Drafts
from checkpointing.metadata.codec import decode, encode
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import CheckpointRecord, Statistics

READ_ON: Final = "outputs-are-read-on"

_JOB: Final = JobName("model")
_SORT: Final = VertexId("sort")
_READER: Final = VertexId("reader")
_INPUTS: Final = 2
_OUTPUTS: Final = (None, "odd", "seen")
_CHOICES: Final = tuple(product(_OUTPUTS, repeat=_INPUTS))


def outputs_are_read_on() -> bool:
    """Return whether exactly those cuts are restored in which each input with rows in flight reads its output on."""
    for then, now in product(_CHOICES, repeat=2):
        for flying in ((), (0,), (1,), (0, 1)):
            entry = _entry(_graph(then), flying)
            fits = all(then[each] == now[each] for each in flying)
            if _restores(_graph(now), entry) is not fits or not _restores(_graph(now), _older(entry)):
                return False
    return True


def _graph(outputs: tuple[str | None, ...]) -> JobGraph:
    """Return the graph of a vertex that reads these outputs of another one. It reads one vertex through two inputs."""
    read = outputs if any(outputs) else ()
    sort = Vertex(_SORT, VertexKind.KEYED, 1)
    reader = Vertex(_READER, VertexKind.KEYED, 1, outputs_read=read)
    return JobGraph((sort, reader), tuple(EdgeId(_SORT, _READER, number) for number in range(_INPUTS)))


def _entry(graph: JobGraph, flying: tuple[int, ...]) -> CheckpointRecord:
    """Return the entry that a tick of this pipeline writes, as a later one reads it."""
    held = tuple(ChannelState(ChannelId(EdgeId(_SORT, _READER, each), 0), (_SEGMENT,)) for each in flying)
    effect = CommitCheckpoint(
        checkpoint=CheckpointId(3),
        properties=CHECKPOINT,
        triggered_ms=0,
        states={
            SubtaskId(_SORT, 0): AcknowledgedState(payload=SubtaskSnapshot()),
            SubtaskId(_READER, 0): AcknowledgedState(payload=SubtaskSnapshot(in_flight=held)),
        },
    )
    statistics = Statistics(triggered_ms=0, committed_ms=0, rows=0)
    entry = CheckpointRecord(
        job=_JOB,
        checkpoint=effect.checkpoint,
        parent=NO_CHECKPOINT,
        generation=Generation(1),
        nonce="3",
        max_parallelism=4,
        vertices=Drafts(graph).compose(effect, statistics, {}).vertices,
        tables=(),
        statistics=statistics,
    )
    read = decode(encode(entry, writer="spec"))
    if not isinstance(read, CheckpointRecord):
        raise TypeError(f"{read!r} is no checkpoint's entry")
    return read


def _older(entry: CheckpointRecord) -> CheckpointRecord:
    """Return the entry of a version that did not record what was read."""
    vertices = tuple(was.model_copy(update={"outputs_read": None}) for was in entry.vertices)
    return entry.model_copy(update={"vertices": vertices})


def _file() -> FileHandle:
    paths = ProtocolPaths(_JOB)
    return FileHandle(paths.staged_file(paths.channel(_SORT), Generation(1), StagedName(_SORT, 1, "0" * 32)), 1, 10, 7)


_SEGMENT: Final = StagedSegment((_file(),))


def _restores(graph: JobGraph, entry: CheckpointRecord) -> bool:
    try:
        restoring.check_fits(graph, entry, entry.max_parallelism)
    except restoring.CutDoesNotFitError:
        return False
    return True
