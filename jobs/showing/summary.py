"""Renders the end of `tidemark run`: a line per checkpoint, how the tick ended, and where the tables are."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.graph import JobGraph, TableMode
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline.job_plan import JobPlan
from jobs.quality.expectation import Suite
from jobs.reading import Cuts, NoSuchCutError
from jobs.showing.quantities import CheckpointLine, counted, plural, seconds, size
from jobs.storage.address import Root, absolute
from jobs.tick.effects import verdicts_of
from jobs.user_code import message_of, sentence_of


def render_lines(lines: Sequence[CheckpointLine]) -> RenderableType:
    """Return a table with a line per checkpoint that this tick completed."""
    grid = Grid("checkpoint", "epoch rows", "rows so far", "epoch took", "aligned for", "held", "written")
    for column in grid.columns:
        column.justify = "right"
    so_far = estimated = 0
    for line in lines:
        so_far, estimated = so_far + line.rows, estimated + line.rows_estimated
        times = ("-" if line.took_ms is None else seconds(line.took_ms), seconds(line.alignment_ms))
        sizes = (size(line.bytes_held), size(line.bytes_out))
        grid.add_row(
            str(line.checkpoint), counted(line.rows, line.rows_estimated), counted(so_far, estimated), *times, *sizes
        )
    return grid


def render_caught_up(pipeline: str, cut: int | None, never_found: Sequence[str] = ()) -> RenderableType:
    """Return the sentence for a tick that found nothing to do. `cut` is the newest published cut, or None.

    `never_found` are the sources that have found no file yet.
    """
    if never_found:
        sources = f"{'source' if len(never_found) == 1 else 'sources'} {', '.join(never_found)}"
        said = f": {sources} found no file, and nothing else is new"
        return Text.assemble((f"{pipeline} has read nothing", "bold yellow"), said)
    shown = "empty" if cut is None else f"at checkpoint {cut}"
    return Text.assemble((f"{pipeline} is caught up", "bold green"), f": nothing new to read, all tables {shown}")


def render_finished(pipeline: str, newest: CheckpointRecord | None, typed: str) -> RenderableType:
    """Return the sentence for a tick whose job had already finished.

    `newest` is the entry with which the job finished, and `typed` is the pipeline as the user named it.
    """
    at = "" if newest is None else f", and checkpoint {newest.checkpoint} holds all their rows"
    said = f": its sources have ended{at}. To read one again, type 'tidemark reset {typed} SOURCE --to start'"
    return Text.assemble((f"{pipeline} is finished", "bold green"), said)


def render_done(
    pipeline: str,
    outcome: str,
    lines: Sequence[CheckpointLine],
    took_ms: int,
    *,
    failed: bool = False,
    failed_checkpoints: int = 0,
) -> RenderableType:
    """Return one sentence on how the tick ended, with the number of failed checkpoints if any failed."""
    rows = sum(line.rows for line in lines)
    shown = counted(rows, sum(line.rows_estimated for line in lines))
    work = f"{shown} {'row' if rows == 1 else 'rows'} in {plural(len(lines), 'checkpoint')}, {seconds(took_ms)}"
    work += f"; {plural(failed_checkpoints, 'checkpoint')} failed" if failed_checkpoints else ""
    return Text.assemble((f"{pipeline} {outcome}", "bold red" if failed else "bold green"), f": {work}")


def suite_lines(records: Sequence[CheckpointRecord], suites: Iterable[Suite]) -> Iterator[Text]:
    """Yield a line for each suite: in how many of these checkpoints it was met, and why it was not judged in others."""
    verdicts = [verdict for record in records for verdict in verdicts_of(record, suites)]
    for suite in suites:
        own = [verdict for verdict in verdicts if verdict.table == suite.table]
        whys = Counter(verdict.unjudged for verdict in own if verdict.unjudged is not None)
        met = len(own) - whys.total()
        told = [f"met in {plural(met, 'checkpoint')}"] if met else []
        told += [f"not judged in {plural(number, 'checkpoint')}: {why}" for why, number in whys.items()]
        if told:
            yield Text(f"suite {suite.name} of table {suite.table}: {'; '.join(told)}")


def render_places(pipeline: str, warehouse: Root, graph: JobGraph) -> RenderableType:
    """Return where the tables are, and what to type next."""
    root = absolute(warehouse)
    lines = [Text(f"tables in {root}:", style="bold")]
    outputs = [table.name for table in graph.tables() if table.mode is not TableMode.STATE]
    states = [table.name for table in graph.tables() if table.mode is TableMode.STATE]
    lines.append(Text(f"  {', '.join(outputs)}"))
    if states:
        lines.append(Text(f"  operator state: {', '.join(states)}"))
    commands = {
        f"tidemark cut {pipeline}": "how to read all tables as of one checkpoint",
        f"tidemark checkpoints show {pipeline}": "the life of the last epoch",
        f"tidemark doctor {pipeline}": "whether the job is healthy",
    }
    width = max(34, *(len(command) + 2 for command in commands))
    lines += [Text.assemble("  ", (command.ljust(width), "cyan"), what) for command, what in commands.items()]
    return Group(*lines)


# ------------------------------------------------------------------
# Renders a pipeline's own reports from the newest cut, after a tick.


def reported(plan: JobPlan, root: Root) -> Iterator[RenderableType]:
    """Yield each report of the pipeline, rendered; nothing before the first cut.

    If a report raises, a sentence about the error takes its place, since the tick itself succeeded.
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
