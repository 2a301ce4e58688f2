"""Renders a pipeline's own reports from the newest cut, after a tick."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from jobs.planner import JobPlan
from jobs.reading import Cuts, NoSuchCutError
from jobs.storage.address import Root
from jobs.user_code import message_of, sentence_of


def reported(plan: JobPlan, root: Root) -> Iterator[RenderableType]:
    """Yield each report of the pipeline, rendered; nothing before the first cut.

    If a report raises, it is replaced by a sentence that says so, since the tick itself succeeded.
    """
    if not plan.reports:
        return
    try:
        cut = Cuts(root, plan.job).latest()
    except NoSuchCutError:
        return
    for report in plan.reports:
        try:
            yield report(cut)
        except Exception as error:  # noqa: BLE001 - a user's code
            said = sentence_of(message_of(error, ": correct it, the next tick shows it again"))
            yield Text(f"a report of {plan.job} failed, and nothing else did: {said}", style="yellow")
