"""Events of the judgement of a vertex's rows by a suite: its begin, and its end with or without a verdict."""

from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId, Generation, VertexId


@dataclass(frozen=True, slots=True)
class JudgementBegun:
    """A generation asked a suite to judge the rows that a vertex has staged for a checkpoint."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JudgementCancelled:
    """A generation stopped waiting for this verdict."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class JudgementTold:
    """The suite's verdict arrived."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId
    passed: bool
    report: str


@dataclass(frozen=True, slots=True)
class JudgementBroke:
    """The suite failed, so there is no verdict."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId
