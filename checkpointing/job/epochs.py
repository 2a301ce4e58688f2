"""What is measured of each epoch on its way through the job (C7, E6). Statistics never steer."""

from dataclasses import dataclass, field

from checkpointing.gate.messages import BarrierReceived, InFlightComplete, TriggerCheckpoint
from checkpointing.identifiers import CheckpointId, VertexId
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from checkpointing.metadata.record import BarrierRecord, Statistics, VertexStatistics


@dataclass(slots=True)
class _Work:
    """What a vertex has done since its last barrier."""

    micro_batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    bytes_out: int = 0
    busy_ms: int = 0


@dataclass(slots=True)
class _Epoch:
    """One epoch between its trigger and its end."""

    triggered_ms: int
    rows: int
    barriers: dict[VertexId, list[BarrierRecord]] = field(default_factory=dict)
    passed: dict[VertexId, VertexStatistics] = field(default_factory=dict)
    verdicts: list[str] = field(default_factory=list)


class EpochLog:
    """Collects the life of every pending epoch; forgets it when the epoch ends."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self._epochs: dict[CheckpointId, _Epoch] = {}
        self._work: dict[VertexId, _Work] = {}

    def triggered(self, checkpoint: CheckpointId, now_ms: int, rows: int) -> None:
        """The sources were told; `rows` they had sent in this tick."""
        self._epochs[checkpoint] = _Epoch(now_ms, rows)

    def worked(self, fact: MicroBatchFinished, rows_in: int) -> None:
        """A micro-batch is done."""
        work = self._work.setdefault(fact.vertex, _Work())
        work.micro_batches += 1
        work.rows_in += rows_in
        work.busy_ms += fact.duration_ms
        for output in fact.outputs:
            rows, size = _written(output)
            work.rows_out += rows
            work.bytes_out += size

    def received(self, vertex: VertexId, effect: BarrierReceived) -> None:
        """A barrier reached a channel's end."""
        epoch = self._epochs.get(effect.checkpoint)
        if epoch is not None:
            epoch.barriers.setdefault(vertex, []).append(BarrierRecord(channel=str(effect.channel), at_ms=effect.at_ms))

    def passed(self, vertex: VertexId, trigger: TriggerCheckpoint, now_ms: int) -> None:
        """A vertex has passed the barrier: what it did since the last one belongs to this epoch."""
        epoch = self._epochs.get(trigger.barrier.checkpoint)
        work = self._work.pop(vertex, _Work())
        if epoch is None:
            return
        epoch.passed[vertex] = VertexStatistics(
            vertex=vertex,
            aligned_ms=now_ms,
            alignment=trigger.barrier.alignment,
            alignment_ms=trigger.alignment_ms,
            bytes_held=trigger.bytes_held,
            micro_batches=work.micro_batches,
            rows_in=work.rows_in,
            rows_out=work.rows_out,
            bytes_out=work.bytes_out,
            busy_ms=work.busy_ms,
        )

    def overtaken(self, vertex: VertexId, effect: InFlightComplete) -> None:
        """The last barrier of an unaligned checkpoint is there, after its snapshot was taken."""
        epoch = self._epochs.get(effect.checkpoint)
        if epoch is not None and vertex in epoch.passed:
            known = epoch.passed[vertex]
            epoch.passed[vertex] = known.model_copy(update={"alignment_ms": effect.alignment_ms})

    def acknowledged(self, vertex: VertexId, checkpoint: CheckpointId, now_ms: int) -> None:
        """A subtask of the vertex has acknowledged; the last one's time stays."""
        epoch = self._epochs.get(checkpoint)
        if epoch is None:
            return
        known = epoch.passed.get(vertex, VertexStatistics(vertex=vertex, aligned_ms=now_ms))
        epoch.passed[vertex] = known.model_copy(update={"acknowledged_ms": now_ms})

    def judged(self, checkpoint: CheckpointId, report: str) -> None:
        """A suite gave its verdict."""
        if checkpoint in self._epochs:
            self._epochs[checkpoint].verdicts.append(report)

    def ended(self, checkpoint: CheckpointId) -> Statistics:
        """Forget the epoch and return what was measured; its commit time is filled in by the commit."""
        epoch = self._epochs.pop(checkpoint, None) or _Epoch(0, 0)
        return Statistics(
            triggered_ms=epoch.triggered_ms,
            committed_ms=0,
            rows=epoch.rows,
            vertices=tuple(_with_barriers(epoch, known) for known in epoch.passed.values()),
            verdicts=tuple(epoch.verdicts),
        )


def _with_barriers(epoch: _Epoch, known: VertexStatistics) -> VertexStatistics:
    """All barriers of the vertex, also those that came after its snapshot."""
    barriers = epoch.barriers.get(known.vertex, ())
    return known.model_copy(update={"barriers": tuple(barriers)}) if barriers else known


def _written(output: SubtaskOutput) -> tuple[int, int]:
    """Rows and bytes of a subtask's output; a file that is emitted and staged counts once."""
    files = {file.path: file for file in output.emitted}
    files |= {file.path: file for _, file in output.staged}
    files |= {keyed.file.path: keyed.file for entry in output.ranges for keyed in entry.files}
    return sum(file.rows for file in files.values()), sum(file.bytes for file in files.values())
