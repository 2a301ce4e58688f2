"""The worked example (I1): one source with two splits, barrier 1 at positions 105 and 100, and then a failure.

When barrier 1 is sent, the fast split stands at position 105, and the slow one at 100. Micro-batches are small, so
records queue before the count. The count takes slices from the channels in turn, and a slice of the slow split has one
record. So barrier 1 reaches the end of the fast channel first. Records 105, 106, ... of epoch 2 follow it there, while
the slow channel's barrier is still far away.

In exactly-once mode, the count does not take those records until both barriers have arrived, so its state holds 205
records. In at-least-once mode, the count takes them at once. Then the snapshot includes records of the fast split from
105 on, but the split's position is 105. If the job now fails and restores, it reads those records again from 105, and
counts them twice.

After each completed checkpoint, the example also writes its positions to `offsets_100_105/committed.json` in the data
folder. A reader of that file never sees a position behind which a restore could go back.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Condition

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import SplitId, split_id
from checkpointing.messages import PollSource
from jobs.pipeline import Pipeline, count, max_of
from jobs.sources.committed_positions import CommitsToFile
from jobs.sources.hybrid import SequenceSource, SequenceSplit
from jobs.sources.port import Source, SourceError, WrappedSource
from jobs.storage.address import Root

FIRST_WAVE = {"fast": 105, "slow": 100}
"""The positions of the two splits at barrier 1."""

ALL = {"fast": SequenceSplit(205), "slow": SequenceSplit(200, poll_rows_max=1)}

SLICE_ROWS = 10
"""How many records are read and counted at a time. There are few, so that records queue before the count."""

SECOND_WAVE_S = 1.0
"""How long a split that was read completely waits for the other splits before it reports that it has nothing new."""

CONFIG = CheckpointConfig(
    every_rows=sum(FIRST_WAVE.values()), slice_rows_max=SLICE_ROWS, micro_batch_rows_max=SLICE_ROWS, retained=2
)


class TwoWaves(WrappedSource):
    """A source of two waves: no split goes beyond `first` until all splits have been read up to it."""

    def __init__(self, source: Source, first: Mapping[str, int]) -> None:
        """Hold back the records after these positions. Raise InvalidNameError for a name that no split may have."""
        super().__init__(source)
        self._first = {split_id(name): rows for name, rows in first.items()}
        self._exhausted: set[SplitId] = set()
        self._noted = Condition()

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of the wave. See `port.Source.poll`."""
        left = self._first[request.split] - int(request.position or 0)
        if left > 0:
            piece = self.source.poll(replace(request, max_rows=min(left, request.max_rows)))
            left -= 0 if piece is None else piece.rows
            self._note(request.split, left)
            return piece
        self._note(request.split, left)
        with self._noted:
            come = self._noted.wait_for(lambda: self._exhausted == set(self._first), SECOND_WAVE_S)
        return self.source.poll(request) if come else None

    def _note(self, split: SplitId, left: int) -> None:
        if left <= 0:
            with self._noted:
                self._exhausted.add(split)
                self._noted.notify_all()


def committed_file(data: Root) -> Path:
    """Return the file to which the example writes its positions."""
    if not isinstance(data, Path):
        raise SourceError(f"the example writes a file beside its input, and cannot write it to {data}: name a folder")
    return data / "offsets_100_105" / "committed.json"


def build(data: Root) -> Pipeline:
    """Return the example, which generates its records. The configuration decides the mode: exactly once by default."""
    pipeline = Pipeline("offsets_100_105", config=CONFIG, parallelism=1)
    numbers = CommitsToFile(TwoWaves(SequenceSource(ALL), FIRST_WAVE), committed_file(data))
    (
        pipeline.source("numbers", numbers)
        .key_by("split")
        .aggregate("counts", records=count(), last=max_of("n"))
        .upsert("example/counts")
    )
    return pipeline
