"""Renders what a restore would do: from where each split goes on, and what each operator, table and hook gets."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.commit.cleanup import Reason, Unneeded
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, JobName, SubtaskId, TableName
from checkpointing.job.restoring import coordinators_left, hooks_left, in_flight, not_restored, positions, tables_left
from checkpointing.key_groups import key_group_ranges
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.state_evolution import Change
from jobs.pipeline.job_plan import JobPlan
from jobs.showing.checkpoints import right, states_grid
from jobs.showing.quantities import count, moment, plural, seconds, size
from jobs.sources.position_words import PositionWords
from jobs.tick.at_rest.forget import ForgetPlan
from jobs.tick.cleaning import Cleanup
from jobs.tick.rollback_plan import RollbackPlan, SplitBack
from jobs.warehouse.rollback_tables import TableBack


def render_restore(
    what: str,
    plan: JobPlan,
    record: CheckpointRecord,
    versions: Mapping[TableName, int] | None = None,
    changes: Sequence[Change] = (),
) -> RenderableType:
    """Return what a restore of the entry into this plan would do. `what` names entry and warehouse.

    `versions` are the Delta versions of the tables if the tables stay. None: the tables are created again from the
    entry's files, so the entry must be whole.
    """
    graph = plan.graph
    grids = (
        _splits(graph, record, PositionWords(plan.sources)),
        _states(graph, record, plan.config.max_parallelism),
        _tables(graph, record, versions or {}),
    )
    return Group(
        Text.assemble(("restore plan ", "bold"), (plan.job, "bold"), f": {what}"),
        *([render_changes(changes)] if changes else []),
        *(grid for grid in grids if grid.row_count),
        *_others(graph, record),
    )


def render_changes(changes: Sequence[Change]) -> RenderableType:
    """Return the differences between pipeline and checkpoint, and their consequences."""
    grid = Grid("changed", "of", "column", "was", "is", "verdict", show_lines=True)
    for change in changes:
        style = "red" if change.refused else None
        was, now = change.was or "not there", change.now or "not there"
        cells = (change.kind.value, change.thing, change.called or change.column, was, now, change.verdict)
        grid.add_row(*(Text(cell) for cell in cells), style=style)
    return grid


def left_behind(graph: JobGraph, record: CheckpointRecord) -> tuple[str, ...]:
    """Return the names, for a user, of the entry's state, hooks and tables that the pipeline no longer has."""
    return (
        *(f"the state of {vertex}" for vertex in not_restored(graph, record)),
        *(f"the own state of source {source}" for source in coordinators_left(graph, record)),
        *(f"the state of master hook {hook}" for hook in hooks_left(graph, record)),
        *(f"table {table}" for table in tables_left(graph, record)),
    )


def _splits(graph: JobGraph, record: CheckpointRecord, words: PositionWords) -> Grid:
    grid, found = Grid("source", "split", "goes on after"), positions(graph, record)
    for source in graph.sources():
        for index, split in enumerate(source.splits):
            position = found[SubtaskId(source.id, index)]
            goes_on = "the start (new)" if position is None else words.named(source.id, split, position)
            grid.add_row(source.id, split, goes_on)
    return grid


def _states(graph: JobGraph, record: CheckpointRecord, max_parallelism: int) -> Grid:
    grid = right(Grid("state of", "files", "bytes", "rows", "key groups then", "key groups now"), 1, 2, 3)
    was = {vertex.vertex: vertex.subtasks for vertex in record.vertices}
    for vertex in graph.operators():
        if vertex.kind is VertexKind.KEYED and vertex.id in was:
            files = {keyed.file.path: keyed.file for subtask in was[vertex.id] for keyed in subtask.state}
            then, now = (_ranges(each, max_parallelism) for each in (len(was[vertex.id]), vertex.parallelism))
            grid.add_row(vertex.id, *_amounts(files.values()), then, now)
    return grid


def _ranges(parallelism: int, max_parallelism: int) -> str:
    ranges = key_group_ranges(parallelism=parallelism, max_parallelism=max_parallelism)
    return f"{len(ranges)}: {', '.join(f'{own.first}-{own.last}' for own in ranges)}"


def _tables(graph: JobGraph, record: CheckpointRecord, versions: Mapping[TableName, int]) -> Grid:
    grid = right(Grid("table", "mode", "Delta version", "files", "bytes", "rows"), 2, 3, 4, 5)
    files = {table.table: (*table.adds, *table.files) for table in record.tables}
    for table in graph.tables():
        stays, made = ("as they are", "", ""), _amounts(files.get(table.name, ()))
        known = table.name in versions
        grid.add_row(
            table.name,
            table.mode.value,
            str(versions[table.name]) if known else "new",
            *(stays if known else made),
        )
    return grid


def _amounts(files: Collection[FileHandle]) -> tuple[str, str, str]:
    return count(len(files)), size(sum(file.bytes for file in files)), count(sum(file.rows for file in files))


def _others(graph: JobGraph, record: CheckpointRecord) -> Iterator[RenderableType]:
    if graph.hooks:
        held = {each.hook: each.state for each in record.hooks}
        yield states_grid("master hook", [(hook.name, held.get(hook.name)) for hook in graph.hooks])
    segments = sum(1 for _ in in_flight(record))
    if segments:
        yield Text(f"{plural(segments, 'segment')} in flight will be processed first")
    for left in left_behind(graph, record):
        yield Text(f"left behind: {left}, which the pipeline no longer has", style="yellow")


# ------------------------------------------------------------------
# Renders what a rollback would do: tables, positions, and what is left behind.


def render_rollback(plan: RollbackPlan, words: PositionWords, typed: str) -> RenderableType:
    """Return the plan of a rollback. `words` name its positions, and `typed` is the user's name of the pipeline."""
    stands = named(plan.newest) if plan.newest is not None else "its start"
    heading = Text.assemble(
        ("rollback plan ", "bold"),
        (str(plan.job), "bold"),
        f": from {stands} back to {named(plan.target)}, under a new id; nothing was changed",
    )
    return Group(heading, _tables_back(plan.tables), splits_grid(plan.splits, words), *_left_behind(plan, words, typed))


def named(row: CheckpointRecord) -> str:
    """Return the name of an entry as a sentence has it."""
    return f"{row.kind.value} {row.checkpoint}"


def _tables_back(tables: tuple[TableBack, ...]) -> Grid:
    columns = ("table", "mode", "Delta version", "shows again", "files out", "rows out", "files in", "rows in")
    grid = right(Grid(*columns), 2, 4, 5, 6, 7)
    for table in tables:
        amounts = (*_amounts_back(table.removes), *_amounts_back(table.adds))
        grid.add_row(table.record.table, table.record.mode.value, str(table.version), _content(table), *amounts)
    return grid


def _content(table: TableBack) -> str:
    if not table.adds and not table.removes:
        return "what it shows"
    if table.to_version is None:
        return "what the savepoint held"
    return f"version {table.to_version}"


def _amounts_back(files: tuple[FileHandle, ...]) -> tuple[str, str]:
    return count(len(files)), count(sum(file.rows for file in files))


def splits_grid(splits: Sequence[SplitBack], words: PositionWords) -> Grid:
    """Return each split's present and new position, and the number of rows between them."""
    grid = right(Grid("source", "split", "stands after", "goes on after", "rows read again"), 4)
    for split, rows in zip(splits, rows_again(splits, words), strict=True):
        now, then = (words.named(split.source, split.split, position) for position in (split.now, split.then))
        grid.add_row(split.source, split.split, now, then, _between(rows))
    return grid


def rows_again(splits: Sequence[SplitBack], words: PositionWords) -> list[int | None]:
    """Return how many rows of each split will be read again. A negative number counts skipped rows. None: unknown."""
    return [words.rows_between(split.source, split.split, split.then, split.now) for split in splits]


def _between(rows: int | None) -> str:
    if rows is None:
        return "unknown"
    return count(rows) if rows >= 0 else f"{count(-rows)} skipped"


def said_of_rows(plan: RollbackPlan, words: PositionWords) -> str:
    """Return how many rows the next tick reads again or skips, by the positions or by the checkpoints' counts."""
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


# ------------------------------------------------------------------
# Renders what an erasure of rows does, and which copies of the rows it cannot reach.


def render_forget(plan: ForgetPlan, grace_ms: int, *, done: CheckpointRecord | None) -> RenderableType:
    """Return the report of a search for rows. `done` is the entry that erased them.

    None means that nothing was changed.
    """
    job = (str(plan.job), "bold")
    if not plan.matched:
        return Group(Text.assemble(job, ": no row matches; nothing was changed"), *_not_reached(plan))
    what = f"{plural(plan.rows, 'row')} of {plural(len(plan.matched), 'table and state', 'tables and states')}"
    if done is None:
        heading = Text.assemble(("forget plan ", "bold"), job, f": {what} match now; nothing was changed")
    else:
        heading = Text.assemble(job, f": {what} are erased, and from every kept cut and savepoint, as {named(done)}")
    grid = right(Grid("table", "rows now", "rows at cuts", "files"), 1, 3)
    for each in plan.matched:
        cuts = ", ".join(f"{checkpoint}: {count(rows)}" for checkpoint, rows in each.at_cuts.items() if rows)
        grid.add_row(each.table, count(each.rows), cuts, count(each.files))
    return Group(heading, grid, *_not_reached(plan), *_afterwards(plan, grace_ms, done))


def _not_reached(plan: ForgetPlan) -> Iterator[Text]:
    if plan.clear:
        yield Text(f"searched, without a matching row: {', '.join(plan.clear)}")
    for left in plan.left:
        yield Text(f"NOT searched: {left.table}: {left.why}. What it holds of these rows stays", style="yellow")
    if plan.sources:
        names = ", ".join(plan.sources)
        yield Text(
            f"NOT reached: what sources read from ({names}). A rollback or a reset reads it again", style="yellow"
        )
    for table in plan.outside:
        yield Text(f"NOT reached: the outside sink of {table}: delete the rows there", style="yellow")
    for follower in plan.followers:
        yield Text(f"NOT reached: the job {follower}, which reads cuts of this job: forget there too", style="yellow")
    for each in plan.opaque:
        yield Text(f"NOT searched: the own state of {each}, which only its code understands", style="yellow")
    yield Text("NOT reached: copies of savepoints, backups, and other jobs that have read these tables", style="yellow")


def _afterwards(plan: ForgetPlan, grace_ms: int, done: CheckpointRecord | None) -> Iterator[Text]:
    if plan.savepoints:
        yield Text(f"savepoints that are written again: {_ids(plan.savepoints)}")
    if plan.folders:
        names = ", ".join(plan.folders)
        yield Text(
            f"folders of {names} have the values in their names, and log entries name the folders until the log drops "
            "its oldest entries (table_log_keep_ms)",
            style="yellow",
        )
    if plan.reserved:
        yield Text(f"{plural(plan.reserved, 'reservation')} of cuts may keep older files until their readers end")
    if done is not None:
        yield Text(
            f"the older files, with the erased rows, stay for readers for {seconds(grace_ms)} (reader_grace_ms). After "
            f"that 'tidemark cleanup {plan.job}', or the next tick, deletes them"
        )


# ------------------------------------------------------------------
# Renders a clean-up: the unneeded files of each table, and which of them were deleted.


def render_cleanup(job: JobName, done: Cleanup, grace_ms: int, *, dry_run: bool) -> RenderableType:
    """Return the result of a clean-up as a user reads it. With `dry_run`, nothing was deleted."""
    shown = done.decision.delete if dry_run else done.deleted.files
    parts: list[RenderableType] = []
    if done.beside is not None:
        parts.append(Text(f"{job} is held by {done.beside}: files of its own generation stay for now"))
    if shown:
        parts.append(_by_table(shown, f"{job}: {'would be deleted' if dry_run else 'deleted'}"))
    parts.append(_summary(job, done, shown, dry_run=dry_run))
    if done.decision.waiting:
        parts.append(_waiting(done.decision.waiting, grace_ms))
    parts.extend(Text(f"! {note}") for note in done.notes)
    return Group(*parts)


def _by_table(unneeded: Iterable[Unneeded], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.ROUNDED)
    for name, justify in (("table", "left"), ("files", "right"), ("size", "right"), ("why", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("unneeded since, UTC")
    groups: dict[tuple[TableName, Reason], list[Unneeded]] = {}
    for each in unneeded:
        groups.setdefault((each.file.table, each.reason), []).append(each)
    for (name, reason), files in sorted(groups.items(), key=lambda group: (group[0][0], group[0][1].value)):
        total, oldest = sum(each.file.bytes for each in files), min(each.since_ms for each in files)
        table.add_row(str(name), count(len(files)), size(total), reason.value, moment(oldest))
    return table


def _summary(job: JobName, done: Cleanup, shown: Iterable[Unneeded], *, dry_run: bool) -> Text:
    files = tuple(shown)
    free = "" if done.free_bytes is None else f"; {size(done.free_bytes)} are free there now"
    if not files:
        return Text(f"{job}: nothing to delete now{free}")
    amount = f"{plural(len(files), 'file')}, {size(sum(each.file.bytes for each in files))}"
    if dry_run:
        return Text(f"{job}: {amount} would be deleted{free}")
    return Text(f"{job}: {amount} deleted{free}")


def _waiting(waiting: tuple[Unneeded, ...], grace_ms: int) -> Text:
    amount = f"{plural(len(waiting), 'file')}, {size(sum(each.file.bytes for each in waiting))}"
    first = moment(min(each.since_ms for each in waiting) + grace_ms)
    return Text(
        f"{amount}, are unneeded and stay for readers that may still use them: for {seconds(grace_ms)} "
        f"(reader_grace_ms), the first until {first} UTC"
    )
