"""Says which cuts of other jobs an entry of `checkpoints` rests on (A10). Imports neither Spark nor a source."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord


@dataclass(frozen=True, slots=True)
class UpstreamCut:
    """A cut of another job: its warehouse, job and checkpoint. `nonce` tells it from another one of that number."""

    warehouse: str
    job: str
    checkpoint: CheckpointId
    nonce: str

    def __str__(self) -> str:
        """Return the cut as a message names it."""
        return f"cut {self.checkpoint} of {self.job} in {self.warehouse}"


class NamesCut(BaseModel):
    """What the position of a source of cuts says about its cut, whatever else it says."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    warehouse: str
    job: str
    cut: CheckpointId
    nonce: str
    at_cut: bool

    @property
    def upstream(self) -> UpstreamCut:
        """The cut."""
        return UpstreamCut(self.warehouse, self.job, self.cut, self.nonce)


def rests_on(record: CheckpointRecord | None) -> tuple[UpstreamCut, ...]:
    """Return the upstream cuts that an entry's sources stand at, each once; none for a job that reads no cuts."""
    vertices = record.vertices if record is not None else ()
    return cuts_at(subtask.position for vertex in vertices if vertex.splits for subtask in vertex.subtasks)


def cuts_at(positions: Iterable[str | None]) -> tuple[UpstreamCut, ...]:
    """Return the upstream cuts at these positions, each once; positions of other kinds of sources are passed over."""
    return tuple(dict.fromkeys(_cuts(positions)))


def _cuts(positions: Iterable[str | None]) -> Iterator[UpstreamCut]:
    for position in positions:
        with suppress(ValidationError):
            yield NamesCut.model_validate_json(position or "").upstream
