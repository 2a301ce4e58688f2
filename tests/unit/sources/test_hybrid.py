"""A source that reads several sources in turn: its names, words, refusals and notices, without Spark."""

import time
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from checkpointing.identifiers import CheckpointId, InvalidNameError, JobName, SplitId, VertexId
from checkpointing.messages import PollSource
from checkpointing.metadata.record import CheckpointRecord
from jobs.doctor.examination import input_sections
from jobs.pipeline import Pipeline
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.planning import plan
from jobs.sources.committed_positions import CommitsToFile
from jobs.sources.files.file_source import FileSource
from jobs.sources.hybrid import HybridSource, PartScan, SequenceSource, SequenceSplit
from jobs.sources.kafka.kafka_source import KafkaSource
from jobs.sources.port import NoSuchPositionError, SourceError, close_all, has_ended, introduce, is_bounded
from jobs.sources.position_words import Place, PositionWords, seek
from jobs.tick.discovery import discover
from tests.unit.pipeline.test_planning import cut
from tests.unit.sources.gaps import Gaps

NAME = VertexId("numbers")
HISTORY, LIVE = SplitId("1.old"), SplitId("2.a")


class Ends(Gaps):
    """A source with gaps that has an end."""

    bounded = True

    def has_ended(self, split, position):
        return not self._left(split, position)


@pytest.fixture
def parts():
    return Ends({"old": (1, 5)}), Gaps({"a": (3, 700)})


@pytest.fixture
def hybrid(parts):
    return HybridSource(*parts)


def test_splits_are_named_by_their_part_and_positions_stay_those_of_the_part(hybrid):
    """A poll returns what the part returns, under the split's name in the job."""
    assert (HISTORY, LIVE) == hybrid.splits()
    found = hybrid.poll(PollSource(NAME, LIVE, None, 1))
    assert (NAME, LIVE, "p0", "p4") == (found.source, found.split, found.start, found.end)
    assert "p2bd" == hybrid.poll(PollSource(NAME, LIVE, "p4", 9)).end


def test_every_part_but_the_last_ends(hybrid):
    assert not is_bounded(hybrid)
    assert [False, True] == [has_ended(hybrid, HISTORY, at) for at in (None, "p6")]
    assert not has_ended(hybrid, LIVE, "p2bd")
    whole = SequenceSource({"a": 1}, bounded=True).then(SequenceSource({"a": 2}, bounded=True))
    assert is_bounded(whole)
    assert has_ended(whole, LIVE, "2")


def test_positions_are_told_in_the_words_of_their_part(hybrid):
    """The part also counts rows and finds positions, even if it has no words for them."""
    words = PositionWords({NAME: hybrid})
    assert "part 2, split a, place 701" == words.named(NAME, LIVE, "p2bd")
    assert 2 == words.rows_between(NAME, LIVE, None, "p2bd")
    assert "p2bc" == seek(hybrid, Place(NAME, LIVE, None), "700")
    with pytest.raises(NoSuchPositionError, match=r"split 2.a of source numbers: part 2 \(Gaps\): write the number"):
        seek(hybrid, Place(NAME, LIVE, None), "tomorrow")


def test_an_error_names_the_part_and_the_split_as_the_job_knows_it(tmp_path):
    """So a user can type the command in the message as it is."""
    file = tmp_path / "old" / "1.csv"
    file.parent.mkdir()
    file.write_text("1\n2\n")
    files = FileSource(tmp_path, StructType().add("n", LongType()), format="csv", bounded=True)
    hybrid = files.then(FileSource(tmp_path, files.schema(), format="csv"))
    read = hybrid.poll(PollSource(NAME, HISTORY, None, 5))
    file.write_text("3\n4\n5\n")
    with pytest.raises(SourceError, match=r"^part 1 \(FileSource\): .* reset PIPELINE numbers --split 1.old --to "):
        hybrid.poll(PollSource(NAME, HISTORY, read.end, 5))
    with pytest.raises(SourceError, match=r"^part 1 \(FileSource\): .* reset PIPELINE SOURCE --split 1.old --to "):
        hybrid.lag({HISTORY: read.end})


def test_all_parts_are_closed_introduced_and_told_their_positions(parts, hybrid, tmp_path):
    hybrid.notify_checkpoint_complete(CheckpointId(4), {HISTORY: "p6"})
    hybrid.notify_checkpoint_complete(CheckpointId(5), {HISTORY: "p6", LIVE: "p4"})
    assert [(4, {"old": "p6"}), (5, {"old": "p6"})] == parts[0].told
    assert [(5, {"a": "p4"})] == parts[1].told
    close_all({NAME: hybrid})
    assert [1, 1] == [part.closed for part in parts]
    kafka = KafkaSource("nowhere:1", "orders", format="raw")
    introduce(HybridSource(KafkaSource("nowhere:1", "old", format="raw", bounded=True), kafka), JobName("shop"), NAME)
    assert "tidemark-shop-numbers" == kafka._group


def test_lag_is_told_of_every_part_until_it_has_ended(hybrid):
    """Rows of a part that is not read yet count as unread, too."""
    assert [2, 2] == [offer.lag.rows for offer in discover({NAME: hybrid}, None)[NAME].splits.values()]
    later = discover({NAME: hybrid}, ended(cut(HISTORY, LIVE)))[NAME]
    assert [("ended", 0), ("p0", 2)] == [
        (offer.mark.partition(" ")[0], offer.lag.rows) for offer in later.splits.values()
    ]
    assert not later.ended


def ended(record: CheckpointRecord) -> CheckpointRecord:
    (vertex,) = record.vertices
    subtasks = (replace(vertex.subtasks[0], position="p6", finished=True), replace(vertex.subtasks[1], position="p0"))
    return record.model_copy(update={"vertices": (vertex.model_copy(update={"subtasks": subtasks}),)})


def of(source) -> Pipeline:
    pipeline = Pipeline("example")
    pipeline.source("numbers", source).table("bronze/numbers", id="kept")
    return pipeline


def test_doctor_shows_all_parts_and_the_files_of_each(tmp_path):
    """The unread rows of all parts are added up."""
    for folder in ("old", "new"):
        (tmp_path / folder / "all").mkdir(parents=True)
        (tmp_path / folder / "all" / "1.csv").write_text("1\n")
    schema = StructType().add("n", LongType())
    old, new = (FileSource(tmp_path / name, schema, format="csv", bounded=name == "old") for name in ("old", "new"))
    (section,) = input_sections(lambda: {NAME: old.then(new)}, ())
    ((name, said),) = section.seen
    assert name == "numbers"
    assert f"hybrid: csv: {old.root}, then csv: {new.root}; 1 files in 1 splits of {old.root}; 1 files in 1" in said
    assert "; 2 rows unread, the oldest since" in said


def test_a_part_that_has_ended_is_not_looked_at_any_more(parts, hybrid):
    parts[0].splits = lambda: pytest.fail("the first part was listed")
    (vertex,) = plan(of(hybrid)).with_discovered_splits(ended(cut(HISTORY, LIVE))).graph.sources()
    assert ((HISTORY, LIVE), ("1.", "2.")) == (vertex.splits, vertex.parts)


def test_a_part_without_a_split_is_refused_by_name():
    """Without a split, it is unknown when the part has ended."""
    planned = plan(of(HybridSource(Ends({}), Gaps({"a": (1,)}))))
    with pytest.raises(InvalidPipelineError, match=r"source numbers: its part 1 \(Ends\) has no split to read"):
        planned.with_discovered_splits()


def test_parts_may_be_added_one_by_one():
    """A hybrid source inside another one stands for its parts."""
    one, two, three = (SequenceSource({"a": 1}, bounded=True) for _ in range(3))
    assert (one, two, three) == one.then(two).then(three).parted == one.then(two.then(three)).parted


def test_a_part_that_does_not_end_is_refused_by_name():
    """The parts after it would never be read."""
    with pytest.raises(SourceError, match=r"part 1 \(SequenceSource\) has no end, so part 2 would never be read"):
        SequenceSource({"a": 1}).then(SequenceSource({"a": 1}))


def test_a_wrapper_of_some_parts_is_refused(tmp_path):
    """The splits of that wrapper would have parts themselves. A wrapper around all parts is allowed."""
    ends, goes_on = SequenceSource({"a": 1}, bounded=True), SequenceSource({"a": 1})
    with pytest.raises(SourceError, match=r"part 1 \(CommitsToFile\) wraps a source that has parts itself"):
        CommitsToFile(ends.then(ends), tmp_path / "positions").then(goes_on)
    wrapped = CommitsToFile(ends.then(goes_on), tmp_path / "positions")
    (vertex,) = plan(of(wrapped)).with_discovered_splits().graph.sources()
    assert ("1.", "2.") == vertex.parts


class Columns(Ends):
    """A source with these columns."""

    def __init__(self, **types):
        super().__init__({"old": (1,)})
        self._types = types

    def schema(self):
        found = StructType()
        for name, kind in self._types.items():
            found = found.add(name, kind)
        return found


def test_other_columns_are_refused_by_name():
    """The message lists all differences.

    A column whose name begins with an underscore may be missing, and is then null.
    """
    first, second = Columns(n=LongType(), price=DoubleType()), Columns(n=StringType(), _undecoded=StringType())
    with pytest.raises(SourceError) as refused:
        HybridSource(first, second)
    assert str(refused.value) == (
        "the parts of a source must have the same columns, of the same types: 'n' is bigint in part 1 (Columns), "
        "string in part 2 (Columns); 'price' is double in part 1 (Columns), missing in part 2 (Columns)"
    )
    both = HybridSource(Columns(n=LongType(), _b=StringType()), Columns(_a=StringType(), n=LongType()))
    assert ["n", "_b", "_a"] == both.schema().names
    assert all(field.nullable for field in both.schema().fields)


def test_a_split_of_the_first_part_that_begins_like_a_part_is_refused_by_name():
    """Such a split, if it was read alone before, looks like split `old` of a part.

    Other numbers are allowed, and later parts may have such names.
    """
    with pytest.raises(SourceError, match=r"^part 1 \(Ends\): its split '2.old' begins like the split of a part: give"):
        plan(of(HybridSource(Ends({"2.old": (1,)}), Gaps({"a": (1,)})))).with_discovered_splits()
    free = HybridSource(Ends({"2013.05": (1,), "3.old": (1,)}), Gaps({"1.a": (1,)}))
    assert ("1.2013.05", "1.3.old", "2.1.a") == free.splits()
    alone = plan(of(Ends({"2.old": (1,)}))).with_discovered_splits()
    assert ("2.old",) == alone.graph.sources()[0].splits


class _Offers(Ends):
    """A source whose rows tasks can read, until a task leaves a scan to Spark."""

    left = False

    def scans(self, slices):
        return None if self.left else list(slices)

    def leave_to_spark(self):
        self.left = True


def _slices(source, *splits):
    return [source.poll(PollSource(NAME, split, None, 1)) for split in splits]


def test_tasks_read_the_slices_of_parts_that_offer_scans():
    """If Spark must read one of the slices, Spark reads all of them. A task may leave a scan of any part to Spark."""
    live = _Offers({"a": (3, 700)})
    source = HybridSource(_Offers({"old": (1, 5)}), Ends({"b": (2,)}), live)
    first, last = SplitId("1.old"), SplitId("3.a")
    found = source.scans(_slices(source, first, last))
    assert [("1.", "old"), ("3.", "a")] == [(each.begin, each.scan.split) for each in found]
    assert source.scans(_slices(source, first, SplitId("2.b"))) is None
    source.leave_to_spark()
    assert live.left
    assert source.scans(_slices(source, last)) is None


def test_a_subclass_with_a_read_of_its_own_is_read_by_that():
    """The rows of such a `read` are not those of the scans."""

    class Doubled(HybridSource):
        def read(self, spark, slices):
            return super().read(spark, slices).unionAll(super().read(spark, slices))

    source = Doubled(_Offers({"old": (1, 5)}), _Offers({"a": (3,)}))
    assert source.scans(_slices(source, SplitId("1.old"))) is None


def test_an_error_of_a_scan_names_the_part():
    """A task raises the error, far from the source object."""

    class Gone:
        rows, may_repeat = 1, True

        def batches(self, schema):
            raise SourceError("the file is gone")

    scan = PartScan(scan=Gone(), part="part 2 (FileSource)", begin="2.", missing=frozenset())
    with pytest.raises(SourceError, match=r"part 2 \(FileSource\): the file is gone"):
        list(scan.batches(pa.schema([])))


# ------------------------------------------------------------------
# Tests polling of sequences, without Spark.


def poll(source, split, position=None, rows_max=10):
    return source.poll(PollSource(VertexId("numbers"), SplitId(split), position, rows_max))


def test_a_split_ends_after_its_last_row():
    """Slices follow each other up to the last row. Then there is no slice."""
    source = SequenceSource({"a": 12})
    first = poll(source, "a")
    second = poll(source, "a", first.end)
    assert ("0", "10", 10) == (first.start, first.end, first.rows)
    assert ("10", "12", 2) == (second.start, second.end, second.rows)
    assert poll(source, "a", second.end) is None


def test_an_open_ended_split_goes_on():
    """A split without a number of rows always has rows."""
    assert 7 == poll(SequenceSource({"a": None}), "a", "1000000", 7).rows


def test_only_the_slow_split_is_slow():
    """Each split has its own delay."""
    source = SequenceSource({"slow": SequenceSplit(5, poll_delay_ms=50), "fast": 5})
    started = time.monotonic()
    poll(source, "slow")
    waited = time.monotonic() - started
    assert waited >= 0.05
    assert ("fast", "slow") == source.splits()


def test_a_split_gives_no_more_rows_at_a_time_than_declared():
    """The smaller of the poll's and the split's bound applies. No slice goes beyond the end."""
    source = SequenceSource({"a": SequenceSplit(5, poll_rows_max=3)})
    assert [3, 2, 2] == [poll(source, "a").rows, poll(source, "a", rows_max=2).rows, poll(source, "a", "3").rows]


@pytest.mark.parametrize("position", ["", "-1", '{"format":1}'])
def test_a_foreign_position_is_refused(position):
    """A position of another source is an error. The source does not begin from the start."""
    with pytest.raises(SourceError, match="is not a position of a sequence"):
        poll(SequenceSource({"a": 1}), "a", position)


def test_an_unknown_split_is_named():
    """The error lists the splits."""
    with pytest.raises(SourceError, match="no split 'b', only a"):
        poll(SequenceSource({"a": 1}), "b")


def test_bad_declarations_are_refused():
    """A split's name becomes a key, and a modulus must be positive."""
    with pytest.raises(InvalidNameError):
        SequenceSource({"a b": 1})
    with pytest.raises(ValueError, match="keys is 0"):
        SequenceSource({"a": 1}, keys=0)
