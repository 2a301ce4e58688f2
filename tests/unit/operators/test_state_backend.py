"""The incremental state backend against a plain dict, whatever is compacted, cached, deleted or rescaled."""

import tempfile

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.handles import KeyedFileKind, Version
from checkpointing.identifiers import Generation, TableName, VertexId, job_name
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import RangeState
from jobs.state.compaction import CompactionPolicy, live_files
from jobs.state.failures import StateFileError
from jobs.state.key_groups import KeyGroupRange, range_of, subtask_of
from jobs.state.merge import KEY_GROUP, change_of, of_keys
from jobs.state.worker_copy import WorkerCopies

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
MAX_PARALLELISM = 8
KEYS = [None, "a", "b", "c", "d", "e", "f", "g"]
TABLE = TableName("_tidemark/j/state/op")


def key_group(key):
    """Return a key group as good as any for a key."""
    return KEYS.index(key) * 5 % MAX_PARALLELISM


def backend(root, files, own, policy, copies, micro_batch=1):
    """Return the backend of one subtask."""
    return RangeState(
        operator="op",
        table=TABLE,
        keys=("key",),
        schema=SCHEMA,
        range=own,
        files=tuple(files),
        writer=StagedFiles(root, job_name("j"), Generation(1), VertexId("op"), micro_batch),
        version=Version(Generation(1), micro_batch),
        policy=policy,
        copies=copies,
    )


def step(state, changes):
    """Apply {key: value or None} to a backend and return the file it wrote, or None."""
    touched = pl.DataFrame(
        {KEY_GROUP: [key_group(key) for key in changes], "key": list(changes)},
        schema={KEY_GROUP: pl.Int32, "key": pl.String},
    )
    loaded = state.load()
    after = pl.DataFrame(
        [(key, value) for key, value in changes.items() if value is not None],
        schema={"key": pl.String, "value": pl.Int64},
        orient="row",
    )
    delta = change_of(of_keys(loaded, touched, ("key",)), after, touched, ("key",))
    return None if delta.is_empty() else state.write(loaded, delta)


def content(state):
    """Return what a backend holds as a dict; fail if a key is there twice or in a wrong key group."""
    rows = state.load().rows(named=True)
    result = {row["key"]: row["value"] for row in rows}
    assert len(rows) == len(result)
    assert [key_group(row["key"]) for row in rows] == [row[KEY_GROUP] for row in rows]
    return result


CHANGES = st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(-5, 5), min_size=1, max_size=5)
POLICIES = st.builds(CompactionPolicy, ratio=st.sampled_from([0.1, 1.0, 100.0]), deltas_max=st.integers(1, 5))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(CHANGES, max_size=8),
    POLICIES,
    st.sampled_from([0, 1 << 30]),
    st.lists(st.integers(1, 4), min_size=2, max_size=3),
)
def test_state_is_what_a_dict_would_hold(batches, policy, copy_bytes_max, parallelisms):
    """After any micro-batches, at any parallelism, read by a fresh worker or a stale one, state equals a dict."""
    with tempfile.TemporaryDirectory() as root:
        model, files, workers = {}, [], [WorkerCopies(copy_bytes_max), WorkerCopies(copy_bytes_max)]
        for phase, parallelism in enumerate(parallelisms):
            files = restored(files, parallelism)
            for number, changes in enumerate(batches):
                model = {k: v for k, v in {**model, **changes}.items() if v is not None}
                for subtask in range(parallelism):
                    own = {
                        k: v
                        for k, v in changes.items()
                        if subtask_of(key_group(k), parallelism, MAX_PARALLELISM) == subtask
                    }
                    if not own:
                        continue
                    worker = workers[(number + subtask) % 2]
                    ranged = range_of(subtask, parallelism, MAX_PARALLELISM)
                    written = step(backend(root, files[subtask], ranged, policy, worker, 100 * phase + number), own)
                    if written is not None:
                        files[subtask] = live_files([*files[subtask], written])
            for worker in [WorkerCopies(), *workers]:
                parts = [
                    content(backend(root, own, range_of(i, parallelism, MAX_PARALLELISM), policy, worker))
                    for i, own in enumerate(files)
                ]
                assert model == {key: value for part in parts for key, value in part.items()}
                assert len(model) == sum(len(part) for part in parts)


def restored(files, parallelism):
    """Return per subtask the files that overlap its range, in order: what a restore at this parallelism hands out."""
    every = list(dict.fromkeys(file for own in files for file in own))
    ranges = [range_of(i, parallelism, MAX_PARALLELISM) for i in range(parallelism)]
    return [
        [file for file in every if file.first_key_group <= own.last and own.first <= file.last_key_group]
        for own in ranges
    ]


WHOLE = KeyGroupRange(0, MAX_PARALLELISM - 1)


@pytest.fixture
def written(tmp_path):
    """Return (root, the one file of a state with one key)."""
    file = step(backend(str(tmp_path), (), WHOLE, CompactionPolicy(), WorkerCopies()), {"a": 1})
    return tmp_path, file


def test_the_first_file_of_a_range_is_a_base(written):
    """A first delta would say as much as a base and never be compacted away."""
    _, file = written
    assert KeyedFileKind.BASE is file.kind


def test_a_missing_state_file_is_named_with_its_operator_and_the_way_out(written):
    """The error says which file of which operator is missing and what to do."""
    root, file = written
    (root / file.file.path).unlink()
    with pytest.raises(
        StateFileError, match=rf"operator op: file {file.file.path} is missing.*restore from an older checkpoint"
    ):
        backend(str(root), [file], WHOLE, CompactionPolicy(), WorkerCopies()).load()


def test_a_flipped_byte_is_noticed(written):
    """The checksum of the whole file is verified before a row of it counts."""
    root, file = written
    path = root / file.file.path
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StateFileError, match="is damaged"):
        backend(str(root), [file], WHOLE, CompactionPolicy(), WorkerCopies()).load()


def test_a_widened_and_an_added_column_are_read_from_an_old_file(written):
    """D6: a file written with fewer and narrower columns fits the new schema; what it lacks is null."""
    root, file = written
    wider = pa.schema([("key", pa.string()), ("value", pa.float64()), ("more", pa.string())])
    state = backend(str(root), [file], WHOLE, CompactionPolicy(), WorkerCopies())
    evolved = RangeState(**{name: getattr(state, name) for name in state.__slots__} | {"schema": wider})
    assert [{KEY_GROUP: key_group("a"), "key": "a", "value": 1.0, "more": None}] == evolved.load().rows(named=True)


def test_new_state_for_a_key_that_was_not_touched_is_refused():
    """A function may write the state of the keys it was given, and of no other."""
    touched = pl.DataFrame({KEY_GROUP: pl.Series([5], dtype=pl.Int32), "key": ["b"]})
    before = pl.DataFrame(schema={KEY_GROUP: pl.Int32, "key": pl.String, "value": pl.Int64})
    after = pl.DataFrame({"key": ["b", "c"], "value": [1, 2]})
    with pytest.raises(KeyError, match="not touched"):
        change_of(before, after, touched, ("key",))


def test_two_new_rows_for_one_key_are_refused():
    """State is one row per key."""
    touched = pl.DataFrame({KEY_GROUP: pl.Series([5], dtype=pl.Int32), "key": ["b"]})
    before = pl.DataFrame(schema={KEY_GROUP: pl.Int32, "key": pl.String, "value": pl.Int64})
    with pytest.raises(KeyError, match="two rows for one key"):
        change_of(before, pl.DataFrame({"key": ["b", "b"], "value": [1, 2]}), touched, ("key",))
