"""A pipeline's own reports, made of the newest cut after a tick."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from jobs.planner import JobPlan
from jobs.reading import Cuts, NoSuchCutError
from jobs.user_code import message_of, sentence_of


def reported(plan: JobPlan, root: Path) -> Iterator[RenderableType]:
    """Yield what each report of the pipeline shows; nothing before the first cut.

    A report that raises becomes a sentence that says so: the tick that it is about is over, and was well.
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
