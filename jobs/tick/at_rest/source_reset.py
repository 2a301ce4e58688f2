"""Moves one source, or one split of it, to another position. Tables and state stay as they are (K2).

This takes one entry: the newest cut under a new id, with other positions. Rows that are read again are processed again.
Rows that are skipped are never processed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkpointing.commit.at_rest import Move, SourceReset, moved
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import JobName, SplitId, VertexId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.tick.attempts import RESET
from checkpointing.tick.messages import RowChosen, Work
from jobs.sources.port import Source
from jobs.sources.position_words import Place, seek
from jobs.suggestions import there_are
from jobs.tick.at_rest.take_savepoint import no_checkpoint_yet
from jobs.tick.at_rest.task_at_rest import Task, done_at_rest
from jobs.tick.rollback_plan import NoSuchRowError, SplitBack, observe_sound, splits_back
from jobs.warehouse.boundaries import Boundary, cross_freely
from jobs.warehouse.job_stores import JobStores, must_have_run
from jobs.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Reset:
    """The user's request: to move this source, or one split of it, to the position that `words` name."""

    source: str
    words: str
    split: str | None = None


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The newest entry of the job, and the splits that move."""

    job: JobName
    newest: CheckpointRecord
    splits: tuple[SplitBack, ...]


def preview_reset(warehouse: Warehouse, sources: Mapping[VertexId, Source], asked: Reset) -> ResetPlan:
    """Return what `reset` would do, without changing anything. Raises the errors of `reset` before its claim."""
    must_have_run(warehouse)
    stores = JobStores(warehouse, cross_freely)
    return _planned(warehouse, newest_checkpoint(observe_sound(stores).rows), sources, asked)[0]


def reset(
    warehouse: Warehouse, sources: Mapping[VertexId, Source], asked: Reset, *, boundary: Boundary = cross_freely
) -> tuple[ResetPlan, CheckpointRecord]:
    """Move the source of a job at rest. Return the plan that was carried out, and the new entry.

    Raises NeverRunError, JobHeldError, DamagedCheckpointError, NoSuchRowError for an unknown source or split,
    NoSuchPositionError and SourceError before an entry is appended. Raises ClaimUnsettledError, RollForwardError and
    CutsNotRecordedError as `roll_back` does.
    """
    must_have_run(warehouse)
    stores = JobStores(warehouse, boundary)
    plans: list[ResetPlan] = []

    def possible(_: Observed, plan: RecoveryPlan) -> None:
        _planned(warehouse, plan.restore, sources, asked)

    def chosen(work: Work) -> RowChosen:
        plan, move = _planned(warehouse, work.plan.restore, sources, asked)
        plans.append(plan)
        return RowChosen(SourceReset(plan.newest, move))

    task = Task(errand=RESET, do_work=chosen, possible=possible, observe=observe_sound)
    row = done_at_rest(stores, task, boundary).entry
    return plans[-1], row


def _planned(
    warehouse: Warehouse, newest: CheckpointRecord | None, sources: Mapping[VertexId, Source], asked: Reset
) -> tuple[ResetPlan, Move]:
    if newest is None:
        raise no_checkpoint_yet(warehouse.paths.job)
    vertex = _vertex(newest, sources, asked.source)
    move = Move(vertex.vertex, _positions(vertex, sources[vertex.vertex], asked))
    then = newest.model_copy(update={"vertices": moved(newest, move)})
    changed = tuple(split for split in splits_back(newest, then) if split.now != split.then)
    return ResetPlan(warehouse.paths.job, newest, changed), move


def _vertex(newest: CheckpointRecord, sources: Mapping[VertexId, Source], name: str) -> VertexRecord:
    known = {each.vertex: each for each in newest.vertices if each.splits and each.vertex in sources}
    found = known.get(VertexId(name))
    if found is None:
        raise NoSuchRowError(f"{newest.job} reads no source {name!r}: {there_are(name, sorted(known))}")
    return found


def _positions(vertex: VertexRecord, source: Source, asked: Reset) -> dict[SplitId, str | None]:
    if asked.split is not None and asked.split not in vertex.splits:
        raise NoSuchRowError(
            f"source {vertex.vertex} has read no split {asked.split!r}: {there_are(asked.split, vertex.splits)}"
        )
    return {
        SplitId(split): seek(source, Place(vertex.vertex, SplitId(split), subtask.position), asked.words)
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=True)
        if asked.split in (None, split)
    }
