"""Finds the splits of a pipeline's sources, and checks that a cut can be restored into the pipeline."""

from checkpointing.identifiers import SplitId
from checkpointing.job.restoring import CutDoesNotFitError, check_fits
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from jobs.planner import JobPlan
from jobs.recovery.renaming import Renaming
from jobs.sources.hybrid import Part
from jobs.sources.port import Source, in_parts


def fitting(plan: JobPlan, renaming: Renaming, *, allow_non_restored_state: bool) -> JobPlan:
    """Return the plan with its sources' splits. Raise CutDoesNotFitError unless the cut can be restored into it.

    Raises SourceError and InvalidPipelineError as `JobPlan.with_discovered_splits` does.
    """
    record = renaming.record
    found = plan.with_discovered_splits(record)
    if record is None:
        return found
    check_fits(found.graph, record, plan.config.max_parallelism, allow_non_restored_state=allow_non_restored_state)
    for was in record.vertices:
        if was.vertex in renaming.read_alone:
            _must_be_first(plan.sources[was.vertex], was, record)
    return found


def _must_be_first(source: Source, was: VertexRecord, record: CheckpointRecord) -> None:
    """Raise CutDoesNotFitError unless the first part has all splits of the cut, and knows their positions.

    If the first part is another source, it reads nothing of the splits, and a later part would repeat their rows.
    """
    first, own = next(in_parts(source, map(SplitId, was.splits)))
    there = first.splits()
    for split, snapshot in zip(own, was.subtasks, strict=True):
        if split not in there:
            lacks = f"has no split {split!r}"
        elif snapshot.position is not None and isinstance(first, Part) and not first.knows(split, snapshot.position):
            lacks = f"does not know the position of split {split!r}"
        else:
            continue
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} holds positions of source {was.vertex!r}, which has several parts now. "
            f"They go to the first part, but {first} {lacks}. Let the source that was read so far be the first part, "
            "with all its splits (an empty one will do)"
        )
