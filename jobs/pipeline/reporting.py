"""The port of a report: what a pipeline shows of its own tables after a tick."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jobs.reading.cut import Cut


class Report(Protocol):
    """A function of the newest cut that returns a text, or anything else that Rich can print. See `Pipeline.report`."""

    def __call__(self, cut: "Cut", /) -> "RenderableType":
        """Return the text or renderable to show."""
        ...
