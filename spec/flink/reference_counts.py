"""Counts references to shared files, as Flink's registry did up to 1.14 (`SharedStateRegistryImpl` there).

It serves stores that cannot say which checkpoints are kept. It contradicts `shared_state` by design: here each user
gives its reference back, and a second, different file under a known key is discarded.
"""

from collections.abc import Hashable
from dataclasses import dataclass

Handle = Hashable


@dataclass(frozen=True, slots=True)
class Referenced:
    """The outcome of a call: the registered file (None if it is gone), its references, and the files to delete."""

    handle: Handle | None
    references: int
    discarded: tuple[Handle, ...] = ()


class ReferenceCountingRegistry:
    """Counts the references to each file. A file without references is deleted."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Begin with no file."""
        self._entries: dict[str, tuple[Handle, int]] = {}

    def register(self, key: str, handle: Handle) -> Referenced:
        """Add a reference. The first file under a key wins, and a different one is returned for deletion."""
        known, references = self._entries.get(key, (handle, 0))
        self._entries[key] = (known, references + 1)
        return Referenced(known, references + 1, () if known == handle else (handle,))

    def unregister(self, key: str) -> Referenced:
        """Give one reference back. Without references the file is returned for deletion. An unknown key is ignored.

        Flink's present registry also ignores what it does not know. The one up to 1.14 raised IllegalStateException.
        """
        if key not in self._entries:
            return Referenced(None, 0)
        known, references = self._entries[key]
        if references > 1:
            self._entries[key] = (known, references - 1)
            return Referenced(known, references - 1)
        del self._entries[key]
        return Referenced(None, 0, (known,))
