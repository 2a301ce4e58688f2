"""Finds the cuts of upstream jobs in an entry of `checkpoints` (A10). Imports neither Spark nor a source."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class UpstreamCut:
    """A cut of another job: its warehouse, job and checkpoint. `nonce` distinguishes cuts with the same number."""

    warehouse: str
    job: str
    checkpoint: CheckpointId
    nonce: str

    def __str__(self) -> str:
        """Return the cut's name in messages."""
        return f"cut {self.checkpoint} of {self.job} in {self.warehouse}"


class NamesCut(BaseModel):
    """The part of a position of a source of cuts that names the cut."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    warehouse: str
    job: str
    cut: CheckpointId
    nonce: str
    at_cut: bool

    @property
    def upstream(self) -> UpstreamCut:
        """Return the cut."""
        return UpstreamCut(self.warehouse, self.job, self.cut, self.nonce)


def rests_on(record: CheckpointRecord | None) -> tuple[UpstreamCut, ...]:
    """Return the upstream cuts at which an entry's sources stand, each once."""
    vertices = record.vertices if record is not None else ()
    return cuts_at(subtask.position for vertex in vertices if vertex.splits for subtask in vertex.subtasks)


def cuts_at(positions: Iterable[str | None]) -> tuple[UpstreamCut, ...]:
    """Return the upstream cuts at these positions, each once. Ignore positions of other kinds of sources."""
    return tuple(dict.fromkeys(_cuts(positions)))


def _cuts(positions: Iterable[str | None]) -> Iterator[UpstreamCut]:
    for position in positions:
        with suppress(ValidationError):
            yield NamesCut.model_validate_json(position or "").upstream
