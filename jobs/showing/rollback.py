"""Renders what a rollback would do: tables, positions, and what is left behind."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord
from jobs.recovery.rollback_plan import RollbackPlan, SplitBack
from jobs.showing.quantities import count, plural
from jobs.showing.statistics import right
from jobs.sources.position_words import PositionWords
from jobs.stores.rollback_tables import TableBack


def render_rollback(plan: RollbackPlan, words: PositionWords, typed: str) -> RenderableType:
    """Return the plan of a rollback; `words` name its positions, and the user named the pipeline as `typed`."""
    stands = named(plan.newest) if plan.newest is not None else "its start"
    heading = Text.assemble(
        ("rollback plan ", "bold"),
        (str(plan.job), "bold"),
        f": from {stands} back to {named(plan.target)}, under a new id; nothing was changed",
    )
    return Group(heading, _tables(plan.tables), splits_grid(plan.splits, words), *_left_behind(plan, words, typed))


def named(row: CheckpointRecord) -> str:
    """Return the name of an entry for a sentence."""
    return f"{row.kind.value} {row.checkpoint}"


def _tables(tables: tuple[TableBack, ...]) -> Grid:
    columns = ("table", "mode", "Delta version", "shows again", "files out", "rows out", "files in", "rows in")
    grid = right(Grid(*columns), 2, 4, 5, 6, 7)
    for table in tables:
        amounts = (*_amounts(table.removes), *_amounts(table.adds))
        grid.add_row(table.record.table, table.record.mode.value, str(table.version), _content(table), *amounts)
    return grid


def _content(table: TableBack) -> str:
    if not table.adds and not table.removes:
        return "what it shows"
    if table.to_version is None:
        return "what the savepoint held"
    return f"version {table.to_version}"


def _amounts(files: tuple[FileHandle, ...]) -> tuple[str, str]:
    return count(len(files)), count(sum(file.rows for file in files))


def splits_grid(splits: Sequence[SplitBack], words: PositionWords) -> Grid:
    """Return each split's present and new position, and the rows between."""
    grid = right(Grid("source", "split", "stands after", "goes on after", "rows read again"), 4)
    for split, rows in zip(splits, rows_again(splits, words), strict=True):
        now, then = (words.named(split.source, split.split, position) for position in (split.now, split.then))
        grid.add_row(split.source, split.split, now, then, _between(rows))
    return grid


def rows_again(splits: Sequence[SplitBack], words: PositionWords) -> list[int | None]:
    """Return how many rows of each split will be read again; skipped, if negative; None if it is not known."""
    return [words.rows_between(split.source, split.split, split.then, split.now) for split in splits]


def _between(rows: int | None) -> str:
    if rows is None:
        return "unknown"
    return count(rows) if rows >= 0 else f"{count(-rows)} skipped"


def said_of_rows(plan: RollbackPlan, words: PositionWords) -> str:
    """Return how many rows the next tick reads again or skips: by the positions, or by what the checkpoints counted."""
    between = rows_again(plan.splits, words)
    known = [rows for rows in between if rows is not None]
    if len(known) == len(between):
        again, skipped = sum(rows for rows in known if rows > 0), -sum(rows for rows in known if rows < 0)
        also = f", and skips {plural(skipped, 'row')} that the tables show again" if skipped else ""
        return f"the next tick reads {plural(again, 'row')} again{also}"
    if plan.rows_since is not None:
        rows, estimated = plan.rows_since
        about = "about " if estimated else ""
        return f"the next tick reads {about}{plural(rows, 'row')} again, as the checkpoints counted them"
    return "the next tick reads again what came after it; it is not known how many rows that are"


def _left_behind(plan: RollbackPlan, words: PositionWords, typed: str) -> Iterator[Text]:
    yield Text(said_of_rows(plan, words))
    if plan.pending is not None:
        yield Text(f"{named(plan.pending)} is committed and not published yet: it is published first")
    if plan.turn.dropped:
        yield Text(f"abandoned, and deleted with the rollback: {_ids(plan.turn.dropped)}")
    if plan.turn.abandoned:
        yield Text(f"abandoned, and kept until you dispose of the savepoints: {_ids(plan.turn.abandoned)}")
    if plan.turn.adopted:
        yield Text(f"no longer abandoned: {_ids(plan.turn.adopted)}")
    for row in plan.damaged:
        yield Text(f"damaged, and deleted with the rollback: {row}", style="yellow")
    yield Text(f"to be able to come back, take a savepoint first: tidemark savepoint {typed}", style="dim")


def _ids(checkpoints: Iterable[CheckpointId]) -> str:
    return ", ".join(str(each) for each in checkpoints)
