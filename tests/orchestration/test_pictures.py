"""Pictures that Dagster's pages show: short enough to be seen at once, and true."""

import re
from urllib.parse import unquote

from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import BarrierRecord, VertexStatistics
from orchestration.pictures import alignment_picture

INLINE = 1_000
"""From so many characters on Dagster's page hides Markdown behind a link."""


def vertex(**came_ms: int) -> VertexStatistics:
    """Return a vertex to which each channel's barrier came so many ms after the first."""
    barriers = (BarrierRecord(channel=f"{name}->joined:0[0]", at_ms=5_000 + ms) for name, ms in came_ms.items())
    return VertexStatistics(vertex=VertexId("joined"), barriers=tuple(barriers), bytes_held=2048)


def test_an_alignment_is_drawn_by_channel():
    """Each channel waits from its barrier to the last barrier. The last channel does not wait. All lanes are drawn."""
    picture = alignment_picture(7, vertex(orders=0, payments=1500, refunds=3000))
    drawn = unquote(picture)
    assert "3.00 s from the first channel to the last, 2.0 KiB held back" in drawn
    assert ["orders[0]", "waits 3.00 s", "payments[0]", "waits 1.50 s", "refunds[0]", "last"] == re.findall(
        r"<text[^>]*>([^<]*)<", drawn
    )
    assert len(picture) < INLINE


def test_barriers_that_came_at_once_need_no_drawing():
    """If no channel waited, there is only a sentence; so for a vertex without a recorded barrier."""
    assert "svg" not in alignment_picture(7, vertex(orders=0, payments=0))
    assert "no channel that was recorded" in alignment_picture(7, vertex())
