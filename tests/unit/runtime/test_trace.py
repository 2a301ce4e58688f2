"""The traces of the newest generations stay, numbered line by line."""

from checkpointing.identifiers import Generation
from checkpointing.messages import CutRecorded, RowAppended, TimeAdvanced
from checkpointing.trace import read
from jobs.storage.place import local
from jobs.tick import trace_files as traces
from jobs.tick.trace_files import (
    TRACES_KEPT,
    TraceBounds,
    TraceWriter,
    drop_old_traces,
    open_trace,
)
from spec.traces import lines_of


def test_lines_are_numbered_over_all_writes(tmp_path):
    """What was written, in whatever portions, reads back in order."""
    path = tmp_path / "traces" / "1.ndjson"
    with TraceWriter(path) as trace:
        trace.write(1, [TimeAdvanced(1), RowAppended("n", 2)])
        trace.write(2, [TimeAdvanced(2)])
    with path.open("rb") as lines:
        assert [(1, TimeAdvanced(1)), (2, RowAppended("n", 2)), (3, TimeAdvanced(2))] == [
            (entry.number, entry.body) for entry in read(lines)
        ]


def test_old_traces_go(tmp_path):
    """Of more generations than are kept the oldest traces are deleted, and nothing else."""
    for generation in range(1, TRACES_KEPT + 3):
        (tmp_path / f"{generation}.ndjson").touch()
    (tmp_path / "mine.txt").touch()
    drop_old_traces(local(tmp_path), Generation(TRACES_KEPT + 2))
    assert {"mine.txt", *(f"{g}.ndjson" for g in range(3, TRACES_KEPT + 3))} == {p.name for p in tmp_path.iterdir()}


def test_a_trace_is_full_by_its_bytes_or_its_checkpoints(tmp_path):
    """Either bound is enough."""
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
    """The newest stay as far as they fit; one that does not fit goes, and all before it."""
    monkeypatch.setattr(traces, "TRACES_BYTES_MAX", 100)
    for generation, size in ((1, 1), (2, 60), (3, 30), (4, 60)):
        (tmp_path / f"{generation}.ndjson").write_bytes(b"x" * size)
    drop_old_traces(local(tmp_path), Generation(5))
    assert {"3.ndjson", "4.ndjson"} == {path.name for path in tmp_path.iterdir()}


def test_a_large_trace_is_compressed_when_its_attempt_ends(tmp_path):
    """It takes a fraction, has the same name, and each reader reads the same lines. A small one stays as it is."""
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
