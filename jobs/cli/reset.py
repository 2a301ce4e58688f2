"""`tidemark reset`: moves the position of one source while no tick runs, or shows what that would do."""

from rich.console import Console
from rich.text import Text

from jobs.at_rest.resetting import Reset, ResetPlan, preview_reset, reset
from jobs.cli.errors import ExitCode, needing_rest
from jobs.cli.explain import prepared
from jobs.settings import Layer
from jobs.showing.quantities import count
from jobs.showing.rollback import named, rows_again, splits_grid
from jobs.sources.closing import closing
from jobs.sources.position_words import PositionWords


def reset_source(pipeline: str, asked: Reset, given: Layer, out: Console, *, dry_run: bool) -> ExitCode:
    """Move a source, or show what that would do, and say which rows are read again and which are skipped."""
    started = prepared(pipeline, given)
    warehouse, job, sources = started.warehouse, started.plan.job, started.plan.sources
    words = PositionWords(sources)
    if dry_run:
        with closing(sources):
            plan = preview_reset(warehouse, sources, asked)
        heading = f": source {asked.source}, which stands at {named(plan.newest)}; nothing was changed"
        out.print(Text.assemble(("reset plan ", "bold"), (str(job), "bold"), heading), soft_wrap=True)
    else:
        with closing(sources), needing_rest("a reset", pipeline):
            plan, row = reset(warehouse, sources, asked)
        out.print(Text.assemble((str(job), "bold"), f" goes on from {named(row)}: {asked.source} is at {asked.words}"))
    out.print(splits_grid(plan.splits, words))
    for line in _consequences(plan, words):
        out.print(line, soft_wrap=True)
    return ExitCode.DONE


def _consequences(plan: ResetPlan, words: PositionWords) -> tuple[Text, ...]:
    """Say how many rows are read again and how many are skipped. Both may happen, in different splits."""
    if not plan.splits:
        return (Text("every split stands there already"),)
    known = [rows for rows in rows_again(plan.splits, words) if rows is not None]
    again, left_out = sum(rows for rows in known if rows > 0), -sum(rows for rows in known if rows < 0)
    lines = []
    if again or len(known) < len(plan.splits):
        lines.append(
            f"{count(again)} rows will be read AGAIN: tables and state stay as they are, so they will be counted twice"
        )
    if left_out:
        lines.append(f"{count(left_out)} rows will be SKIPPED: no table will ever show them")
    lines.append(f"to take the tables back too: tidemark rollback {plan.job} N")
    return tuple(Text(line, style="yellow") for line in lines)
