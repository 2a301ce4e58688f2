"""`tidemark reset`: moves the position of one source while no tick runs, or shows what that would do."""

from typing import Final

from rich.console import Console
from rich.text import Text

from jobs.at_rest.resetting import Reset, ResetPlan, preview_reset, reset
from jobs.cli.errors import ExitCode, naming_pipeline, needing_rest
from jobs.cli.explain import prepared
from jobs.settings import Layer
from jobs.showing.quantities import count
from jobs.showing.rollback import named, rows_again, splits_grid
from jobs.sources.closing import closing
from jobs.sources.position_words import PositionWords

_TWICE: Final = "tables and state stay as they are, so a row that is read again counts twice"


def reset_source(pipeline: str, asked: Reset, given: Layer, out: Console, *, dry_run: bool) -> ExitCode:
    """Move a source, or show what that would do, and say which rows are read again and which are skipped."""
    started = prepared(pipeline, given)
    warehouse, job, sources = started.warehouse, started.plan.job, started.plan.sources
    words = PositionWords(sources)
    with naming_pipeline(pipeline, job), closing(sources):
        if dry_run:
            plan = preview_reset(warehouse, sources, asked)
            heading = f": source {asked.source}, which stands at {named(plan.newest)}; nothing was changed"
            said = Text.assemble(("reset plan ", "bold"), (str(job), "bold"), heading)
        else:
            with needing_rest("a reset", pipeline):
                plan, row = reset(warehouse, sources, asked)
            said = Text.assemble((str(job), "bold"), f" goes on from {named(row)}: {asked.source} is at {asked.words}")
    out.print(said, soft_wrap=True)
    out.print(splits_grid(plan.splits, words))
    for line in consequences(plan, words, pipeline):
        out.print(line, soft_wrap=True)
    return ExitCode.DONE


def consequences(plan: ResetPlan, words: PositionWords, pipeline: str) -> tuple[Text, ...]:
    """Say how many rows are read again and how many are skipped. Both may happen, in different splits."""
    if not plan.splits:
        return (Text("every split stands there already"),)
    known = [rows for rows in rows_again(plan.splits, words) if rows is not None]
    again, left_out = sum(rows for rows in known if rows > 0), -sum(rows for rows in known if rows < 0)
    lines = []
    if again:
        lines.append(f"{count(again)} rows will be read AGAIN: {_TWICE}")
    if len(known) < len(plan.splits):
        lines.append(f"it is not known how many rows will be read AGAIN or SKIPPED: {_TWICE}")
    if left_out:
        lines.append(f"{count(left_out)} rows will be SKIPPED: no table will ever show them")
    lines.append(f"to take the tables back too: tidemark rollback {pipeline} N")
    return tuple(Text(line, style="yellow") for line in lines)
