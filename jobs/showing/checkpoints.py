"""`tidemark checkpoints list`: one line per retained checkpoint, newest first."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord, Release, RowKind
from jobs.showing.quantities import counted, moment, plural, seconds, size
from jobs.showing.statistics import counts_line, history_grid, right


def render_checkpoints(
    job: str,
    records: Iterable[CheckpointRecord],
    published: Iterable[CheckpointId],
    holder: str,
    releases: Iterable[Release] = (),
) -> RenderableType:
    """Return the retained checkpoints of a job as a table, the failed ones of its newest ticks, and who holds it."""
    shown, cuts = list(records), frozenset(published)
    columns = ("checkpoint", "kind", "triggered, UTC", "rows", "to commit", "aligned for", "held", "state", "cut")
    grid = right(Grid(*columns), 0, 3, 4, 5, 6, 7)
    grid.columns[2].no_wrap = True
    for record in shown:
        grid.add_row(*_cells(record), _cut(record, cuts))
    held = [record.checkpoint for record in shown if record.kind is RowKind.HELD]
    savepoints = sum(record.is_savepoint for record in shown) - len(held)
    retained = f": {plural(len(shown) - savepoints - len(held), 'checkpoint')} retained"
    heading = Text.assemble(
        (job, "bold"),
        retained,
        f", {plural(savepoints, 'savepoint')}" if savepoints else "",
        f", cut {held[0]} waits for approval" if held else "",
    )
    failed = failure_lines(releases)
    return Group(heading, grid, *_gaps(shown), *failed, *_measured(shown), Text(holder, style="dim"))


def failure_lines(releases: Iterable[Release]) -> Iterator[Text]:
    """Yield why checkpoints and ticks failed, the newest first. A checkpoint that failed its tick is told once."""
    told: set[CheckpointId] = set()
    for release in sorted(releases, key=lambda release: release.generation, reverse=True):
        ended = release.ended
        if ended is None:
            continue
        where = f"(generation {release.generation}, {{}} UTC)"
        messages = [failed.message for failed in ended.failed]
        if ended.has_failed and ended.message not in messages:
            yield _failed(f"the tick failed {where.format(moment(release.at_ms))}", ended.message)
        for failed in reversed(ended.failed):
            if failed.checkpoint not in told:
                told.add(failed.checkpoint)
                what = f"checkpoint {failed.checkpoint} failed {where.format(moment(failed.at_ms))}"
                yield _failed(what, failed.message)


def _failed(what: str, message: str) -> Text:
    return Text(f"{what}: {message}", style="yellow")


def _measured(shown: list[CheckpointRecord]) -> Iterator[RenderableType]:
    """What the newest entry counts, and how the numbers of the completed checkpoints are spread."""
    ticks = [record for record in shown if record.kind in (RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD)]
    if len(ticks) > 1:
        yield history_grid(ticks)
    if ticks:
        yield counts_line(max(ticks, key=lambda record: record.checkpoint))


def _gaps(shown: Iterable[CheckpointRecord]) -> Iterator[Text]:
    """Say why a checkpoint's id does not follow its parent's. Each id is given out only once, used or not."""
    records = list(shown)
    for record in records:
        beside = {each.checkpoint for each in records if each.parent == record.parent}
        between = set(range(record.parent + 1, record.checkpoint)) - beside
        if between and record.parent:
            yield Text(
                f"{record.checkpoint} follows {record.parent}: the ids between were given to a tick that died, to a "
                "checkpoint that failed or to a savepoint, and no id is used twice",
                style="dim",
            )


def _cut(record: CheckpointRecord, published: frozenset[CheckpointId]) -> str:
    if record.kind is RowKind.HELD:
        return "waits for approval"
    if record.kind is RowKind.SAVEPOINT:
        return f"none; after {record.parent}"
    return "published" if record.checkpoint in published else "not yet"


def _kind(record: CheckpointRecord) -> str:
    """Return the kind. A stop's savepoint is a checkpoint too: it is published, and the next tick begins from it.

    The last checkpoint of a finished job is just `finished`, so that it fits into a window of 120 characters.
    """
    match record.kind:
        case RowKind.ROLLBACK:
            what = f"rollback to {record.parent}"
        case RowKind.CHECKPOINT if record.pinned:
            what = "savepoint, stopped"
        case RowKind.CHECKPOINT if record.finished:
            return "finished, abandoned" if record.abandoned else "finished"
        case _:
            what = record.kind.value
    what += ", finished" if record.finished else ""
    return f"{what}, abandoned" if record.abandoned else what


def _cells(record: CheckpointRecord) -> tuple[str, ...]:
    state = size(sum(file.bytes for file in state_files(record)))
    return str(record.checkpoint), _kind(record), moment(record.statistics.triggered_ms), *figures(record), state


def figures(record: CheckpointRecord) -> tuple[str, str, str, str]:
    """Return an epoch's rows, its time from trigger to commit, the longest alignment, and the bytes held back."""
    life = record.statistics
    return (
        counted(life.rows, life.rows_estimated),
        seconds(life.committed_ms - life.triggered_ms),
        seconds(max((vertex.alignment_ms for vertex in life.vertices), default=0)),
        size(sum(vertex.bytes_held for vertex in life.vertices)),
    )


def state_files(record: CheckpointRecord) -> tuple[FileHandle, ...]:
    """Return the state files that a checkpoint refers to, each once."""
    files = (keyed.file for vertex in record.vertices for subtask in vertex.subtasks for keyed in subtask.state)
    return tuple({file.path: file for file in files}.values())
