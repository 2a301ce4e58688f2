"""When a subtask writes the whole of its range instead of one more delta: by ratio of sizes.

Compaction makes a new shared handle and nothing else: what it replaces stays until no retained
checkpoint uses it (D4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from checkpointing.handles import KeyedFile, KeyedFileKind


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """A base is worth writing once the deltas hold `ratio` times its rows, or are `deltas_max` files.

    The size decides: a base is then paid for by as many changed rows as it has. The number of files only bounds
    what a checkpoint's row names and a cold worker opens; it must not make a large range write itself often.
    """

    ratio: float = 1.0
    deltas_max: int = 32

    def __post_init__(self) -> None:
        """Raise ValueError unless both limits are positive."""
        if self.ratio <= 0 or self.deltas_max < 1:
            raise ValueError(f"compaction ratio {self.ratio} and deltas_max {self.deltas_max} must be positive")


def is_base_due(policy: CompactionPolicy, files: Sequence[KeyedFile], delta_rows: int) -> bool:
    """Say whether a delta of `delta_rows` after these state files (oldest first) had better be a base.

    The first file of a range is a base: it says as much as a delta would. Rows count as size: they
    are known before a file is written.
    """
    live = live_files(files)
    base_rows = sum(file.file.rows for file in live if file.kind is KeyedFileKind.BASE)
    deltas = [file.file.rows for file in live if file.kind is KeyedFileKind.DELTA]
    return len(deltas) + 1 > policy.deltas_max or sum(deltas) + delta_rows >= policy.ratio * base_rows


def live_files(files: Sequence[KeyedFile]) -> tuple[KeyedFile, ...]:
    """Return the files that still count: a later base of all of a file's key groups ends that file."""
    return tuple(
        file for place, file in enumerate(files) if not any(_ends(later, file) for later in files[place + 1 :])
    )


def _ends(later: KeyedFile, file: KeyedFile) -> bool:
    return (
        later.kind is KeyedFileKind.BASE
        and later.first_key_group <= file.first_key_group
        and file.last_key_group <= later.last_key_group
    )
