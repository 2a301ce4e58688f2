"""The port of reporters, and the error for a reporter that cannot be used."""

from typing import Protocol, runtime_checkable

from jobs.suggestions import WrongInputError
from jobs.tick.reporters.events import Event


@runtime_checkable
class Reporter(Protocol):
    """Reports events of one job. One thread calls it, in order. An error that it raises is logged."""

    def report(self, event: Event) -> None:
        """Take an event. The reporter may keep it until `flush`."""
        ...

    def flush(self) -> None:
        """Send the kept events. Called about once a second while there are events, and before `close`."""
        ...

    def close(self) -> None:
        """Release resources. The tick has ended, and everything is flushed."""
        ...


class UnusableReporterError(WrongInputError):
    """A reporter cannot be used: it is unknown, its library is missing, or no setting says where to report to."""
