"""Every fact and effect goes through the trace unchanged."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.config import CheckpointConfig
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.identifiers import CheckpointId, Generation, JobName, SplitId, VertexId
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import Effect, Fact, NotifyAborted, RowAppended, TimeAdvanced
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Holder
from jobs.runtime.trace import (
    TRACES_KEPT,
    TickBroken,
    TickStarted,
    TraceWriter,
    UnreadableTraceError,
    decode,
    drop_old_traces,
    encode,
    read_trace,
)

MESSAGES = (*get_args(Fact), *get_args(Effect), TickBroken)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_comes_back_as_it_went(kind):
    """Encoded and decoded, every fact and every effect is itself again, whatever it holds."""

    @given(st.integers(min_value=0), st.from_type(kind))
    def comes_back(at_ms, message):
        entry = decode(encode(at_ms, message))
        assert (at_ms, message) == (entry.at_ms, entry.body)
        assert type(message) is type(entry.body)

    comes_back()


def test_the_start_comes_back_as_it_went():
    """The set-up from which the door is built survives, configuration and claim included."""
    source = Vertex(VertexId("numbers"), VertexKind.SOURCE, 1, splits=(SplitId("a"),))
    holder = Holder(host="h", pid=1, started="s")
    claim = Claim(
        generation=Generation(3), holder=holder, first_id=CheckpointId(1), last_id=CheckpointId(9), at_ms=5, nonce="n"
    )
    setup = JobSetup(
        graph=JobGraph((source,), ()),
        config=CheckpointConfig(every_rows=7),
        job=JobName("numbers"),
        claim=claim,
        at_version=4,
        rows_per_epoch={source.id: 5},
        limits=TickLimits(checkpoints=2),
    )
    started = TickStarted(setup, 12)
    assert started == decode(encode(12, started)).body


def test_a_reason_is_written_by_its_name():
    """Rewording a reason's message breaks no old trace."""
    line = encode(1, NotifyAborted(CheckpointId(3), CheckpointFailureReason.QUALITY, "no"))
    assert b'"reason":"QUALITY"' in line


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"format":1,"at_ms":1,"is":"Nothing","body":{}}',
        b'{"format":2,"at_ms":1,"is":"EndTick"}',
        b'{"format":1,"at_ms":1,"is":"TimeAdvanced","body":{"now_ms":"x"}}',
        b'{"format":1,"is":"EndTick","body":{}}',
    ],
)
def test_what_is_no_entry_is_refused(line):
    """Anything but an entry of this format raises, with the text that was met."""
    with pytest.raises(UnreadableTraceError):
        decode(line)


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path):
    """A trace ends with its last whole line; a broken line before the end is named by its number."""
    path = tmp_path / "1.ndjson"
    with TraceWriter(path) as trace:
        trace.write(1, [TimeAdvanced(1), RowAppended("n", 2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert [TimeAdvanced(1)] == [entry.body for entry in read_trace(path)]
    path.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(UnreadableTraceError, match="line 1"):
        list(read_trace(path))


def test_old_traces_go(tmp_path):
    """Of more generations than are kept the oldest traces are deleted, and nothing else."""
    paths = ProtocolPaths(JobName("numbers"))
    for generation in range(1, TRACES_KEPT + 3):
        (tmp_path / f"{generation}.ndjson").touch()
    (tmp_path / "mine.txt").touch()
    drop_old_traces(tmp_path, paths, Generation(TRACES_KEPT + 2))
    assert {"mine.txt", *(f"{g}.ndjson" for g in range(3, TRACES_KEPT + 3))} == {p.name for p in tmp_path.iterdir()}
