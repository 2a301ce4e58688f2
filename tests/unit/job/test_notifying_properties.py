"""A cut gives the position before which it has all rows of a split, and shows whether rows are left (B4, F1)."""

from itertools import permutations, product
from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkpointing.channel_items import ChannelState, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.commit.recovery import completion, has_finished
from checkpointing.graph import Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SplitId, VertexId
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

# ------------------------------------------------------------------
# Tests two facts that follow from a cut: the position before which it has all rows of a split, and whether rows are
# left (B4, F1). The cuts hold slices in flight in any combination. Some combinations occur only after a reset of a
# source. Such slices have a gap between them, or begin in different places and end in the same place.


TOLD: Final = "told-positions"
"""The notification of a cut has, for each split, the position before which the cut has all rows.

The slices in flight begin at this position. The position is left out if the slices do not lead from there to the
split's position in the cut."""
FINISHED: Final = "nothing-is-left"
"""A pipeline has no row left to read after a cut that has finished, if all sources of the pipeline are bounded.

The cut must also have a split of each source and of each of its parts."""

_SOURCES: Final = (VertexId("numbers"), VertexId("others"))
_SPLITS: Final = ("first-a", "second-b")
_Slice = tuple[int, int, int, int]
"""A slice: source, split, start and end."""
_At = dict[tuple[int, int], int | None]
"""The position of each split. The key is (source, split)."""
_place = st.integers(0, 1)
_slices = st.lists(
    st.one_of(
        st.tuples(_place, _place, st.integers(0, 3), st.integers(1, 3)),
        st.tuples(st.just(0), st.just(0), st.integers(0, 2), st.integers(1, 3)),
    ),
    max_size=4,
)


@settings(max_examples=5 * settings.default.max_examples)
@given(slices=_slices, positions=st.lists(st.sampled_from([None, 0, 1, 2, 3, 3]), min_size=4, max_size=4), twice=_place)
@example(slices=[(0, 0, 0, 3), (0, 0, 1, 3)], positions=[3, None, None, None], twice=0)  # two starts of one end
def test_cut_complete(slices, positions, twice):
    """A checkpoint completes. Both readers may hold the same slices."""
    held = [each for each in slices if each[2] < each[3]]
    at = dict(zip(product((0, 1), (0, 1)), positions, strict=True))
    told = completion(_record(at, [held, held[:twice]]))
    due = []
    for (source, split), position in at.items():
        own = {(start, end) for of, part, start, end in held if (of, part) == (source, split)}
        before = _before(position, own)
        if before is not None:
            due.append((_SOURCES[source], SplitId(_SPLITS[split]), str(before)))
    expect(told.checkpoint == 1, TOLD, f"{told} of checkpoint 1")
    expect(told.positions == tuple(due), TOLD, f"{told.positions} of {at} with {held}, due are {due}")


@settings(max_examples=5 * settings.default.max_examples)
@given(
    ended=st.lists(st.sampled_from([True, True, True, False]), min_size=5, max_size=5),
    flying=st.sampled_from([False, False, True]),
    sources=st.lists(
        st.tuples(
            st.sampled_from(["numbers", "numbers", "others", "new"]),
            st.sampled_from([None, "numbers", "others", "gone"]),
            st.sampled_from([True, True, False]),
            st.sampled_from([(), ("first",), ("first", "second"), ("first", "second", "third")]),
        ),
        max_size=2,
    ),
    is_there=st.sampled_from([True, True, True, False]),
)
def test_cut_begin(ended, flying, sources, is_there):
    """A pipeline begins at a cut, and perhaps has nothing to do."""
    vertices = [
        Vertex(
            VertexId(name),
            VertexKind.SOURCE,
            1,
            renamed_from=VertexId(was) if was is not None else None,
            bounded=bounded,
            parts=parts,
        )
        for name, was, bounded, parts in sources
    ]
    at: _At = dict.fromkeys(product((0, 1), (0, 1)), 3)
    cut = _record(at, [[(0, 0, 1, 3)]] if flying else [[]], ended) if is_there else None
    due = is_there and all(ended) and not flying
    for name, was, bounded, parts in sources:
        known = name in _SOURCES or was in _SOURCES
        due = due and bounded and known and "third" not in parts
    made = has_finished(cut, vertices)
    expect(made == due, FINISHED, f"{made} of {sources} after {ended}, flying: {flying}")


def _before(position: int | None, slices: set[tuple[int, int]]) -> int | None:
    """Return where the slices begin, or None if they do not lead to the position in any order."""
    if not slices:
        return position
    for order in permutations(slices):
        ends = [end for _, end in order]
        starts = [start for start, _ in order]
        if ends[-1] == position and ends[:-1] == starts[1:]:
            return starts[0]
    return None


def _record(at: _At, held: list[list[_Slice]], ended: list[bool] | None = None) -> CheckpointRecord:
    """Return a cut with the splits of both sources at these positions. The readers hold these slices."""
    ends = ended or [False] * 5
    sources = [
        VertexRecord(
            vertex=name,
            micro_batch=1,
            subtasks=tuple(
                SubtaskSnapshot(position=_text(at[place, split]), finished=ends[2 * place + split]) for split in (0, 1)
            ),
            splits=_SPLITS,
        )
        for place, name in enumerate(_SOURCES)
    ]
    readers = [
        VertexRecord(
            vertex=VertexId(f"reader-{place}"),
            micro_batch=1,
            subtasks=(SubtaskSnapshot(in_flight=_in_flight(own), finished=ends[4]),),
        )
        for place, own in enumerate(held)
    ]
    return plain_entry(checkpoint=CheckpointId(1), parent=CheckpointId(0), vertices=(*sources, *readers))


def _in_flight(held: list[_Slice]) -> tuple[ChannelState, ...]:
    """Return slices as a reader's channels hold them, one channel for each source. Files are between them."""
    files = StagedSegment((FileHandle("a", 1, 1, 1),))
    channels = []
    for place, name in enumerate(_SOURCES):
        own = [
            SourceSlice(name, SplitId(_SPLITS[split]), str(start), str(end), "", 1, 1)
            for source, split, start, end in held
            if source == place
        ]
        if own:
            channels.append(ChannelState(ChannelId(EdgeId(name, VertexId("reader")), 0), (files, *own)))
    return tuple(channels)


def _text(position: int | None) -> str | None:
    return None if position is None else str(position)
