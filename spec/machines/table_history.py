"""The history of one table in the machine of what a clean-up keeps."""

from dataclasses import dataclass, field

from checkpointing.commit.cleanup import Shown


@dataclass(slots=True)
class Log:
    """The table's log: the active files of each version, and when it was committed."""

    active: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    at_ms: list[int] = field(default_factory=lambda: [0])

    @property
    def newest(self) -> int:
        """The newest version."""
        return len(self.active) - 1

    def shown(self, path: str) -> tuple[Shown, ...]:
        """Return the past periods in which the table showed a file."""
        found: list[Shown] = []
        first: int | None = None
        for version, active in enumerate(self.active):
            if path in active and first is None:
                first = version
            elif path not in active and first is not None:
                found.append(Shown(first, version, self.at_ms[version]))
                first = None
        return tuple(found)
