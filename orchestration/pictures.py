"""Draws Markdown for Dagster's pages: the last checkpoints as a table, an alignment as a picture."""

import io
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote

from rich.console import Console, RenderableType

from checkpointing.metadata.record import BarrierRecord, CheckpointRecord, RowKind, VertexStatistics
from jobs.showing.checkpoints import FailedCheckpoint, figures
from jobs.showing.quantities import moment, seconds, size
from jobs.user_code import sentence_of

CHECKPOINTS_SHOWN: Final = 10
CHANNELS_SHOWN: Final = 16
"""How many channels are drawn, the slowest first. A vertex has a channel for each subtask of each input."""

_COLUMNS: Final = 120
"""A width that is enough for each table that the command line shows."""
_LANE_PX: Final = 24
_NAME_PX: Final = 160
_TIME_PX: Final = 240
_WIDTH_PX: Final = _NAME_PX + _TIME_PX + 90
_FLOWS: Final = "#c7d2fe"
_WAITS: Final = "#f59e0b"
_FONT: Final = "font-family='sans-serif' font-size='12'"
_NARROW: Final = "\N{NO-BREAK SPACE}"


def checkpoints_table(records: Iterable[CheckpointRecord]) -> str:
    """Return the newest of these checkpoints as a Markdown table, newest first. Times are in UTC."""
    newest = sorted({each.checkpoint: each for each in records}.items(), reverse=True)[:CHECKPOINTS_SHOWN]
    lines = [
        "| checkpoint | committed, UTC | rows | took | aligned for | held back |",
        "|---:|---|---:|---:|---:|---:|",
        *(_row(record) for _, record in newest),
    ]
    return "\n".join(lines)


def failures_table(failed: Iterable[FailedCheckpoint]) -> str:
    """Return failed checkpoints as a Markdown table, newest first: the reason, the cause, and what to do."""
    lines = ["| checkpoint | UTC | | because | what to do |", "|---:|---|---|---|---|"]
    for each in sorted(failed, key=lambda one: -one.checkpoint)[:CHECKPOINTS_SHOWN]:
        cause = sentence_of(each.message or each.reason.message).replace("|", "\\|")
        when = moment(each.at_ms)[5:].replace("-", "\N{NON-BREAKING HYPHEN}")
        lines.append(f"| {each.checkpoint} | {when} | {each.status}: `{each.reason.name}` | {cause} | {each.todo} |")
    return "\n".join(lines)


def as_text(rendered: RenderableType) -> str:
    """Return a text as the command line would show it, in plain characters."""
    console = Console(file=io.StringIO(), record=True, width=_COLUMNS, highlight=False, markup=False, emoji=False)
    console.print(rendered, soft_wrap=True)
    return console.export_text().rstrip()


def block(text: str) -> str:
    """Return a text in columns as Markdown."""
    return f"```\n{text}\n```"


def alignment_picture(checkpoint: int, vertex: VertexStatistics) -> str:
    """Return a picture of when barrier `checkpoint` came on each channel of a vertex, and how long the channel waited.

    The picture is a sentence and an SVG in a data URI. It is kept short, since Dagster hides Markdown of 1,000
    characters or more behind a link. All channels wait for the last one, which itself does not wait. If all barriers
    came at once, or none was recorded, there is only the sentence.
    """
    if not vertex.barriers:
        return f"Barrier {checkpoint} came to `{vertex.vertex}` on no channel that was recorded."
    spread_ms = max(barrier.at_ms for barrier in vertex.barriers) - min(barrier.at_ms for barrier in vertex.barriers)
    said = (
        f"Barrier {checkpoint}, {vertex.alignment.value}: {seconds(spread_ms)} from the first channel to the last, "
        f"{size(vertex.bytes_held)} held back."
    )
    if not spread_ms:
        return said
    drawn = quote("".join(_drawing(vertex.barriers)), safe="/:;=,+'@!*")
    return f"{said}\n\n![channels: blue flows, amber waits](data:image/svg+xml,{drawn})"


def _drawing(barriers: tuple[BarrierRecord, ...]) -> Iterator[str]:
    first_ms, last_ms = min(each.at_ms for each in barriers), max(each.at_ms for each in barriers)
    slowest = sorted(barriers, key=lambda barrier: -barrier.at_ms)[:CHANNELS_SHOWN]
    left_out = len(barriers) - len(slowest)
    lanes = sorted(slowest, key=lambda barrier: barrier.channel)
    height = _LANE_PX * (len(lanes) + bool(left_out))
    came = [round((lane.at_ms - first_ms) / (last_ms - first_ms) * _TIME_PX) for lane in lanes]
    yield f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH_PX}' height='{height}' {_FONT}>"
    yield f"<path fill='{_FLOWS}' d='{_bars((_NAME_PX, px) for px in came)}'/>"
    yield f"<path fill='{_WAITS}' d='{_bars((_NAME_PX + px, _TIME_PX - px) for px in came)}'/>"
    for place, lane in enumerate(lanes):
        waited_ms = last_ms - lane.at_ms
        said = f"waits {seconds(waited_ms)}" if waited_ms else "last"
        yield from _texts(place, _channel(lane.channel), said)
    if left_out:
        yield from _texts(len(lanes), f"and {left_out} earlier ones", "")
    yield "</svg>"


def _bars(bars: Iterable[tuple[int, int]]) -> str:
    """Return an SVG path with one bar for each channel. `bars` has the start and the width of each bar."""
    return "".join(f"M{x},{place * _LANE_PX + 3}h{wide}v18h-{wide}z" for place, (x, wide) in enumerate(bars) if wide)


def _texts(place: int, name: str, said: str) -> Iterator[str]:
    y = place * _LANE_PX + 16
    yield f"<text y='{y}'>{name}</text>"
    if said:
        yield f"<text x='{_NAME_PX + _TIME_PX + 5}' y='{y}'>{said}</text>"


def _channel(name: str) -> str:
    """Return a channel's name without its target vertex, which is the same for the whole picture."""
    upstream, _, rest = name.partition("->")
    subtask = rest.partition("[")[2].rstrip("]")
    return f"{upstream}[{subtask}]" if subtask else upstream


def _row(record: CheckpointRecord) -> str:
    savepoint = " (savepoint)" if record.kind is RowKind.SAVEPOINT or record.pinned else ""
    cells = (
        f"{record.checkpoint}{savepoint}",
        moment(record.statistics.committed_ms)[5:].replace("-", "\N{NON-BREAKING HYPHEN}"),
        *figures(record),
    )
    return f"| {' | '.join(cell.replace(' ', _NARROW) for cell in cells)} |"
