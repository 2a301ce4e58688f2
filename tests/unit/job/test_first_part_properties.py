"""A source without parts gets parts: its splits at the cut become splits of the first part (B4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.channel_items import ChannelState, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.handles import FileHandle
from checkpointing.identifiers import (
    ChannelId,
    EdgeId,
    SplitId,
    VertexId,
)
from checkpointing.job.polling import (
    in_first_part,
    read_alone,
)
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

# ------------------------------------------------------------------
# Tests how a source without parts gets parts: its splits at the cut become splits of the first part (B4). The machine
# draws splits and builds a cut from them. From the same splits, the reference builds the expected cut with the new
# names.


PARTED: Final = "first-parts-go-on"
"""A source that was read alone continues as the first part: its splits get new names, and nothing else changes."""

_ORDERS_OF_PARTING, _PAID, _TOTALS = VertexId("orders"), VertexId("paid"), VertexId("totals")
_PARTS: Final = ("1.", "2.")
_FILES: Final = StagedSegment((FileHandle("bronze/orders/_data/1/joined-1-a.parquet", 1, 1, 1),))
_split = st.tuples(st.sampled_from(["a", "b", "1.a", "2.b", "12.a"]), st.sampled_from([None, "7"]), st.booleans())
_splits = st.lists(_split, unique_by=lambda each: each[0], max_size=3)
_slices = st.lists(st.tuples(st.sampled_from([_ORDERS_OF_PARTING, _PAID]), st.integers(0, 2)), max_size=4)
_SplitOfParting = tuple[str, str | None, bool]


@dataclass(frozen=True)
class _Cut:
    """The content of a cut: the splits of each source, and the slices in flight, each with its source and its split."""

    splits: Mapping[VertexId, list[_SplitOfParting]]
    slices: list[tuple[VertexId, int]]

    def entry(self, begins: Mapping[VertexId, str]) -> CheckpointRecord:
        """Return the cut's entry. `begins` has, for each source, the text with which its splits' names begin."""
        sources = tuple(
            VertexRecord(
                vertex=source,
                micro_batch=0,
                subtasks=tuple(SubtaskSnapshot(position=at, finished=ended) for _, at, ended in splits),
                splits=tuple(SplitId(f"{begins.get(source, '')}{name}") for name, _, _ in splits),
            )
            for source, splits in self.splits.items()
        )
        held = ChannelState(
            ChannelId(EdgeId(_ORDERS_OF_PARTING, _TOTALS), 0),
            (*(self._slice(source, place, begins) for source, place in self.slices), _FILES),
        )
        waiting = VertexRecord(vertex=_TOTALS, micro_batch=3, subtasks=(SubtaskSnapshot(in_flight=(held,)),))
        return plain_entry(vertices=(*sources, waiting))

    def _slice(self, source: VertexId, place: int, begins: Mapping[VertexId, str]) -> SourceSlice:
        splits = self.splits[source] or [("gone", None, False)]
        name = splits[place % len(splits)][0]
        return SourceSlice(source, SplitId(f"{begins.get(source, '')}{name}"), "3", "7", "{}", 4, 40)


@settings(max_examples=5 * settings.default.max_examples)
@given(orders=_splits, paid=_splits, slices=_slices, parted=st.sets(st.sampled_from([_ORDERS_OF_PARTING, _PAID])))
def test_first_part_go_on(orders, paid, slices, parted):
    """Some sources get parts. At the cut, a source may have had parts already."""
    cut = _Cut({_ORDERS_OF_PARTING: orders, _PAID: paid}, slices)
    parts = {source: _PARTS for source in cut.splits if source in parted}
    alone = [
        source
        for source, splits in cut.splits.items()
        if source in parted and splits and not any(name[:2] in _PARTS for name, _, _ in splits)
    ]
    before = cut.entry({})
    found, due = in_first_part(before, parts), cut.entry(dict.fromkeys(alone, _PARTS[0]))
    expect(list(read_alone(before, parts)) == alone, PARTED, f"{alone} were read alone")
    expect(found == due, PARTED, f"{found.vertices} with {parts}, due is {due.vertices}")
