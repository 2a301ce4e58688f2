"""A trace writes each file once, and is read back as it was written."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import RangeFiles
from checkpointing.graph import TableMode
from checkpointing.handles import KeyedFile
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import (
    AppendRow,
    FileChanges,
    MicroBatchFinished,
    Publication,
    PublishTable,
    RunMicroBatch,
    SubtaskOutput,
    TimeAdvanced,
)
from checkpointing.trace import FilesTakenOut, Traced, UnreadableTraceError, encode, read
from tests.unit.commit.large_rows import STATE, SUMS, TOTALS, keyed, large_record

SUBTASKS = 3


class Job:
    """The files of some subtasks, which change and are traced. Files that do not change stay the same objects."""

    def __init__(self, files: int, subtasks: int = SUBTASKS) -> None:
        self._numbers = iter(range(1, 1_000_000))
        self.state = [tuple(self.new() for _ in range(files)) for _ in range(subtasks)]
        self.checkpoint = 0

    def new(self) -> KeyedFile:
        return keyed(next(self._numbers))

    def finished(self, subtasks: list[int]) -> MicroBatchFinished:
        """Add a file to these subtasks, by the fact that says so."""
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

    def change(self, draw: random.Random, change: str) -> Traced:
        subtask = draw.randrange(len(self.state))
        own = self.state[subtask]
        match change:
            case "finished":
                return self.finished([each for each in range(len(self.state)) if draw.random() < 0.5])
            case "drop":
                self.state[subtask] = tuple(each for each in own if draw.random() < 0.7)
            case "move":
                self.state[subtask] = tuple(draw.sample(own, len(own)))
            case "copy":
                self.state[subtask] = tuple(replace(each) for each in own)  # equal, and other objects
            case "append":
                return self.append()
            case "publish":
                return self.publish()
            case _:
                pass
        return self.run()


_changes = st.lists(st.sampled_from(["finished", "drop", "move", "copy", "append", "publish", "run"]), max_size=30)


@given(changes=_changes, seed=st.integers(0, 999))
def test_any_sequence_of_messages_comes_back_as_it_was(changes: list[str], seed: int) -> None:
    """Whatever happens to the files of a job, the reader sees the whole lists."""
    draw, job, files = random.Random(seed), Job(3), FilesTakenOut()  # noqa: S311 - a failure must be repeatable
    bodies = [job.change(draw, change) for change in changes]
    written = [encode(number, 1, body, files) for number, body in enumerate(bodies, start=1)]
    assert bodies == [entry.body for entry in read(written)]


def test_lists_that_no_longer_live_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer remembers what lives, however long the trace is. What comes again after that is written again."""
    monkeypatch.setattr("checkpointing.trace._REMEMBERED", 10)
    job, files = Job(2), FilesTakenOut()
    bodies, most = [], 0
    for turn in range(200):
        job.state = [own[1:] for own in job.state]
        bodies += [job.finished([0, 1, 2]), job.run(), job.append(), *([bodies[1]] if turn == 150 else [])]
        written = [encode(number, 1, body, files) for number, body in enumerate(bodies[-1:], start=1)]
        assert written
        most = max(most, len(files._numbers))
    assert most < 200
    again = FilesTakenOut()
    assert bodies == [entry.body for entry in read([encode(at, 1, body, again) for at, body in enumerate(bodies, 1)])]


def _bytes_of_a_checkpoint(files: int, subtasks: int) -> int:
    """Return the bytes of the second checkpoint, after a micro-batch that has added a file to ten subtasks."""
    job, memory = Job(files, subtasks), FilesTakenOut()
    for number in (1, 2):
        bodies = [job.run(), job.finished(list(range(10))), job.append(), job.publish()]
        size = sum(len(encode(number, 1, body, memory)) for body in bodies)
    return size


def test_a_line_does_not_grow_with_the_files_that_live() -> None:
    """A job of 10,000 files writes what one of 100 files writes."""
    assert _bytes_of_a_checkpoint(100, 100) < 1.2 * _bytes_of_a_checkpoint(1, 100)


def test_every_file_is_in_full_only_once() -> None:
    """The fact names a new file in full. The effects that follow name its number."""
    job, memory = Job(0, 1), FilesTakenOut()
    bodies = [job.finished([0]), job.run(), job.append(), job.publish()]
    text = b"".join(encode(number, 1, body, memory) for number, body in enumerate(bodies, start=1))
    assert 1 == text.count(job.state[0][0].file.path.encode())


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
    """The message names the line, and what it names."""
    job, memory = Job(2, 1), FilesTakenOut()
    first, second = (encode(number, 1, body, memory) for number, body in ((1, job.append()), (2, job.append())))
    assert good in second
    with pytest.raises(UnreadableTraceError, match=f"line 2: .*{why}"):
        list(read([first, second.replace(good, bad, 1)]))


def test_a_table_may_not_be_read_as_state() -> None:
    """A number stands for a state file only where a line wrote it as one."""
    job, memory = Job(2, 1), FilesTakenOut()
    table = job.publish()
    first, second = encode(1, 1, table, memory), encode(2, 1, job.run(), memory)
    forged = second[: second.index(b'"files":')] + b'"files":[[[0,2]],[]],' + second[second.index(b'"body":') :]
    with pytest.raises(UnreadableTraceError, match=r"line 2: .*where KeyedFile belongs"):
        list(read([first, forged]))


def test_a_message_without_files_is_as_it_was() -> None:
    """Nothing is added to a line without lists of files."""
    assert b'{"format":10,"number":1,"at_ms":2,"is":"TimeAdvanced","body":{"now_ms":3}}\n' == encode(
        1, 2, TimeAdvanced(3)
    )
