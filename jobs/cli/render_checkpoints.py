"""`tidemark checkpoints list`: one line per retained checkpoint, newest first."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord
from jobs.cli.quantities import count, moment, plural, seconds, size


def render_checkpoints(
    job: str, records: Iterable[CheckpointRecord], published: Iterable[CheckpointId], holder: str
) -> RenderableType:
    """Return the retained checkpoints of a job as a table, and who holds the job."""
    shown, cuts = list(records), frozenset(published)
    grid = Grid("checkpoint", "kind", "triggered, UTC", "rows", "took", "aligned for", "held", "state", "cut")
    for column in (0, 3, 4, 5, 6, 7):
        grid.columns[column].justify = "right"
    grid.columns[2].no_wrap = True
    for record in shown:
        grid.add_row(*_cells(record), "published" if record.checkpoint in cuts else "not yet")
    heading = Text.assemble((job, "bold"), f": {plural(len(shown), 'checkpoint')} retained")
    return Group(heading, grid, Text(holder, style="dim"))


def _cells(record: CheckpointRecord) -> tuple[str, ...]:
    life = record.statistics
    return (
        str(record.checkpoint),
        record.kind.value,
        moment(life.triggered_ms),
        count(life.rows),
        seconds(life.committed_ms - life.triggered_ms),
        seconds(max((vertex.alignment_ms for vertex in life.vertices), default=0)),
        size(sum(vertex.bytes_held for vertex in life.vertices)),
        size(sum(file.bytes for file in state_files(record))),
    )


def state_files(record: CheckpointRecord) -> tuple[FileHandle, ...]:
    """Return the state files that a checkpoint refers to, each once."""
    files = (keyed.file for vertex in record.vertices for subtask in vertex.subtasks for keyed in subtask.state)
    return tuple({file.path: file for file in files}.values())
