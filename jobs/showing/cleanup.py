"""Renders a clean-up: the unneeded files by table, and which were deleted."""

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from checkpointing.commit.cleanup import Reason, Unneeded
from checkpointing.identifiers import JobName, TableName
from jobs.runtime.cleaning import Cleanup
from jobs.showing.quantities import count, moment, plural, seconds, size


def render_cleanup(job: JobName, done: Cleanup, grace_ms: int, *, dry_run: bool) -> RenderableType:
    """Return a clean-up as a user reads it; with `dry_run` nothing was deleted."""
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
