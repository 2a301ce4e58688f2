"""A SparkSource asks a Python data source for offsets, without Spark. Its errors name what it cannot use."""

import json

import pytest
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, LongType, MapType, StringType, StructType

from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.port import NoSuchPositionError, SourceError
from jobs.sources.position_words import Place, seek
from jobs.sources.python.data_source import SPLIT, SparkSource
from jobs.sources.python.ddl import schema_of_text
from jobs.sources.python.readers import OffsetPosition, distance, went_back
from tests import python_data_sources as examples

NAME = VertexId("numbers")
NUMBERS = StructType().add("n", LongType()).add("name", StringType())


@pytest.fixture(autouse=True)
def _calls():
    examples.CALLS.clear()


def polled(source, position=None, most=100):
    return source.poll(PollSource(NAME, SPLIT, position, most))


def offset(slice_):
    return OffsetPosition.parse(slice_.end).offset


def test_a_simple_reader_says_how_many_rows_it_has():
    """Each slice has the rows that the reader returns at a time."""
    source = SparkSource(examples.SimpleNumbers, {"rows": "3"})
    first = polled(source)
    second = polled(source, first.end)
    assert [(2, False), (1, False)] == [(piece.rows, piece.rows_estimated) for piece in (first, second)]
    assert {"offset": 3} == offset(second)
    assert polled(source, second.end) is None


@pytest.mark.parametrize("most", [100, 4])
def test_a_partitioned_reader_decides_how_much_it_reads(most):
    """The reader returns seven rows at a time, as in Spark. The number of rows is an estimate from the offsets."""
    source, position, found = SparkSource(examples.PartitionedNumbers), None, []
    while (piece := polled(source, position, most)) is not None:
        found.append((offset(piece)["topic"]["offset"], piece.rows))
        assert piece.rows_estimated
        position = piece.end
    assert [(7, min(7, most)), (11, 4)] == found


def test_a_reader_of_pyspark_4_0_has_no_limit():
    """In PySpark 4.0, `latestOffset` has no parameters."""
    assert {"topic": {"offset": 11}} == offset(polled(SparkSource(examples.OldNumbers)))


def test_a_new_job_writes_its_first_offset_down():
    """Otherwise the job could begin at another offset in the next tick, and lose the rows between."""
    source = SparkSource(examples.SimpleNumbers, {"rows": "0"})
    first = polled(source)
    assert first.rows_estimated
    assert polled(source, first.end) is None


def test_the_data_source_hears_of_completed_checkpoints_only():
    """Each completed checkpoint is reported once. An older one is not reported again."""
    source = SparkSource(examples.SimpleNumbers)
    end = polled(source).end
    assert examples.CALLS == []
    for checkpoint in (3, 3, 2):
        source.notify_checkpoint_complete(CheckpointId(checkpoint), {SPLIT: end})
    source.notify_checkpoint_complete(CheckpointId(4), {})
    assert [("commit", {"offset": 2})] == examples.CALLS


def test_the_reader_is_stopped():
    """To close twice stops the reader once. The next question opens another reader."""
    source = SparkSource(examples.PartitionedNumbers)
    polled(source)
    source.close()
    source.close()
    assert [("stop", None)] == examples.CALLS
    assert polled(source) is not None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: SparkSource("tests.python_data_sources.Nothing"), "no class 'tests.python_data_sources.Nothing'"),
        (lambda: SparkSource("json"), "'json' is no Python data source"),
        (lambda: SparkSource(dict), "is no Python data source"),
        (
            lambda: SparkSource(examples.SimpleNumbers, {"rows": 3}),
            "options of a SparkSource are texts: write 'rows': '3'",
        ),
        (lambda: SparkSource(examples.SimpleNumbers, {"api_key": "x"}), "its value would be in the open"),
        (lambda: polled(SparkSource(examples.BatchOnly)), "data source batch_only has no stream reader"),
        (lambda: polled(SparkSource(examples.ReadsOnce)), r"simple_numbers has no readBetweenOffsets\(\)"),
        (lambda: SparkSource(examples.Silent).schema(), "does not say its columns: give schema="),
        (
            lambda: polled(SparkSource(examples.PartitionedNumbers, {"offsets": "bad"})),
            "which JSON does not keep as it is",
        ),
        (
            lambda: polled(SparkSource(examples.SimpleNumbers, secrets={"token": "NOT_THERE_AT_ALL"})),
            "the environment has no variable 'NOT_THERE_AT_ALL'",
        ),
    ],
)
def test_what_cannot_be_used_is_named(given, said):
    with pytest.raises(SourceError, match=said):
        given()


def test_rows_that_are_gone_are_named():
    """The data source was set back, so its offsets are lower than those that the job has read."""
    position = OffsetPosition(offset={"topic": {"offset": 5}}, slices=2).text()
    with pytest.raises(SourceError, match=r"the job has read up to .* already: bring its rows back"):
        polled(SparkSource(examples.PartitionedNumbers, {"backwards": "yes"}), position)


def test_no_message_repeats_a_secret(monkeypatch):
    """The data source's own error has the secret, but the source's message does not."""
    monkeypatch.setenv("NUMBERS_TOKEN", "hunter2")
    source = SparkSource(examples.SimpleNumbers, {"fails": "poll"}, secrets={"token": "NUMBERS_TOKEN"})
    with pytest.raises(SourceError, match=r"ConnectionError: the server refuses \*\*\*") as raised:
        polled(source)
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in str(source.described())


def test_positions_have_words():
    """A user names an offset as the data source writes it."""
    source = SparkSource(examples.PartitionedNumbers)
    place = Place(NAME, SPLIT, polled(source).end)
    there = seek(source, place, '{"topic": {"offset": 3}}')
    assert 'offset {"topic": {"offset": 3}}' == source.named(SPLIT, there)
    assert {"topic": {"offset": 11}} == OffsetPosition.parse(seek(source, place, "end")).offset
    with pytest.raises(NoSuchPositionError, match="write 'start', 'end', or an offset"):
        seek(source, place, "yesterday")
    with pytest.raises(SourceError, match="is no position"):
        source.named(SplitId("all"), "{}")


def test_columns_may_be_given():
    """Some data sources can return any columns."""
    given = StructType().add("n", IntegerType())
    assert given == SparkSource(examples.Silent, schema=given).schema()
    assert NUMBERS == SparkSource("tests.python_data_sources.SimpleNumbers").schema()


@pytest.mark.parametrize(
    ("start", "end", "back", "rows"),
    [
        ({"a": 3, "b": 3}, {"a": 2, "b": 3}, True, 1),
        ({"a": 3, "b": 3}, {"a": 2, "b": 9}, False, 5),
        ({"a": {"x": 3}}, {"a": {"x": 2}}, True, 1),
        ({"a": "3"}, {"a": "2"}, False, 1),
        ({"a": 3}, {"a": 3}, False, 1),
        ({"a": 3}, {"a": 2, "b": 0}, False, 1),
        ({"a": True}, {"a": False}, False, 1),
    ],
)
def test_only_numbers_say_that_an_offset_went_back(start, end, back, rows):
    """Other offsets have an order that only the data source knows."""
    assert back == went_back(start, end)
    assert rows == distance(start, end)


def test_a_schema_is_read_from_its_text():
    """The text may have every form of a type that a data source may write."""
    text = "id INT NOT NULL COMMENT 'an id', `a b` string, d decimal(10, 2), e numeric, "
    found = schema_of_text(f"{text}l array<map<string, struct<x: bigint, y:date>>>")
    assert ["id", "a b", "d", "e", "l"] == found.names
    assert not found["id"].nullable
    assert (DecimalType(10, 2), DecimalType(10, 0)) == (found["d"].dataType, found["e"].dataType)
    inner = found["l"].dataType
    assert isinstance(inner, ArrayType)
    assert isinstance(inner.elementType, MapType)
    assert ["x", "y"] == inner.elementType.valueType.names


@pytest.mark.parametrize(
    "text", ["", "id", "id thing", "id int,", "id decimal(1,2,3)", "id array<int", "a int b int", "a %"]
)
def test_a_schema_that_is_not_understood_is_named(text):
    """The way out is a StructType."""
    with pytest.raises(SourceError, match="give schema= as a StructType"):
        schema_of_text(text)


def test_a_position_is_json():
    """So the position survives the encoding of checkpoints."""
    assert {"offset": {"a": 1}, "slices": 0} == json.loads(OffsetPosition(offset={"a": 1}, slices=0).text())


def rest(source, position=None):
    """Return the offsets and limits of all slices from a position on, and the last position."""
    found = []
    while (piece := polled(source, position)) is not None:
        position = piece.end
        found.append(OffsetPosition.parse(position))
    return [each.offset["topic"]["offset"] for each in found], position


@pytest.mark.parametrize("reader", [examples.PartitionedNumbers, examples.OldNumbers])
def test_a_bounded_source_ends_at_the_offset_that_was_newest_at_first(reader):
    """Rows that arrive later are not read.

    This holds for this object, and for the object of a later tick that resumes in the middle of the rows.
    """
    source = SparkSource(reader, {"rows": "11"}, bounded=True)
    first = polled(source)
    read, end = rest(source, first.end)
    assert source.has_ended(SPLIT, end)
    later = SparkSource(reader, {"rows": "40"}, bounded=True)
    assert (read, end) == rest(later, first.end)
    assert {"topic": {"offset": 11}} == OffsetPosition.parse(end).offset == OffsetPosition.parse(end).until
    assert polled(later, end) is None
    goes_on = SparkSource(reader, {"rows": "40"})
    assert not goes_on.has_ended(SPLIT, end)
    assert 40 == rest(goes_on, end)[0][-1]


def test_a_reset_of_a_bounded_source_finds_a_new_end():
    """A position that comes from words has no end yet."""
    place = Place(NAME, SPLIT, rest(SparkSource(examples.PartitionedNumbers, bounded=True))[1])
    later = SparkSource(examples.PartitionedNumbers, {"rows": "40"}, bounded=True)
    assert [13, 20, 27, 34, 40] == rest(later, seek(later, place, '{"topic": {"offset": 6}}'))[0]
    assert polled(later, seek(later, place, "end")) is None


def test_a_bounded_simple_reader_ends_where_a_poll_finds_no_row():
    """A simple reader does not report its newest offset."""
    source = SparkSource(examples.SimpleNumbers, {"rows": "3"}, bounded=True)
    end = polled(source, polled(source).end).end
    assert polled(source, end) is None
    assert source.has_ended(SPLIT, end)


def test_positions_of_a_source_without_end_are_written_as_before():
    """Positions of older versions can be read, too."""
    old = '{"offset": {"offset": 2}, "slices": 1}'
    assert old == polled(SparkSource(examples.SimpleNumbers)).end == OffsetPosition.parse(old).text()


def test_another_source_may_follow_a_bounded_one():
    """The splits are named like those of parts."""
    source = SparkSource(examples.PartitionedNumbers, bounded=True).then(SparkSource(examples.PartitionedNumbers))
    assert ("1.all", "2.all") == source.splits()
    with pytest.raises(SourceError, match="has no end"):
        SparkSource(examples.PartitionedNumbers).then(source)
