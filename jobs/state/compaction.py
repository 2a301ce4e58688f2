"""Decides when a subtask writes its whole range (a base) instead of one more delta, by their sizes.

Compaction only adds a new file. The files that it replaces stay until no retained checkpoint uses them (D4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from checkpointing.handles import KeyedFile, KeyedFileKind


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """Write a base once the deltas hold `ratio` times its rows, or are `deltas_max` files.

    Normally the size decides. Each base is then preceded by as many changed rows as it has. The number of files bounds
    how many files an entry names and a cold worker opens. It must not make a large range rewrite itself often.
    """

    ratio: float = 1.0
    deltas_max: int = 32

    def __post_init__(self) -> None:
        """Raise ValueError unless both limits are positive."""
        if self.ratio <= 0 or self.deltas_max < 1:
            raise ValueError(f"compaction ratio {self.ratio} and deltas_max {self.deltas_max} must be positive")


def is_base_due(policy: CompactionPolicy, files: Sequence[KeyedFile], delta_rows: int) -> bool:
    """Return whether to write a base instead of a delta of `delta_rows` after these state files (oldest first).

    The first file of a range is a base, since it holds the same rows as a delta would. Sizes are counted in rows, which
    are known before a file is written.
    """
    live = live_files(files)
    base_rows = sum(file.file.rows for file in live if file.kind is KeyedFileKind.BASE)
    deltas = [file.file.rows for file in live if file.kind is KeyedFileKind.DELTA]
    return len(deltas) + 1 > policy.deltas_max or sum(deltas) + delta_rows >= policy.ratio * base_rows


def live_files(files: Sequence[KeyedFile]) -> tuple[KeyedFile, ...]:
    """Return the files that still count. A file no longer counts once a later base covers all of its key groups."""
    return tuple(
        file for place, file in enumerate(files) if not any(_ends(later, file) for later in files[place + 1 :])
    )


def _ends(later: KeyedFile, file: KeyedFile) -> bool:
    return (
        later.kind is KeyedFileKind.BASE
        and later.first_key_group <= file.first_key_group
        and file.last_key_group <= later.last_key_group
    )
