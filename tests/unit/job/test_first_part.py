"""A source that was read alone goes on as the first part: only names change (B4)."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpointing.channel_items import ChannelState, SourceSlice
from checkpointing.graph import JobGraph
from checkpointing.identifiers import ChannelId, EdgeId, SplitId, VertexId
from checkpointing.job.polling import in_first_part, parts_of, read_alone
from checkpointing.job.restoring import in_flight

LEFT, RIGHT = VertexId("left"), VertexId("right")
PARTS = {LEFT: ("1.", "2.")}
_names = st.text("ab.", min_size=1, max_size=4).filter(lambda name: name[0] != ".")
_snapshots = st.tuples(st.none() | st.integers(0, 9).map(str), st.booleans(), st.integers(0, 3))


def cut(job, splits):
    """Return a cut: positions, ends and rows in flight of the left source by split. The right one has one split."""
    left, *others = job.two_sources().vertices
    left = replace(left, splits=tuple(splits), parallelism=len(splits))
    record = job.record(JobGraph((left, *others), job.two_sources().edges), 3, {})
    was, right, joined = record.vertices
    subtasks = tuple(
        replace(snapshot, position=position, finished=finished)
        for snapshot, (position, finished, _) in zip(was.subtasks, splits.values(), strict=True)
    )
    held = tuple(
        ChannelState(
            ChannelId(EdgeId("left", "joined", 0), place),
            (*(piece(LEFT, split) for _ in range(rows)), piece(RIGHT, "r")),
        )
        for place, (split, (_, _, rows)) in enumerate(splits.items())
    )
    first, *more = joined.subtasks
    joined = joined.model_copy(update={"subtasks": (replace(first, in_flight=held), *more)})
    return record.model_copy(update={"vertices": (was.model_copy(update={"subtasks": subtasks}), right, joined)})


def piece(source, split):
    return SourceSlice(source, SplitId(split), "0", "5", "[0,5]", 5, 40)


def positions(record, begin=""):
    (left, *_) = record.vertices
    return {
        split.removeprefix(begin): (each.position, each.finished)
        for split, each in zip(left.splits, left.subtasks, strict=True)
    }


def slices(record):
    return [(channel, segment) for channel, segment in in_flight(record)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(splits=st.dictionaries(_names, _snapshots, min_size=1, max_size=4))
def test_the_first_part_gets_the_names_and_nothing_else_changes(job, splits):
    """Positions, ends and rows in flight stay, and so does the other source. A second time nothing happens."""
    record = cut(job, splits)
    assert (LEFT,) == read_alone(record, PARTS)
    then = in_first_part(record, PARTS)
    assert all(split.startswith("1.") for split in then.vertices[0].splits)
    assert positions(record) == positions(then, "1.")
    before = [
        (channel, replace(each, split=SplitId(f"1.{each.split}")) if each.source == LEFT else each)
        for channel, each in slices(record)
    ]
    assert before == slices(then)
    assert record.vertices[1] == then.vertices[1]
    assert () == read_alone(then, PARTS)
    assert then is in_first_part(then, PARTS)


def test_a_source_without_parts_keeps_its_names(job):
    """Neither does a source change that had parts at the cut, or whose splits have mixed names."""
    record = cut(job, {"a": ("3", False, 1)})
    assert record is in_first_part(record, parts_of(job.two_sources()))
    mixed = cut(job, {"a": ("3", False, 1), "2.b": ("3", False, 0)})
    assert mixed is in_first_part(mixed, PARTS)
