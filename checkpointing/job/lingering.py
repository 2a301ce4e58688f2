"""Decides how long the segments of a vertex wait for more, so that micro-batches are few and large.

Readers see rows only behind a barrier. So shortly before a periodic barrier, a few rows gain nothing if they run at
once. They wait for the barrier, and one micro-batch takes them together with the rows that come meanwhile. Idle splits
are asked more often then, so that the barrier takes newer rows with it.
"""

from typing import Final

from checkpointing.identifiers import VertexId
from checkpointing.job.operator_run import OperatorRun
from checkpointing.job.wiring import Wiring
from checkpointing.messages import SourceIdle

FEW_ROWS: Final = 10_000
"""A micro-batch of fewer rows takes about as long as one of a single row."""

POLLS: Final = 10
"""Shortly before a barrier, an idle split is asked so many times as often."""


def is_time(job: Wiring, run: OperatorRun) -> bool:
    """Return whether a vertex shall run what it has collected. No segment waits longer than `linger_ms`."""
    until_ms = run.collected_since_ms + job.setup.linger_ms
    if job.now_ms >= until_ms:
        return True
    few = run.collected_rows < FEW_ROWS
    return not (_more_is_coming(job, run.vertex.id) or (few and _barrier_is_near(job, until_ms)))


def ask_again(job: Wiring, fact: SourceIdle) -> None:
    """Note that a split has nothing to read now, and decide when it is asked again."""
    job.readers.found_idle(fact.source, fact.split, job.now_ms)
    wait_ms = job.setup.idle_poll_ms
    if _barrier_is_near(job, job.now_ms + wait_ms):
        job.readers.ask_sooner(fact.source, fact.split, job.now_ms + wait_ms // POLLS)


def _barrier_is_near(job: Wiring, until_ms: int) -> bool:
    """Return whether a periodic barrier is due by then. A job without an interval has none."""
    due_ms = job.coordinator.next_due_ms if job.setup.config.interval_ms is not None else None
    return due_ms is not None and due_ms <= until_ms


def _more_is_coming(job: Wiring, vertex: VertexId) -> bool:
    return any(_stirs(job, edge.upstream) for edge in job.setup.graph.upstream(vertex))


def _stirs(job: Wiring, vertex: VertexId) -> bool:
    """Return whether the vertex is working on something that it will send on by itself."""
    run = job.runs.get(vertex)
    if run is None:
        return job.readers.is_polling(vertex)
    return run.at_work or _more_is_coming(job, vertex)
