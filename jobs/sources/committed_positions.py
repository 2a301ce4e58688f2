"""A source that writes its positions to a small JSON file, so that other programs see how far a job has read (F2).

The file serves monitoring, retention of the input, and a hand-over to another tool. Kafka's consumer groups do the same
for Flink's Kafka source. A restore takes the positions of the checkpoint and never reads this file. The file is written
after a checkpoint has completed, so the file is never ahead of the newest checkpoint. If a tick dies before it writes
the file, the file lags behind until the next tick.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from checkpointing.identifiers import CheckpointId, SplitId
from jobs.sources.hybrid import ReadsFirst
from jobs.sources.port import Source, SourceError, WrappedSource
from jobs.storage.json_files import document
from jobs.storage.place import local


class Committed(BaseModel):
    """The content of the file. Since checkpoint `checkpoint`, the tables have all rows before these positions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    checkpoint: CheckpointId
    positions: dict[SplitId, str]
    """From splits to positions, in the source's own notation."""


class CommitsToFile(WrappedSource, ReadsFirst):
    """A source whose positions are written to `file` when a checkpoint completes (see `port.CommitsPositions`).

    The file is replaced in one step. A checkpoint that is not newer than the one in the file changes nothing. A job in
    a new warehouse counts its checkpoints from 1, so give it a new file.
    """

    def __init__(self, source: Source, file: Path) -> None:
        """Wrap `source`. Nothing is written before the first completed checkpoint."""
        super().__init__(source)
        self._file = file
        self._lock = threading.Lock()

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Write the positions durably. Raise SourceError if another kind of file has this name."""
        with self._lock:
            before = committed_in(self._file)
            if before is not None and before.checkpoint >= checkpoint:
                return
            local(self._file).replace(document(Committed(checkpoint=checkpoint, positions=dict(positions))))


def committed_in(file: Path) -> Committed | None:
    """Return the committed positions, or None if none were written yet. Raise SourceError for another kind of file."""
    try:
        return Committed.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise SourceError(
            f"{file} does not hold committed positions ({type(error).__name__}): delete it, the next completed "
            "checkpoint writes it anew, or name another file"
        ) from error
