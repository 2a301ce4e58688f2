"""Every fact and effect is read back from the trace as it was written, and a missing line is found."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import RangeFiles
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import KeyedFile
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import (
    AppendRow,
    CutRecorded,
    Effect,
    Fact,
    FileChanges,
    MicroBatchFinished,
    NotifyAborted,
    Publication,
    PublishTable,
    RowAppended,
    RunMicroBatch,
    SubtaskOutput,
    TickOutcome,
    TimeAdvanced,
)
from checkpointing.metadata.record import Holder, ManifestReference, TickEnd
from checkpointing.trace import (
    FilesTakenOut,
    TickBroken,
    UnreadableTraceError,
    decode,
    encode,
    read,
)
from jobs.storage.place import local
from jobs.tick import trace_files as traces
from jobs.tick.trace_files import TRACES_KEPT, TraceBounds, TraceWriter, drop_old_traces, open_trace
from spec.traces import lines_of
from tests.unit.commit.large_rows import STATE, SUMS, TOTALS, keyed, large_record
from tests.unit.stores.valid_rows import holders, references

st.register_type_strategy(Holder, holders)
st.register_type_strategy(ManifestReference, references)
st.register_type_strategy(TickEnd, st.builds(TickEnd, outcome=st.sampled_from([each.value for each in TickOutcome])))
MESSAGES = (*get_args(Fact), *get_args(Effect), TickBroken)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_survives_encoding_and_decoding(kind):
    """This holds for every fact and every effect, with any content."""

    @given(st.integers(min_value=0), st.from_type(kind))
    def comes_back(at_ms, message):
        entry = decode(encode(7, at_ms, message))
        assert (7, at_ms, message) == (entry.number, entry.at_ms, entry.body)
        assert type(message) is type(entry.body)

    comes_back()


def test_a_reason_is_written_by_its_name():
    """So old traces stay readable when the message of a reason is reworded."""
    line = encode(1, 1, NotifyAborted(CheckpointId(3), CheckpointFailureReason.QUALITY, "no"))
    assert b'"reason":"QUALITY"' in line


def lines(*bodies):
    return [encode(number, number * 10, body) for number, body in enumerate(bodies, start=1)]


# ------------------------------------------------------------------
# A trace describes each file once, and is read back as it was written.


SUBTASKS = 3


class Job:
    """The files of some subtasks, as facts and effects of a trace. Files that do not change stay the same objects."""

    def __init__(self, files: int, subtasks: int = SUBTASKS) -> None:
        self._numbers = iter(range(1, 1_000_000))
        self.state = [tuple(self.new() for _ in range(files)) for _ in range(subtasks)]
        self.checkpoint = 0

    def new(self) -> KeyedFile:
        return keyed(next(self._numbers))

    def finished(self, subtasks: list[int]) -> MicroBatchFinished:
        """Add a file to these subtasks. Return the fact of the micro-batch that wrote them."""
        outputs = []
        for subtask in range(len(self.state)):
            new = (self.new(),) if subtask in subtasks else ()
            self.state[subtask] = (*self.state[subtask], *new) if new else self.state[subtask]
            outputs.append(SubtaskOutput(state=new, ranges=(RangeFiles(TOTALS, new),)))
        return MicroBatchFinished(SUMS, 1, tuple(outputs))

    def run(self) -> RunMicroBatch:
        return RunMicroBatch(
            SUMS, 1, 1, (), tuple(self.state), tuple((RangeFiles(TOTALS, each),) for each in self.state)
        )

    def append(self) -> AppendRow:
        self.checkpoint += 1
        record = large_record([[] for _ in self.state], [[] for _ in self.state], self.checkpoint)
        snapshots = tuple(
            replace(each, state=own) for each, own in zip(record.vertices[0].subtasks, self.state, strict=True)
        )
        vertex = record.vertices[0].model_copy(update={"subtasks": snapshots})
        tables = (record.tables[0].model_copy(update={"files": self.table_files()}), *record.tables[1:])
        return AppendRow(record.model_copy(update={"vertices": (vertex,), "tables": tables}), self.checkpoint)

    def table_files(self) -> tuple:
        return tuple(each.file for own in self.state for each in own)

    def publish(self) -> PublishTable:
        files = self.table_files()
        changes = FileChanges(self.checkpoint, new=files[-2:], gone=files[:1]) if self.checkpoint % 2 else None
        publication = Publication(STATE, TableMode.STATE, files=files, changes=changes)
        return PublishTable(CheckpointId(self.checkpoint), publication)


def _bytes_of_a_checkpoint(files: int, subtasks: int) -> int:
    job, memory = Job(files, subtasks), FilesTakenOut()
    for number in (1, 2):
        bodies = [job.run(), job.finished(list(range(10))), job.append(), job.publish()]
        size = sum(len(encode(number, 1, body, memory)) for body in bodies)
    return size


def test_a_line_does_not_grow_with_the_files_that_live() -> None:
    """For the same changes, a job with 10,000 files writes about as many bytes as a job with 100 files."""
    assert _bytes_of_a_checkpoint(100, 100) < 1.2 * _bytes_of_a_checkpoint(1, 100)


@pytest.mark.parametrize("files", range(1, 20))
def test_files_with_numbers_that_follow_one_another_are_one_run(files: int) -> None:
    """In the line, the new file follows the run of the older files."""
    job, memory = Job(files, 1), FilesTakenOut()
    encode(1, 1, job.run(), memory)
    job.state = [(*job.state[0], job.new())]
    assert b"[[0,%d],{" % files in encode(2, 1, job.run(), memory)


@pytest.mark.parametrize(
    ("good", "bad", "why"),
    [
        (b"[[0,2]]", b"[[0,9]]", r"names files \[0, 9\], and the lines before it number 2 files"),
        (b"[[0,2]]", b"[[-1,2]]", r"names files \[-1, 2\]"),
        (b"[[0,2]]", b"[[0]]", r"names files \[0\]"),
        (b"[[0,2]]", b'[["a",2]]', "names files"),
        (b"[[[0,2]]", b"[[[0,2]],[[0,2]]", "its message has fewer"),
        (b'"files":[[[0,2]],', b'"files":[', "its message has more"),
        (b"[[0,2]]", b"[{}]", "no AppendRow"),
    ],
)
def test_a_line_that_breaks_a_reference_is_refused_by_its_number(good: bytes, bad: bytes, why: str) -> None:
    """The message names the line and the broken reference."""
    job, memory = Job(2, 1), FilesTakenOut()
    first, second = (encode(number, 1, body, memory) for number, body in ((1, job.append()), (2, job.append())))
    assert good in second
    with pytest.raises(UnreadableTraceError, match=f"line 2: .*{why}"):
        list(read([first, second.replace(good, bad, 1)]))


def test_a_table_may_not_be_read_as_state() -> None:
    """A number can be read as a state file only if a line described the file as a state file."""
    job, memory = Job(2, 1), FilesTakenOut()
    table = job.publish()
    first, second = encode(1, 1, table, memory), encode(2, 1, job.run(), memory)
    forged = second[: second.index(b'"files":')] + b'"files":[[[0,2]],[]],' + second[second.index(b'"body":') :]
    with pytest.raises(UnreadableTraceError, match=r"line 2: .*where KeyedFile belongs"):
        list(read([first, forged]))


def test_a_message_without_files_is_as_it_was() -> None:
    """A line without lists of files gets no numbers."""
    assert b'{"format":11,"number":1,"at_ms":2,"is":"TimeAdvanced","body":{"now_ms":3}}\n' == encode(
        1, 2, TimeAdvanced(3)
    )


# ------------------------------------------------------------------
# The traces of the newest generations stay. Their lines are numbered.


def test_lines_are_numbered_over_all_writes(tmp_path):
    """Lines are read back in order, however many were written at a time."""
    path = tmp_path / "traces" / "1.ndjson"
    with TraceWriter(path) as trace:
        trace.write(1, [TimeAdvanced(1), RowAppended("n", 2)])
        trace.write(2, [TimeAdvanced(2)])
    with path.open("rb") as lines:
        assert [(1, TimeAdvanced(1)), (2, RowAppended("n", 2)), (3, TimeAdvanced(2))] == [
            (entry.number, entry.body) for entry in read(lines)
        ]


def test_old_traces_go(tmp_path):
    """The traces of the oldest generations are deleted, beyond the number that is kept. No other file is deleted."""
    for generation in range(1, TRACES_KEPT + 3):
        (tmp_path / f"{generation}.ndjson").touch()
    (tmp_path / "mine.txt").touch()
    drop_old_traces(local(tmp_path), Generation(TRACES_KEPT + 2))
    assert {"mine.txt", *(f"{g}.ndjson" for g in range(3, TRACES_KEPT + 3))} == {p.name for p in tmp_path.iterdir()}


def test_a_trace_is_full_by_its_bytes_or_its_checkpoints(tmp_path):
    """Either bound alone makes a trace full."""
    with TraceWriter(tmp_path / "1.ndjson", TraceBounds(bytes=200, checkpoints=9)) as trace:
        trace.write(1, [TimeAdvanced(1)])
        assert not trace.is_full
        trace.write(2, [TimeAdvanced(2), TimeAdvanced(3), TimeAdvanced(4)])
        assert trace.is_full
    with TraceWriter(tmp_path / "2.ndjson", TraceBounds(bytes=10_000, checkpoints=2)) as trace:
        trace.write(1, [CutRecorded(1)])
        assert not trace.is_full
        trace.write(2, [CutRecorded(2)])
        assert trace.is_full


def test_the_oldest_traces_go_when_all_take_too_much(tmp_path, monkeypatch):
    """The newest traces stay while they fit. The first trace that does not fit is deleted, with all older ones."""
    monkeypatch.setattr(traces, "TRACES_BYTES_MAX", 100)
    for generation, size in ((1, 1), (2, 60), (3, 30), (4, 60)):
        (tmp_path / f"{generation}.ndjson").write_bytes(b"x" * size)
    drop_old_traces(local(tmp_path), Generation(5))
    assert {"3.ndjson", "4.ndjson"} == {path.name for path in tmp_path.iterdir()}


def test_a_large_trace_is_compressed_when_its_attempt_ends(tmp_path):
    """The file gets smaller and keeps its name. Each reader reads the same lines. A small trace stays as it is."""
    large, small = tmp_path / "1.ndjson", tmp_path / "2.ndjson"
    with TraceWriter(large) as trace:
        trace.write(1, [RowAppended(f"nonce-{number}", number) for number in range(20_000)])
        trace.flush()
        plain = large.stat().st_size
    assert plain > traces.COMPRESSED_FROM_BYTES
    assert large.stat().st_size < plain / 5
    assert [large] == [*tmp_path.iterdir()]
    with open_trace(large) as lines:
        assert [*range(1, 20_001)] == [entry.number for entry in read(lines)]
    assert 20_000 == len([*read(lines_of(large))])
    with TraceWriter(small) as trace:
        trace.write(1, [TimeAdvanced(1)])
    assert small.read_bytes().startswith(b"{")
    with open_trace(small) as lines:
        assert [TimeAdvanced(1)] == [entry.body for entry in read(lines)]
