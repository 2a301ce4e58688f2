"""Every fact and effect survives the trace, and a missing line is found."""

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
from checkpointing.metadata.record import Claim, Holder, ManifestReference
from checkpointing.trace import FORMAT, TickBroken, TickStarted, UnreadableTraceError, decode, encode, read
from tests.unit.stores.valid_rows import holders, references

st.register_type_strategy(Holder, holders)
st.register_type_strategy(ManifestReference, references)
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


def test_the_start_survives_encoding_and_decoding():
    """The door is built from this set-up, with its configuration and claim."""
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
    assert started == decode(encode(1, 12, started)).body


def test_a_reason_is_written_by_its_name():
    """A reworded message of a reason breaks no old trace."""
    line = encode(1, 1, NotifyAborted(CheckpointId(3), CheckpointFailureReason.QUALITY, "no"))
    assert b'"reason":"QUALITY"' in line


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"format":9,"number":1,"at_ms":1,"is":"Nothing","body":{}}',
        b'{"format":"9","number":1,"at_ms":1,"is":"TimeAdvanced","body":{"now_ms":1}}',
        b'{"format":9,"number":1,"at_ms":1,"is":"EndTick"}',
        b'{"format":9,"number":1,"at_ms":1,"is":"TimeAdvanced","body":{"now_ms":"x"}}',
        b'{"format":9,"number":1,"is":"EndTick","body":{}}',
        b'{"format":9,"at_ms":1,"is":"TimeAdvanced","body":{"now_ms":1}}',
    ],
)
def test_a_line_that_is_no_entry_is_refused(line):
    """The error has the text of the line."""
    with pytest.raises(UnreadableTraceError):
        decode(line)


@pytest.mark.parametrize(("number", "whose"), [(FORMAT - 1, "an older"), (FORMAT + 1, "a newer")])
def test_a_trace_of_another_format_is_refused_by_name(number, whose):
    """Its entries are those of another core. The message names the other format and the way out."""
    line = b'{"format":%d,"number":1,"at_ms":1,"is":"TimeAdvanced","body":{"now_ms":1}}\n' % number
    with pytest.raises(UnreadableTraceError, match=f"line 1: written in format {number} by {whose} Tidemark.*install"):
        list(read([line]))


def lines(*bodies):
    return [encode(number, number * 10, body) for number, body in enumerate(bodies, start=1)]


def test_a_line_that_a_crash_cut_off_is_left_out():
    """A trace ends with its last whole line. A broken line before the end is named by its number."""
    first, second = lines(TimeAdvanced(1), RowAppended("n", 2))
    assert [TimeAdvanced(1)] == [entry.body for entry in read([first, second[:-5]])]
    with pytest.raises(UnreadableTraceError, match="line 1"):
        list(read([b"nonsense\n", first]))


@pytest.mark.parametrize(("kept", "place"), [((0, 2), "line 2"), ((1, 2), "line 1"), ((0, 2, 1), "line 2")])
def test_a_missing_or_swapped_line_is_named(kept, place):
    """Lines are numbered, so none can be dropped or swapped unnoticed."""
    written = lines(TimeAdvanced(1), TimeAdvanced(2), TimeAdvanced(3))
    with pytest.raises(UnreadableTraceError, match=place):
        list(read([written[index] for index in kept]))


def test_time_never_goes_back():
    """A line with an earlier time than the line above it is named."""
    with pytest.raises(UnreadableTraceError, match="line 2 is of 10 ms"):
        list(read([encode(1, 20, TimeAdvanced(1)), encode(2, 10, TimeAdvanced(2))]))
