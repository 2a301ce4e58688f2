"""Tests the optional abilities of a source, without Spark, also behind another source that wraps it."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.coordinator.messages import (
    AskOperatorCoordinator,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetOperatorCoordinator,
)
from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import CoordinatorReset, CoordinatorResetFailed, NotifyComplete, PollSource
from jobs.sources.delta.upstream_job import UpstreamHolds
from jobs.sources.files.file_source import FileSource
from jobs.sources.generator import GeneratorSource
from jobs.sources.hybrid import HybridSource, SequenceSource, SequenceSplit
from jobs.sources.port import (
    Lag,
    NoSuchPositionError,
    OwnState,
    SourceDescription,
    SourceError,
    WrappedSource,
    closing,
    keeps_state,
)
from jobs.sources.position_words import Place, PositionWords, seek
from jobs.tick.discovery import discover
from jobs.tick.effects import CoordinatorCalls, Notices
from jobs.tick.listener import TickListener
from tests.unit.sources.gaps import Gaps

NAME, SPLIT = VertexId("log"), SplitId("a")


class Plain:
    """A source that can only be read."""

    def __init__(self, source):
        self.schema, self.splits, self.poll, self.read = source.schema, source.splits, source.poll, source.read


class Wraps(WrappedSource):
    """Wraps a source. The wrapper only receives notices of checkpoints."""

    told = None

    def notify_checkpoint_complete(self, checkpoint, positions):
        self.told = (checkpoint, dict(positions))


@pytest.fixture
def gaps():
    return Gaps({"a": (3, 700, 70_000)})


def test_a_source_names_its_positions_and_counts_the_rows_between_them(gaps):
    """The source knows how few rows there are between two distant positions."""
    words = PositionWords({NAME: Wraps(gaps)})
    assert "split a, place 701" == words.named(NAME, SPLIT, "p2bd")
    assert (2, -2, 0) == tuple(
        words.rows_between(NAME, SPLIT, *two) for two in [(None, "p2bd"), ("p2bd", None), [None] * 2]
    )


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (None, "start"),
        ("105", "105"),
        ("not json", "not json"),
        ('{"format":1,"offset":1105,"files":[1,2]}', "offset 1,105, files 2"),
        ("x" * 100, "x" * 60 + "..."),
    ],
)
@pytest.mark.parametrize("sources", [{}, {NAME: Plain(Gaps({"a": ()}))}, {NAME: SequenceSource({"b": 1})}])
def test_a_position_without_a_source_that_knows_it_is_shown_as_it_is(sources, position, said):
    """The pipeline's code is missing, the source has no words for positions, or another source now has the name."""
    words = PositionWords(sources)
    assert said == words.named(NAME, SPLIT, position)


def test_rows_between_positions_of_an_unknown_source_are_not_counted():
    """The positions look like ordinals, but only their source knows whether they are."""
    assert PositionWords({}).rows_between(NAME, SPLIT, "5", "100") is None
    assert PositionWords({NAME: Plain(SequenceSource({"a": 10}))}).rows_between(NAME, SPLIT, "5", "7") is None
    assert PositionWords({NAME: SequenceSource({"a": 10})}).rows_between(NAME, SPLIT, "5", "7") == 2


def test_a_source_understands_its_own_words(gaps):
    """This also holds behind a wrapper. A refusal names split and source, and the words that a user can write."""
    place = Place(NAME, SPLIT, "p4")
    assert ["p2bc", "p11171", None] == [seek(Wraps(gaps), place, words) for words in ("700", "end", "start")]
    with pytest.raises(
        NoSuchPositionError, match="'soon' is not a position in split a of source log: write the number"
    ):
        seek(gaps, place, "soon")


def test_only_start_and_end_of_a_source_without_words_can_be_named(gaps):
    """The end is the position at which polling ends, however few rows each poll returns."""
    few = Plain(SequenceSource({"a": SequenceSplit(25, poll_rows_max=10), "b": SequenceSplit(None, poll_rows_max=10)}))
    assert ["p11171", None] == [seek(Plain(gaps), Place(NAME, SPLIT, "p4"), words) for words in ("end", "start")]
    assert "25" == seek(few, Place(NAME, SPLIT, "3"), "end")
    with pytest.raises(NoSuchPositionError, match="split b of source log: it has no end"):
        seek(few, Place(NAME, SplitId("b"), None), "end")
    with pytest.raises(NoSuchPositionError, match="only 'start' and 'end' can be named"):
        seek(Plain(gaps), Place(NAME, SPLIT, None), "700")


def test_secrets_are_left_out_of_a_description(gaps):
    """The description has no user, no password, and no value of an argument that names a secret."""
    assert SourceDescription("gaps", "pg://host/base?password=***") == gaps.described()
    assert "kafka://a:9092,b:9092" == SourceDescription("kafka", "kafka://a:9092,b:9092").place
    assert "host=h password=*** dbname=x" == SourceDescription("pg", "host=h password=a/b@c dbname=x").place
    with pytest.raises(ValueError, match="'Kafka topic' is no kind of a source"):
        SourceDescription("Kafka topic", "")


def test_a_source_that_knows_its_lag_is_not_polled(gaps, monkeypatch):
    """The lag has rows and their age. The source is closed afterwards."""
    monkeypatch.setattr(gaps, "poll", None)
    found = discover({NAME: Wraps(gaps)}, None)[NAME]
    assert (True, 3, 3.0, 1) == (found.any, found.rows, found.seconds, gaps.closed)


def test_one_poll_finds_out_what_a_lag_leaves_open(gaps):
    """The poll shows whether there is a row. The number of rows stays unknown."""
    gaps.lag = lambda positions: {SPLIT: Lag(None, 2.5)}
    found = discover({NAME: gaps}, None)[NAME]
    assert (True, None, 2.5) == (found.any, found.rows, found.seconds)
    gaps.places = {"a": ()}
    found = discover({NAME: gaps}, None)[NAME]
    assert (False, 0, 0.0) == (found.any, found.rows, found.seconds)


def test_new_rows_change_the_digest_of_the_offers(gaps):
    """This holds for a source that knows its lag, and for a source that is polled."""
    for source in (gaps, Plain(gaps)):
        gaps.places = {"a": (3,)}
        before = [discover({NAME: source}, None)[NAME].digest for _ in range(2)]
        gaps.places = {"a": (3, 4)}
        assert before[0] == before[1] != discover({NAME: source}, None)[NAME].digest


def test_every_source_is_closed_even_if_one_cannot_be(gaps):
    """The wrapped source is closed too, also after an error."""
    gaps.close = lambda: 1 / 0
    other = Gaps({"b": ()})

    def fails():
        with closing({NAME: gaps, VertexId("other"): Wraps(other), VertexId("plain"): Plain(other)}):
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert 1 == other.closed


def test_a_wrapped_source_receives_notices_of_checkpoints(gaps):
    """Both the wrapper and the source inside get the notice."""
    outer = Wraps(gaps)
    Notices({NAME: outer}, (), TickListener(), UpstreamHolds("report")).complete(
        NotifyComplete(CheckpointId(4), ((NAME, SPLIT, "p4"),))
    )
    assert (4, {"a": "p4"}) == outer.told
    assert [(4, {"a": "p4"})] == gaps.told


def test_a_source_that_does_not_know_its_name_is_named_in_the_commands_of_its_errors(gaps, monkeypatch):
    """A source does not learn its name when it is asked for its lag or for a place.

    A wrong word stays an error about the word.
    """

    def fails(*_):
        raise failure

    name = VertexId("numbers")
    monkeypatch.setattr(gaps, "lag", fails)
    monkeypatch.setattr(gaps, "seek", fails)
    failure = SourceError("gone: tidemark reset PIPELINE SOURCE --to start")
    for asked in (lambda: discover({name: gaps}, None), lambda: seek(gaps, Place(name, SplitId("a"), None), "7")):
        with pytest.raises(SourceError, match="gone: tidemark reset PIPELINE numbers --to start"):
            asked()
    failure = NoSuchPositionError("write SOURCE")
    with pytest.raises(NoSuchPositionError, match="split a of source numbers: write SOURCE"):
        seek(gaps, Place(name, SplitId("a"), None), "7")


# ------------------------------------------------------------------
# Tests the state that sources have besides positions: collected from all layers and parts, and given back.


class Remembering(WrappedSource):
    """A source whose state counts how often it was asked for."""

    def __init__(self, source, name):
        super().__init__(source)
        self.name, self.asked, self.given = name, 0, []

    def snapshot_state(self):
        self.asked += 1
        return f"{self.name} {self.asked}"

    def restore_state(self, checkpoint, state):
        if state == "broken":
            raise SourceError("'broken' is no state of mine")
        self.given.append((checkpoint, state))


def remembering(name):
    return Remembering(GeneratorSource(10, bounded=True), name)


def test_the_states_of_layers_and_parts_come_in_their_order_and_go_back():
    """A layer without state changes nothing."""
    one, two = remembering("one"), remembering("two")
    hybrid = HybridSource(WrappedSource(one), two)
    assert keeps_state(hybrid)
    assert not keeps_state(GeneratorSource(10, bounded=True))
    text = OwnState(hybrid).snapshot()
    OwnState(hybrid).restore(7, text)
    OwnState(hybrid).restore(8, None)
    OwnState(hybrid).restore(None, None)
    assert [(7, "one 1"), (8, None), (None, None)] == one.given
    assert [(7, "two 1"), (8, None), (None, None)] == two.given


@pytest.mark.parametrize("text", ['["a","b"]', '{"a":1}', "[1]", "[]"])
def test_the_state_of_another_source_is_refused(text):
    """The message proposes a new id."""
    with pytest.raises(SourceError, match="an id of its own"):
        OwnState(remembering("one")).restore(7, text)


def test_a_tick_asks_and_restores_by_facts_and_errors_name_the_source():
    source = remembering("one")
    calls = CoordinatorCalls({"orders": source})
    assert CoordinatorReset("orders") == calls.carry_out(ResetOperatorCoordinator("orders", None))
    assert OperatorCoordinatorAnswered("orders", 3, '["one 1"]') == calls.carry_out(AskOperatorCoordinator("orders", 3))
    failed = calls.carry_out(ResetOperatorCoordinator("orders", 3, '["broken"]'))
    said = "source orders could not take its own state back: 'broken' is no state of mine"
    assert CoordinatorResetFailed("orders", said) == failed
    source.snapshot_state = None
    failed = calls.carry_out(AskOperatorCoordinator("orders", 4))
    assert isinstance(failed, OperatorCoordinatorFailed)
    assert failed.message.startswith("source orders could not give its own state: TypeError")


# ------------------------------------------------------------------
# A user writes a place in a split in words. Tests, without Spark, that the words become the position that the source
# itself writes for that place.


NUMBERS = VertexId("numbers")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "s").mkdir()
    for rows in (3, 4, 5):
        pq.write_table(pa.table({"n": list(range(rows))}), tmp_path / f"s/{rows}.parquet")
    return FileSource(tmp_path, StructType().add("n", LongType()))


def place(position=None):
    return Place(NUMBERS, SplitId("s"), position)


@pytest.mark.parametrize(
    ("words", "rows"), [("start", 0), ("3.parquet:2", 2), ("4.parquet:4", 7), ("5.parquet:0", 7), ("end", 12)]
)
def test_a_file_and_its_rows_name_a_position(files, words, rows):
    """This holds from any earlier position. Reading goes on with exactly the rows after it."""
    for stands in (None, seek(files, place(), "4.parquet:1"), seek(files, place(), "end")):
        found = seek(files, place(stands), words)
        assert rows == files.rows_between(SplitId("s"), None, found)
        if words not in ("start", "end"):
            assert words == files.named(SplitId("s"), found)
        left = files.poll(PollSource(NUMBERS, SplitId("s"), found, 100))
        assert 12 - rows == (left.rows if left else 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("6.parquet:1", r"FILE:ROWS, like 5.parquet:5; files: 3.parquet to 5.parquet"),
        ("3.parquet", "FILE:ROWS"),
        ("3.parquet:4", "3.parquet has 3 rows"),
        ("3.parquet:-1", "FILE:ROWS"),
        ("../3.parquet:1", "FILE:ROWS"),
    ],
)
def test_other_words_are_refused_with_the_right_ones(files, words, said):
    """The message names the split and the source."""
    with pytest.raises(NoSuchPositionError, match=f"is not a position in split s of source numbers: .*{said}"):
        seek(files, place(), words)


def test_a_number_names_a_position_of_a_sequence():
    """The number must lie within the split. A split without an end has no position `end`."""
    source = SequenceSource({"s": 10, "endless": None})
    assert ["7", None, "10"] == [seek(source, place("3"), words) for words in ("7", "start", "end")]
    with pytest.raises(NoSuchPositionError, match="a number from 0 to 10"):
        seek(source, place("3"), "11")
    with pytest.raises(NoSuchPositionError, match="it has no end"):
        seek(source, Place(NUMBERS, SplitId("endless"), "3"), "end")


def test_an_empty_split_has_only_its_start(tmp_path):
    """No other position exists in an empty split."""
    (tmp_path / "s").mkdir()
    source = FileSource(tmp_path, StructType().add("n", LongType()))
    assert [None, None] == [seek(source, place(), words) for words in ("start", "end")]
    with pytest.raises(NoSuchPositionError, match="the split is empty so far"):
        seek(source, place(), "a.parquet:1")
