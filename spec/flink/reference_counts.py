"""Shared files by counted references: the registry of Flink up to 1.14 (`SharedStateRegistryImpl` there).

For stores that cannot say which checkpoints are kept. It contradicts `shared_state` by design: here a
second, different file under a known key is thrown away, and each user gives its reference back.
"""

from collections.abc import Hashable
from dataclasses import dataclass

Handle = Hashable


@dataclass(frozen=True, slots=True)
class Referenced:
    """The outcome of a call: the registered file (None: gone), its references, what to delete."""

    handle: Handle | None
    references: int
    discarded: tuple[Handle, ...] = ()


class ReferenceCountingRegistry:
    """Files and how many references each has; at none the file is deleted."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        """Begin with no file."""
        self._entries: dict[str, tuple[Handle, int]] = {}

    def register(self, key: str, handle: Handle) -> Referenced:
        """Add a reference; the first file under a key wins, an unequal one is to be deleted."""
        known, references = self._entries.get(key, (handle, 0))
        self._entries[key] = (known, references + 1)
        return Referenced(known, references + 1, () if known == handle else (handle,))

    def unregister(self, key: str) -> Referenced:
        """Give one reference back; at none the file is to be deleted. An unknown key is ignored.

        Flink's present registry ignores what it does not know, too. The one up to 1.14 raised IllegalStateException.
        """
        if key not in self._entries:
            return Referenced(None, 0)
        known, references = self._entries[key]
        if references > 1:
            self._entries[key] = (known, references - 1)
            return Referenced(known, references - 1)
        del self._entries[key]
        return Referenced(None, 0, (known,))
