"""Lists the events of a suite's judgement of a vertex's rows: its begin, and its end with or without a verdict."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, Generation, VertexId


@dataclass(frozen=True, slots=True)
class JudgementBegun:
    """A generation asked for the verdict on the rows that a vertex has staged for a checkpoint."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JudgementCancelled:
    """A generation no longer waits for this verdict."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class JudgementTold:
    """The verdict came."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId
    passed: bool
    report: str


@dataclass(frozen=True, slots=True)
class JudgementBroke:
    """No verdict came: the judge failed."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId
