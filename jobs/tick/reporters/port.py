"""The port of reporters, and the error for one that cannot be used."""

from typing import Protocol, runtime_checkable

from jobs.suggestions import WrongInputError
from jobs.tick.reporters.events import Event


@runtime_checkable
class Reporter(Protocol):
    """Reports events of one job. One thread calls it, in order. An error that it raises is logged."""

    def report(self, event: Event) -> None:
        """Take an event. It may wait until `flush`."""
        ...

    def flush(self) -> None:
        """Send what waits. It is called about once a second while there are events, and before `close`."""
        ...

    def close(self) -> None:
        """The tick has ended, and everything is flushed."""
        ...


class UnusableReporterError(WrongInputError):
    """A reporter cannot be used: it is unknown, its library is missing, or it does not know where to report to."""
