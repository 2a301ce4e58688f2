"""Provides a source that has state besides its positions: a word that the source chose when its job was new."""

from pathlib import Path
from uuid import uuid4

from checkpointing.identifiers import CheckpointId
from jobs.sources.port import Source, SourceError, WrappedSource


class Remembering(WrappedSource):
    """Fails if a checkpoint has no word, or another word than the job chose at its newest start without a checkpoint.

    A file keeps the chosen word.
    """

    def __init__(self, source: Source, folder: Path) -> None:
        super().__init__(source)
        self._noted, self._word = folder / "word", ""

    def snapshot_state(self) -> str:
        return self._word

    def restore_state(self, checkpoint: CheckpointId | None, state: str | None) -> None:
        """Take the word from the checkpoint. For a new job, choose a word and write it into the file."""
        if checkpoint is None:
            self._word = uuid4().hex
            self._noted.write_text(self._word)
        elif state is None or state != self._noted.read_text():
            raise SourceError(f"checkpoint {checkpoint} has {state!r}, and the job chose {self._noted.read_text()!r}")
        else:
            self._word = state
