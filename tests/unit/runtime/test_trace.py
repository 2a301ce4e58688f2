"""The traces of the newest generations stay, numbered line by line."""

from checkpointing.identifiers import Generation, JobName
from checkpointing.messages import RowAppended, TimeAdvanced
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.trace import read
from jobs.runtime.trace import TRACES_KEPT, TraceWriter, drop_old_traces


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
    paths = ProtocolPaths(JobName("numbers"))
    for generation in range(1, TRACES_KEPT + 3):
        (tmp_path / f"{generation}.ndjson").touch()
    (tmp_path / "mine.txt").touch()
    drop_old_traces(tmp_path, paths, Generation(TRACES_KEPT + 2))
    assert {"mine.txt", *(f"{g}.ndjson" for g in range(3, TRACES_KEPT + 3))} == {p.name for p in tmp_path.iterdir()}
