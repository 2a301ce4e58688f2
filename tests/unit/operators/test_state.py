"""Compares state backends with a dict: compaction, copies, deletion, rescaling and changed columns."""

import tempfile
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkpointing.event_time import END_OF_TIME
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, JobName, TableName, VertexId, job_name
from checkpointing.job.operator_run import LiveFiles
from checkpointing.key_groups import KeyGroupRange, key_group_ranges
from checkpointing.messages import SubtaskOutput
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import (
    NOTHING_WRITTEN,
    CompactionPolicy,
    FullBackend,
    IncrementalBackend,
    MemoryBackend,
    RangeState,
    deltas_to_merge,
    is_base_due,
    keys_of,
    live_files,
)
from jobs.state.files import StateFileError, StateTooLargeError, schema_of
from jobs.state.keyed_rows import KeyedRows, RowLayer, noting_order
from jobs.state.mapped_files import PAUSE_S, MappedFiles
from jobs.state.merge import DELETED, KEY_GROUP, change_of, without_unchanged
from jobs.state.upsert_range import FILE_ROWS_MAX, UpsertRange
from jobs.state.worker_copy import CopyUses, WorkerCopies
from spec.machines.judging import expect

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
MAX_PARALLELISM = 8
KEYS = [None, "a", "b", "c", "d", "e", "f", "g"]
TABLE = TableName("_tidemark/j/state/op")
UNMAPPED = MappedFiles(None)


def key_group(key):
    return KEYS.index(key) * 5 % MAX_PARALLELISM


def backend(root, files, own, policy, copies, micro_batch=1, mapped=UNMAPPED):
    return RangeState(
        operator="op",
        table=TABLE,
        keys=("key",),
        schema=SCHEMA,
        range=own,
        files=tuple(files),
        writer=StagedFiles(root, job_name("j"), Generation(1), VertexId("op"), micro_batch),
        version=Version(Generation(1), micro_batch),
        backend=IncrementalBackend(policy),
        copies=copies,
        mapped=mapped,
    )


def step(state, changes):
    """Apply {key: value or None} to a backend. Return what it wrote."""
    touched = pl.DataFrame(
        {KEY_GROUP: [key_group(key) for key in changes], "key": list(changes)},
        schema={KEY_GROUP: pl.Int32, "key": pl.String},
    )
    found = state.load().find(touched, ("key",))
    after = pl.DataFrame(
        [(key, value) for key, value in changes.items() if value is not None],
        schema={"key": pl.String, "value": pl.Int64},
        orient="row",
    )
    delta = change_of(found.rows, after, touched, ("key",))
    return NOTHING_WRITTEN if delta.is_empty() else state.write(found, delta)


def taken(files, written):
    """Return the live files after a write, as the door keeps them."""
    live = LiveFiles(tuple(files))
    live.take(SubtaskOutput(state=written.files, ended=written.ended))
    return live.state


def content(state):
    """Return the content of a backend as a dict. Fail if a key occurs twice or is in a wrong key group."""
    rows = state.load().frame().rows(named=True)
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
    st.booleans(),
    st.sampled_from([1, 1 << 26]),
)
def test_state_equals_a_dict(batches, policy, copy_bytes_max, parallelisms, maps, piece_bytes):
    """This holds after any micro-batches, at any parallelism, read by a worker with a new, old or no copy."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.state.backend._PIECE_BYTES", piece_bytes)
        mapped = MappedFiles(Path(root) / "mapped" if maps else None, bytes_min=1)
        model, files, workers = {}, [], [WorkerCopies(copy_bytes_max), WorkerCopies(copy_bytes_max)]
        for phase, parallelism in enumerate(parallelisms):
            files = restored(files, parallelism)
            for number, changes in enumerate(batches):
                model = {k: v for k, v in {**model, **changes}.items() if v is not None}
                for subtask in range(parallelism):
                    own = {k: v for k, v in changes.items() if owner(k, parallelism) == subtask}
                    if not own:
                        continue
                    worker = workers[(number + subtask) % 2]
                    ranged = ranges(parallelism)[subtask]
                    written = step(
                        backend(root, files[subtask], ranged, policy, worker, 100 * phase + number, mapped), own
                    )
                    files[subtask] = taken(files[subtask], written)
            for worker in [WorkerCopies(), *workers]:
                parts = [
                    content(backend(root, own, ranged, policy, worker, mapped=mapped))
                    for own, ranged in zip(files, ranges(parallelism), strict=True)
                ]
                assert model == {key: value for part in parts for key, value in part.items()}
                assert len(model) == sum(len(part) for part in parts)


def restored(files, parallelism):
    every = list(dict.fromkeys(file for own in files for file in own))
    return [[file for file in every if own.intersection(file.key_groups)] for own in ranges(parallelism)]


def ranges(parallelism):
    return key_group_ranges(parallelism=parallelism, max_parallelism=MAX_PARALLELISM)


def owner(key, parallelism):
    return key_group(key) * parallelism // MAX_PARALLELISM


WHOLE = KeyGroupRange(first=0, last=MAX_PARALLELISM - 1)


@pytest.fixture
def written(tmp_path):
    (file,) = step(backend(str(tmp_path), (), WHOLE, CompactionPolicy(), WorkerCopies()), {"a": 1}).files
    return tmp_path, file


def test_the_first_file_of_a_range_is_a_base(written):
    """A delta as the first file would have the same content, but compaction would never replace it."""
    _, file = written
    assert KeyedFileKind.BASE is file.kind


TIMES = st.lists(st.tuples(st.none() | st.integers(0, 5), st.booleans()), max_size=8)


@given(TIMES, st.sampled_from(["as they are", "nulls first", "nulls last"]), st.booleans())
def test_rows_up_to_a_time_are_the_same_in_any_order(rows, order, all_count):
    frame = pl.DataFrame(rows, schema={"due": pl.Int64, "counts": pl.Boolean}, orient="row")
    if order != "as they are":
        frame = frame.sort("due", nulls_last=order == "nulls last")
    layer = RowLayer(noting_order(frame, "due"), None if all_count else frame["counts"])
    live = [due for due, counts in frame.rows() if due is not None and (all_count or counts)]
    assert layer.least("due") == min(live, default=None)
    for ms in range(-1, 6):
        found = layer.rows.filter(layer.up_to("due", ms))["due"].to_list()
        assert sorted(found) == sorted(due for due in live if due <= ms)


PAIRS = st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["a", "b"]), st.floats(0, 1))


@given(st.lists(PAIRS, max_size=9), st.lists(PAIRS, max_size=4), st.sampled_from([("i", "t"), ("t", "i"), ("i", "f")]))
def test_rows_are_found_by_all_columns_of_their_key(rows, wanted, keys):
    schema = {"i": pl.Int64, "t": pl.String, "f": pl.Float64}
    frame, touched = (pl.DataFrame(each, schema=schema, orient="row") for each in (rows, wanted))
    found = KeyedRows.of(frame).find(touched, keys).rows
    expected = set(touched.select(keys).rows())
    assert found.rows() == [row for row in frame.rows() if tuple(row["itf".index(key)] for key in keys) in expected]


def test_a_state_of_which_little_changes_is_laid_out_by_the_time_at_which_it_is_due(tmp_path):
    def range_state(files, micro_batch):
        made = backend(str(tmp_path), files, ranges(1)[0], CompactionPolicy(ratio=0.01), copies, micro_batch)
        return replace(made, schema=DUE_SCHEMA, due="due")

    def write(files, micro_batch, rows):
        state, loaded = range_state(files, micro_batch), range_state(files, micro_batch).load()
        delta = pl.DataFrame(rows, schema={"key": pl.String, "due": pl.Int64}, orient="row").select(
            pl.lit(0, pl.Int32).alias(KEY_GROUP), "key", "due", pl.lit(value=False).alias(DELETED)
        )
        return taken(files, state.write(loaded.find(delta, ("key",)), delta))

    copies = WorkerCopies()
    files = write((), 1, [(str(number), 97 - number) for number in range(90)])
    for micro_batch in (2, 3):
        files = write(files, micro_batch, [(f"{micro_batch}", 40), (f"{micro_batch + 9}", None)])
    (file,) = files
    written = pl.read_parquet(tmp_path / file.file.path)
    assert written["due"].is_sorted()
    copies = WorkerCopies()
    (layer,) = range_state(files, 4).load().layers
    assert layer.rows["due"].flags["SORTED_ASC"]
    assert layer.least("due") == 8


def test_a_missing_state_file_is_named_with_its_operator_and_the_way_out(written):
    root, file = written
    (root / file.file.path).unlink()
    with pytest.raises(
        StateFileError, match=rf"operator op: file {file.file.path} is missing.*restore from an older checkpoint"
    ):
        backend(str(root), [file], WHOLE, CompactionPolicy(), WorkerCopies()).load()


def test_a_flipped_byte_is_noticed(written):
    """The checksum of the whole file is checked before any row is used."""
    root, file = written
    path = root / file.file.path
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StateFileError, match="is damaged"):
        backend(str(root), [file], WHOLE, CompactionPolicy(), WorkerCopies()).load()


def test_an_old_file_is_read_with_a_widened_and_an_added_column(written):
    """D6: a file with fewer and narrower columns fits the new schema. Missing columns are null."""
    root, file = written
    wider = pa.schema([("key", pa.string()), ("value", pa.float64()), ("more", pa.string())])
    state = backend(str(root), [file], WHOLE, CompactionPolicy(), WorkerCopies())
    evolved = RangeState(**{name: getattr(state, name) for name in state.__slots__} | {"schema": wider})
    assert [{KEY_GROUP: key_group("a"), "key": "a", "value": 1.0, "more": None}] == evolved.load().frame().rows(
        named=True
    )


def test_new_state_for_a_key_that_was_not_touched_is_refused():
    """A function may write the state only of the keys that it was given."""
    touched = pl.DataFrame({KEY_GROUP: pl.Series([5], dtype=pl.Int32), "key": ["b"]})
    before = pl.DataFrame(schema={KEY_GROUP: pl.Int32, "key": pl.String, "value": pl.Int64})
    after = pl.DataFrame({"key": ["b", "c"], "value": [1, 2]})
    with pytest.raises(KeyError, match="not touched"):
        change_of(before, after, touched, ("key",))


def test_two_new_rows_for_one_key_are_refused():
    touched = pl.DataFrame({KEY_GROUP: pl.Series([5], dtype=pl.Int32), "key": ["b"]})
    before = pl.DataFrame(schema={KEY_GROUP: pl.Int32, "key": pl.String, "value": pl.Int64})
    with pytest.raises(KeyError, match="two rows for one key"):
        change_of(before, pl.DataFrame({"key": ["b", "b"], "value": [1, 2]}), touched, ("key",))


def counted(state, copies):
    copies.take_uses()
    return content(state), copies.take_uses()


def test_a_hit_an_outdated_copy_and_a_miss_give_the_same_rows(tmp_path):
    """D5: three workers load the same rows. One wrote last, one missed two files, and one had no file of the range."""
    root, policy = str(tmp_path), CompactionPolicy(ratio=100.0, deltas_max=9)
    recent, behind, fresh, files = WorkerCopies(), WorkerCopies(), WorkerCopies(), []
    for number, changes in enumerate([{"a": 1, "b": 2}, {"a": 3, "c": 4}, {"b": None, "d": 5}]):
        for copies in [recent, behind][: 2 if number == 0 else 1]:
            backend(root, files, WHOLE, policy, copies, number).load()
        files = taken(files, step(backend(root, files, WHOLE, policy, recent, number), changes))
        if number == 0:
            backend(root, files, WHOLE, policy, behind).load()
    expected = {"a": 3, "c": 4, "d": 5}
    found = [counted(backend(root, files, WHOLE, policy, copies), copies) for copies in (recent, behind, fresh)]
    assert [(expected, CopyUses(hits=1)), (expected, CopyUses(behind=1)), (expected, CopyUses(misses=1))] == found
    assert [CopyUses(hits=1)] * 3 == [
        counted(backend(root, files, WHOLE, policy, copies), copies)[1] for copies in (recent, behind, fresh)
    ]


def test_a_range_without_files_counts_as_neither_hit_nor_miss(tmp_path):
    """There are no files to look for."""
    copies = WorkerCopies()
    assert ({}, CopyUses()) == counted(backend(str(tmp_path), [], WHOLE, CompactionPolicy(), copies), copies)


BACKENDS = [IncrementalBackend(CompactionPolicy(ratio=100.0)), FullBackend(), MemoryBackend(100_000)]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(CHANGES, st.sampled_from(BACKENDS)), max_size=8))
def test_every_backend_reads_the_files_of_the_others(batches):
    """D2: the backend changes between micro-batches, and the state still equals a dict."""
    with tempfile.TemporaryDirectory() as root:
        model, files = {}, []
        for number, (changes, used) in enumerate(batches):
            model = {k: v for k, v in {**model, **changes}.items() if v is not None}
            state = backend(root, files, WHOLE, CompactionPolicy(), WorkerCopies(), number)
            written = step(replace(state, backend=used), changes)
            files = taken(files, written)
            assert model == content(backend(root, files, WHOLE, CompactionPolicy(), WorkerCopies()))


@pytest.mark.parametrize("used", [FullBackend(), MemoryBackend(100_000)])
def test_full_and_memory_need_one_file_of_a_range(tmp_path, used):
    """Each backend writes the whole range, but only `full` writes it to disk."""
    root, files = str(tmp_path), []
    for number, changes in enumerate([{"a": 1}, {"b": 2}, {"a": None}]):
        state = replace(backend(root, files, WHOLE, CompactionPolicy(), WorkerCopies(), number), backend=used)
        files = taken(files, step(state, changes))
        assert [KeyedFileKind.BASE] == [file.kind for file in files]
    on_disk = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")]
    assert (files[0].file.path in on_disk) is isinstance(used, FullBackend)
    assert bool(files[0].file.inline) is isinstance(used, MemoryBackend)


def test_a_damaged_inline_state_is_noticed(tmp_path):
    """The checksum of state inside an entry is checked like a file's checksum."""
    state = replace(
        backend(str(tmp_path), [], WHOLE, CompactionPolicy(), WorkerCopies()), backend=MemoryBackend(100_000)
    )
    (file,) = step(state, {"a": 1}).files
    damaged = replace(file, file=replace(file.file, inline="A" * len(file.file.inline)))
    with pytest.raises(StateFileError, match="is damaged"):
        backend(str(tmp_path), [damaged], WHOLE, CompactionPolicy(), WorkerCopies()).load()


def test_a_state_above_the_limit_is_declined_by_name(tmp_path):
    """The memory backend is for small states. The message has the operator, the limit and the way out."""
    state = replace(backend(str(tmp_path), [], WHOLE, CompactionPolicy(), WorkerCopies()), backend=MemoryBackend(100))
    with pytest.raises(StateTooLargeError, match=r"operator op.*allows 100.*set state_backend to incremental"):
        step(state, {"a": 1})


NARROW = pa.struct([("x", pa.int32()), ("gone", pa.string())])
WIDE = pa.struct([("x", pa.int64()), ("new", pa.string())])


def test_columns_inside_lists_and_structs_change_too(tmp_path):
    """D6: nested rows wait in a state. Their columns come, go and widen like other columns."""
    old = pa.schema([("key", pa.string()), ("waiting", pa.list_(NARROW)), ("right", NARROW)])
    row = {"x": 1, "gone": "y"}
    rows = pl.from_arrow(
        pa.Table.from_pylist(
            [{"key": "a", "waiting": [row], "right": None}, {"key": "b", "waiting": None, "right": row}], schema=old
        )
    ).select(pl.Series(KEY_GROUP, [0, 1], pl.Int32), pl.all())
    state = replace(backend(str(tmp_path), [], WHOLE, CompactionPolicy(), WorkerCopies()), schema=old)
    (file,) = state.write(state.load().find(rows, ["key"]), rows.with_columns(_deleted=pl.lit(value=False))).files
    new = pa.schema([("key", pa.string()), ("waiting", pa.list_(WIDE)), ("right", WIDE)])
    evolved = replace(backend(str(tmp_path), [file], WHOLE, CompactionPolicy(), WorkerCopies()), schema=new)
    now = {"x": 1, "new": None}
    expected = [("a", [now], None), ("b", None, now)]
    assert expected == sorted(evolved.load().frame().select("key", "waiting", "right").rows())


def test_an_outdated_range_is_written_as_a_whole(tmp_path):
    """After the first micro-batch, all files of the range have the declared columns, whatever the policy."""
    root, policy = str(tmp_path), CompactionPolicy(ratio=100.0)
    (first,) = step(backend(root, [], WHOLE, policy, WorkerCopies()), {"a": 1, "b": 2}).files
    wider = pa.schema([("key", pa.string()), ("value", pa.float64())])
    state = replace(backend(root, [first], WHOLE, policy, WorkerCopies(), 2), schema=wider, outdated=True)
    loaded = state.load()
    none = loaded.nothing
    (written,) = state.write(loaded.find(none, ["key"]), none.with_columns(_deleted=pl.lit(value=False))).files
    assert KeyedFileKind.BASE is written.kind
    assert wider.types == schema_of(root, written.file).types[1:-1]
    assert ("key",) == keys_of(schema_of(root, written.file))
    after = replace(backend(root, [written], WHOLE, policy, WorkerCopies()), schema=wider)
    assert {"a": 1.0, "b": 2.0} == content(after)


_VALUES = st.one_of(st.none(), st.integers(0, 1))
_STATES = st.dictionaries(
    st.one_of(st.none(), st.sampled_from("abc")), st.tuples(_VALUES, st.lists(_VALUES, max_size=2))
)


def _frame(rows):
    schema = {KEY_GROUP: pl.Int32, "key": pl.String, "value": pl.Int64, "kept": pl.List(pl.Struct({"n": pl.Int64}))}
    return pl.DataFrame(
        [(0, key, value, [{"n": each} for each in kept]) for key, (value, kept) in rows.items()], schema, orient="row"
    )


@given(before=_STATES, after=_STATES)
def test_a_row_that_stays_as_it_is_is_in_no_delta(before, after):
    """Every key was touched. The delta has the new and changed rows, and a tombstone for each key that is gone."""
    was, now = _frame(before), _frame(after)
    touched = pl.concat([was, now]).select(KEY_GROUP, "key").unique()
    delta = without_unchanged(change_of(was, now.drop(KEY_GROUP), touched, ("key",)), was, ("key",))
    assert [*was.columns, DELETED] == delta.columns
    changed = {key for key, row in after.items() if key not in before or before[key] != row}
    gone = before.keys() - after.keys()
    assert sorted(map(str, [*changed, *gone])) == sorted(map(str, delta["key"]))
    assert set(delta.filter(DELETED)["key"]) == gone


# ------------------------------------------------------------------
# State whose rows are due at a time. Rows that have been fired leave the files.


DUE_SCHEMA = pa.schema([("key", pa.string()), ("due", pa.int64())])


def timed_step(state, changes, fires_ms=None, later=None):
    """Write {key: due time, NEVER, or None for a deleted row}. If a time is given, fire all rows that are due by then.

    A fired row is due again at its time in `later`, or is deleted.
    """
    loaded = state.load()
    before = {key: NEVER if due is None else due for key, due in loaded.frame().select("key", "due").rows()}
    then = {**before, **{key: due for key, due in changes.items() if due is not None}}
    new = {**before, **changes}
    fired = {key for key, due in new.items() if fires_ms is not None and due is not None and NEVER != due <= fires_ms}
    new |= {key: (later or {}).get(key) for key in fired}
    rows = [
        (0, key, None if then[key] == NEVER else then[key], True)
        if new[key] is None
        else (0, key, None if new[key] == NEVER else new[key], False)
        for key in (*fired, *(changes.keys() - fired))
        if key in then
    ]
    schema = {KEY_GROUP: pl.Int32, "key": pl.String, "due": pl.Int64, DELETED: pl.Boolean}
    delta = pl.DataFrame(rows, schema=schema, orient="row")
    found = loaded.find(delta, ("key",))
    return NOTHING_WRITTEN if delta.is_empty() else replace(state, fired_ms=fires_ms).write(found, delta)


FIRED = "fired-is-gone"
"""The state has no row that has been fired, even if an older file still has it. It has all other rows."""
NEVER = -1
DUES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([*range(6), 99, NEVER, None]), max_size=2)
EPOCHS = st.lists(
    st.tuples(
        DUES, st.none() | st.integers(0, 3), st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), max_size=1)
    ),
    min_size=4,
    max_size=12,
)
SELDOM_BASES = st.builds(CompactionPolicy, ratio=st.just(100.0), deltas_max=st.integers(2, 9))


HIDES = [({"a": 9, "b": 11}, None, {}), ({"a": 1}, None, {}), ({}, 3, {})]
"""All rows of the second file are fired. They hide a row of the first file that is due later."""
EARLIER = [({"a": 9, "b": 11}, None, {}), ({"a": 1}, 3, {})]
"""The fired row has a later due time in the older file."""


@settings(deadline=None, max_examples=300)
@example(epochs=HIDES, policy=CompactionPolicy(100.0), turns=[0] * 12, maps=False)
@example(epochs=EARLIER, policy=CompactionPolicy(100.0), turns=[0] * 12, maps=True)
@given(
    epochs=EPOCHS,
    policy=SELDOM_BASES | POLICIES,
    turns=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    maps=st.booleans(),
)
def test_no_row_that_has_been_fired_comes_back(epochs, policy, turns, *, maps):
    """Rows are due at any time, also at an earlier one than before. A worker without a copy reads the same rows."""
    with tempfile.TemporaryDirectory() as root:
        model, files, now_ms, workers = {}, (), 0, [WorkerCopies(), WorkerCopies(), WorkerCopies(0)]
        mapped = MappedFiles(Path(root) / "mapped" if maps else None, bytes_min=1)
        for number, ((changes, passes_ms, later), worker) in enumerate(zip(epochs, turns, strict=False)):
            now_ms += passes_ms or 0
            fires_ms = None if passes_ms is None else now_ms
            again = {key: now_ms + ms for key, ms in later.items()}
            state = backend(root, files, WHOLE, policy, workers[worker], number, mapped)
            state = replace(state, schema=DUE_SCHEMA, due="due")
            files = taken(files, timed_step(state, changes, fires_ms, again))
            model = {key: due for key, due in {**model, **changes}.items() if due is not None}
            over = {key for key, due in model.items() if fires_ms is not None and NEVER != due <= fires_ms}
            model = {key: again.get(key) if key in over else due for key, due in model.items()}
            model = {key: due for key, due in model.items() if due is not None}
            for copies in (*workers, WorkerCopies()):
                read = backend(root, files, WHOLE, policy, copies, mapped=mapped)
                read = replace(read, schema=DUE_SCHEMA, due="due").load()
                found = {key: NEVER if due is None else due for _, key, due in read.frame().rows()}
                expect(found == model, FIRED, f"{found}, not {model}")


def timed_state(root, files, number, copies):
    state = backend(root, files, WHOLE, CompactionPolicy(), copies, number)
    return replace(state, schema=DUE_SCHEMA, due="due")


def test_files_whose_rows_have_all_been_fired_leave_whole(tmp_path):
    """The rows of two windows are in one file each.

    When the first window fires, no file is written, and its file leaves.
    """
    root, files = str(tmp_path), ()
    for number, (prefix, due) in enumerate([("a", 10), ("b", 20)]):
        changes = {f"{prefix}{key}": due for key in range(9)}
        files = taken(files, timed_step(timed_state(root, files, number, WorkerCopies()), changes))
    first, second = files
    fired = timed_step(timed_state(root, files, 3, WorkerCopies()), {}, 10)
    assert ((), (first.file.path,)) == (fired.files, fired.ended)
    assert (second,) == taken(files, fired)


def test_only_tombstones_that_hide_a_row_are_written(tmp_path):
    """The second file still has one row of the first window.

    So that row needs a tombstone, and the eight others need none.
    """
    root, copies = str(tmp_path), WorkerCopies()
    files = taken((), timed_step(timed_state(root, (), 1, copies), {f"a{key}": 10 for key in range(9)}))
    files = taken(files, timed_step(timed_state(root, files, 2, copies), {"a0": 10, **{f"b{k}": 20 for k in range(5)}}))
    fired = timed_step(timed_state(root, files, 3, copies), {}, 10)
    (file,) = fired.files
    assert [("a0", True)] == pl.read_parquet(tmp_path / file.file.path).select("key", DELETED).rows()
    assert (files[1], file) == taken(files, fired)
    everything = timed_step(timed_state(root, taken(files, fired), 4, copies), {}, END_OF_TIME)
    assert () == taken(taken(files, fired), everything)


# ------------------------------------------------------------------
# When a base is due, and which files are still live.


BASE, DELTA = KeyedFileKind.BASE, KeyedFileKind.DELTA


def file(kind, rows, number, first=0, last=9):
    return KeyedFile(FileHandle(f"{number}", rows, 1, 0), kind, first, last, Version(Generation(1), number))


@pytest.mark.parametrize(
    ("files", "delta_rows", "live_rows", "due"),
    [
        pytest.param([], 3, 3, True, id="nothing yet"),
        pytest.param([file(BASE, 100, 1)], 99, 100, False, id="small delta"),
        pytest.param([file(BASE, 100, 1)], 100, 100, True, id="half of all rows no longer count"),
        pytest.param([file(BASE, 100, 1)], 100, 200, False, id="new rows replace none"),
        pytest.param([file(BASE, 100, 1), file(DELTA, 60, 2)], 40, 100, True, id="half of all rows of several files"),
        pytest.param([file(BASE, 100, 1), file(DELTA, 60, 2)], 39, 100, False, id="still less than half"),
        pytest.param([file(DELTA, 500, 1), file(BASE, 100, 2)], 1, 100, False, id="what a base ended does not count"),
        pytest.param([file(BASE, 100, 1)], 100, 0, True, id="no row lives"),
        pytest.param([file(BASE, 9, 1), *[file(DELTA, 1, n) for n in range(2, 9)]], 1, 9, False, id="many deltas"),
    ],
)
def test_a_base_is_due_once_half_of_the_rows_in_files_no_longer_count(files, delta_rows, live_rows, due):
    assert due == is_base_due(CompactionPolicy(ratio=1.0, deltas_max=3), files, delta_rows, live_rows)


@pytest.mark.parametrize(
    ("rows", "delta_rows", "merged"),
    [
        pytest.param([], 1, 0, id="no delta"),
        pytest.param([1, 1, 1], 1, 0, id="as many as allowed after it"),
        pytest.param([1, 1, 1, 1], 1, 4, id="too many"),
        pytest.param([9, 1, 1, 1], 1, 3, id="a larger one stays"),
        pytest.param([4, 1, 1, 1], 1, 4, id="one that is as large as the others together does not"),
        pytest.param([90, 50, 9, 9], 1, 2, id="at least half of them, whatever they have"),
    ],
)
def test_too_many_deltas_are_merged_and_the_base_stays(rows, delta_rows, merged):
    files = [file(BASE, 1_000, 1), *(file(DELTA, each, 2 + place) for place, each in enumerate(rows))]
    assert merged == deltas_to_merge(CompactionPolicy(deltas_max=4), files, delta_rows)


def test_deltas_after_each_other_merge_a_row_a_few_times_only(tmp_path):
    """512 keys come in one delta each.

    With a base in place of every fifth delta, three times as many rows would be written.
    """
    root, policy, files, written = str(tmp_path), CompactionPolicy(ratio=100.0, deltas_max=4), (), 0
    copies, bases = WorkerCopies(), sum(range(0, 512, 5))
    for number in range(512):
        state = replace(backend(root, files, WHOLE, policy, copies, number), schema=DUE_SCHEMA, due="due")
        change = timed_step(state, {f"k{number}": 1})
        files, written = taken(files, change), written + sum(each.file.rows for each in change.files)
        assert len(files) <= 5
    assert 3 * written < bases


def test_a_base_replaces_the_files_before_it_only_in_its_range():
    """After a change of parallelism, a list has files of several ranges. A base replaces only files of its range."""
    low = [file(BASE, 1, 1, 0, 4), file(DELTA, 1, 2, 0, 4)]
    high = [file(BASE, 1, 3, 5, 9), file(DELTA, 1, 4, 5, 9)]
    whole = file(BASE, 1, 5, 0, 9)
    assert (*low, *high) == live_files([*low, *high])
    assert (whole,) == live_files([*low, *high, whole])
    assert (whole, low[0]) == live_files([whole, low[0]])
    assert (high[0], low[1]) == live_files([high[0], low[1]])


@pytest.mark.parametrize(("ratio", "deltas_max"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_limits_must_be_positive(ratio, deltas_max):
    """A policy that would never compact, or always, is refused."""
    with pytest.raises(ValueError, match="must be positive"):
        CompactionPolicy(ratio, deltas_max)


# ------------------------------------------------------------------
# A range of an upsert table in files of bounded size. After any changes, the range shows what a dict would hold.


CITIES = pa.schema([("k", pa.int64()), ("city", pa.string()), ("v", pa.int64())])
COLUMNS = {"k": pl.Int64, "city": pl.String, "v": pl.Int64}
GOLD = TableName("gold/t")


def upsert(root, files, copies, *, number=0, by=(), rows_max=4, all_files=False, mapped=UNMAPPED):
    """Return a range over these files."""
    return UpsertRange(
        operator="sums",
        table=GOLD,
        keys=("k",),
        schema=CITIES,
        range=KeyGroupRange(first=0, last=3),
        files=files,
        writer=StagedFiles(str(root), JobName("job"), Generation(1), VertexId("sums"), number),
        version=Version(Generation(1), number),
        partitioned_by=by,
        all_files=all_files,
        file_rows_max=rows_max,
        copies=copies,
        mapped=mapped,
    )


def frame(rows):
    return pl.DataFrame([(k, *rest) for k, rest in rows.items()], schema=COLUMNS, orient="row")


def content_of(rows):
    """Return rows as {k: (city, v)}. Fail if a key occurs twice."""
    content = {k: rest for k, *rest in rows.frame().rows()}
    assert len(content) == rows.frame().height
    return {k: tuple(rest) for k, rest in content.items()}


ROWS = st.dictionaries(st.integers(0, 30), st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 9)), max_size=12)
CITY_CHANGES = st.lists(
    st.tuples(ROWS, st.sets(st.integers(0, 30), max_size=4), st.integers(0, 2), st.booleans()), max_size=8
)


@given(CITY_CHANGES, st.sampled_from([(), ("city",)]), st.booleans())
def test_a_range_shows_what_a_dict_would_hold(changes, by, maps):
    """An up-to-date copy, an older copy and the files alone show the same rows. Each file has rows of one partition.

    Hypothesis picks the worker of each change: one of two, or a new one. So a worker often has an older copy.
    """
    with TemporaryDirectory() as root:
        workers, files, expected = [WorkerCopies(), WorkerCopies()], (), {}
        mapped = MappedFiles(Path(root) / "mapped" if maps else None, bytes_min=1)
        for number, (rows, perhaps_gone, worker, is_all) in enumerate(changes):
            gone = perhaps_gone - set(rows)
            copies = [*workers, WorkerCopies()][worker]
            held = upsert(root, files, copies, number=number, by=by, all_files=is_all, mapped=mapped)
            files = held.write(held.load(), frame(rows), frame(dict.fromkeys(gone, ("a", 0))))
            expected = {k: row for k, row in (expected | rows).items() if k not in gone}
            assert expected == content_of(upsert(root, files, copies, by=by, mapped=mapped).load())
            assert expected == content_of(upsert(root, files, WorkerCopies(), by=by).load())
            assert all(1 <= each.file.rows <= 4 for each in files)
            assert sum(each.file.rows for each in files) == len(expected)
            if by:
                parts = upsert(root, files, WorkerCopies(), by=by).load().layers
                assert all(1 == part.rows["city"].n_unique() for part in parts)


def test_a_worker_with_an_older_copy_reads_only_files_that_it_lacks(tmp_path):
    """The worker does not open files that it has read or written before, even if they are deleted."""
    first, second = WorkerCopies(), WorkerCopies()
    held = upsert(tmp_path, (), first)
    files = held.write(held.load(), frame({k: ("a", k) for k in range(12)}), frame({}))
    other = upsert(tmp_path, files, second, number=1)
    changed = other.write(other.load(), frame({0: ("b", 9)}), frame({}))
    for file in set(files) & set(changed):
        (tmp_path / file.file.path).unlink()
    found = content_of(upsert(tmp_path, changed, first, number=2).load())
    assert {k: ("a", k) for k in range(1, 12)} | {0: ("b", 9)} == found
    with pytest.raises(StateFileError):
        upsert(tmp_path, changed, WorkerCopies(), number=2).load()


def test_a_worker_maps_what_another_one_has_written_or_read(tmp_path):
    """The Parquet file may even be deleted.

    Mapped rows use no worker's memory, and are deleted with the range's files.
    """
    mapped = MappedFiles(tmp_path / "local", bytes_min=1)
    copies = [WorkerCopies() for _ in range(4)]
    made = step(backend(str(tmp_path), (), WHOLE, CompactionPolicy(), copies[0], mapped=UNMAPPED), {"a": 1, "b": 2})
    (first,) = made.files
    read = backend(str(tmp_path), [first], WHOLE, CompactionPolicy(), copies[1], 2, mapped)
    (second,) = step(read, {"b": 3}).files
    files = [first, second]
    for file in files:
        (tmp_path / file.file.path).unlink()
    found = backend(str(tmp_path), files, WHOLE, CompactionPolicy(), copies[2], 3, mapped)
    assert {"a": 1, "b": 3} == content(found)
    assert all(layer.is_mapped for layer in found.load().layers)
    assert found.load().estimated_size() == 0
    with pytest.raises(StateFileError, match="is missing"):
        backend(str(tmp_path), files, WHOLE, CompactionPolicy(), WorkerCopies(), 3, UNMAPPED).load()
    step(replace(found, outdated=True), {"c": 4})
    assert 1 == len(list((tmp_path / "local").rglob("*.arrow")))


def test_a_worker_holds_no_page_of_a_mapped_file_between_tasks(tmp_path):
    """No data is lost: the next task gets the pages from the operating system's cache."""
    mapped = MappedFiles(tmp_path / "local", bytes_min=1)
    rows, is_mapped = mapped.keep("range", "a.parquet", pl.DataFrame({"n": range(500_000)}))
    total = rows["n"].sum()
    assert (True, rows.height * 8) == (is_mapped, min(_resident(tmp_path), rows.height * 8))
    mapped.let_go()
    assert (0, total) == (_resident(tmp_path), rows["n"].sum())


def _resident(folder):
    """Return how many bytes of files below a folder this process has mapped and holds."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            inside = rest.endswith(".arrow") and str(folder) in rest
        elif inside and name == "Rss:":
            found += int(rest.split()[0]) * 1024
    return found


@pytest.mark.parametrize("maps", [True, False])
def test_a_change_holds_no_texts_of_rows_that_are_not_its_own(tmp_path, maps):
    """A part of a frame shares all texts of the frame: here 20,000 texts of one kilobyte, of which 6,000 change."""
    mapped = MappedFiles(tmp_path / "local" if maps else None, bytes_min=1)
    every = [f"{number:01000}" for number in range(20_000)]
    states = pl.DataFrame({KEY_GROUP: 0, "key": every, "value": 1, DELETED: False})
    states = states.cast({KEY_GROUP: pl.Int32, "value": pl.Int64})
    cities = pl.DataFrame({"k": range(20_000), "city": every, "v": range(20_000)})
    state = backend(str(tmp_path), (), WHOLE, CompactionPolicy(), WorkerCopies(), mapped=mapped)
    written = state.write(state.load().find(states.head(0), ("key",)), states[100:6100])
    table = upsert(tmp_path, (), WorkerCopies(), mapped=mapped, rows_max=5_000)
    files = table.write(KeyedRows.of(cities.clear()), cities[100:6100], cities.head(0))
    for held in (replace(state, files=written.files), replace(table, files=files)):
        assert 6_000_000 < _bytes_held(held.load().frame()) < 7_000_000
    assert sum(file.stat().st_size for file in (tmp_path / "local").rglob("*.arrow")) < 14_000_000


def _bytes_held(rows):
    """Return how many bytes a frame keeps in memory, including memory that its columns share."""
    content, sink = rows.to_arrow(compat_level=pl.CompatLevel.newest()), pa.BufferOutputStream()
    with pa.ipc.new_file(sink, content.schema) as writer:
        writer.write_table(content)
    return sink.getvalue().size


def test_a_range_is_copied_in_pieces(tmp_path):
    """No piece is much larger than asked, and none has dead rows. A few small layers make one piece."""
    layers = [RowLayer(pl.DataFrame({"n": range(first, first + 10_000)})) for first in (0, 10_000)]
    few = RowLayer(pl.DataFrame({"n": [-1, -2]}), pl.Series([False, True]))
    held = KeyedRows(layers[0].rows.clear(), (*layers, few, few))
    pieces = list(held.pieces(8_000))
    assert [*range(20_000), -2, -2] == pl.concat(pieces)["n"].to_list()
    assert 20 == len(pieces) - 1
    assert max(piece.estimated_size() for piece in pieces) <= 8_000
    assert [-2, -2] == pieces[-1]["n"].to_list()
    mapped = MappedFiles(tmp_path, bytes_min=1)
    with mapped.keeping("range") as kept:
        for piece in pieces:
            kept.add(piece)
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()], "rows without a name stay"


def test_a_full_disk_only_means_that_nothing_is_mapped(tmp_path):
    (tmp_path / "local").write_text("no folder")
    mapped = MappedFiles(tmp_path / "local", bytes_min=1)
    made = step(backend(str(tmp_path), (), WHOLE, CompactionPolicy(), WorkerCopies(), mapped=mapped), {"a": 1})
    again = backend(str(tmp_path), made.files, WHOLE, CompactionPolicy(), WorkerCopies(), mapped=mapped)
    assert {"a": 1} == content(again)
    assert not any(layer.is_mapped for layer in again.load().layers)


def test_after_an_error_of_the_disk_files_are_mapped_again(tmp_path, caplog):
    """No file is mapped for a minute, and then the worker tries again. The reason is logged once."""
    local, now = tmp_path / "local", [1000.0]
    mapped = MappedFiles(local, bytes_min=1, clock=lambda: now[0])

    def keep(name):
        return mapped.keep("range", name, frame({1: ("a", 1)}))[1]

    for second in (0, 100):
        local.write_text("no folder")
        now[0] = 1000.0 + second
        assert not keep("first")
        local.unlink()
        now[0] += PAUSE_S - 1
        assert not keep("second")
        assert not local.exists()
    now[0] += 1
    assert keep("third")
    (said,) = caplog.messages
    assert f"they cannot be written into {local} (" in said


def test_files_whose_rows_do_not_change_stay(tmp_path):
    """Changed rows move to the end. So rows that soon change again lie together."""
    first = upsert(tmp_path, (), WorkerCopies()).write(
        KeyedRows.of(frame({})), frame({k: ("a", k) for k in range(16)}), frame({})
    )
    assert [4, 4, 4, 4] == [each.file.rows for each in first]
    held = upsert(tmp_path, first, WorkerCopies(), number=1)
    second = held.write(held.load(), frame({1: ("a", 0), 9: ("a", 0)}), frame({}))
    assert {first[1], first[3]} == set(first) & set(second)
    assert [4, 4, 4, 4] == [each.file.rows for each in second]
    last = upsert(tmp_path, second, WorkerCopies()).load().layers[-1]
    assert [1, 9] == last.rows["k"].to_list()[-2:]
    again = upsert(tmp_path, second, WorkerCopies(), number=2)
    third = again.write(again.load(), frame({1: ("a", 1), 9: ("a", 1)}), frame({}))
    assert 3 == len(set(second) & set(third))


def test_small_files_do_not_become_many(tmp_path):
    """New keys are added to the small file. A partition that gets no row keeps its file."""
    files, copies = (), WorkerCopies()
    for number in range(20):
        held = upsert(tmp_path, files, copies, number=number, by=("city",), rows_max=10)
        rows = {-1: ("b", 0)} if number == 0 else {number: ("a", 0)}
        before, files = files, held.write(held.load(), frame(rows), frame({}))
        assert number == 0 or before[0] in files
    assert 1 + 4 == len(files)  # files of five rows, half of the largest number, and one file of the other partition
    assert 20 == sum(each.file.rows for each in files)


@pytest.mark.parametrize(("gone", "left"), [(4, 3), (0, 0)])
def test_a_file_without_rows_goes(tmp_path, gone, left):
    """The keys 0 to 3 are in one file. A range without rows has no file."""
    held = upsert(tmp_path, (), WorkerCopies())
    first = held.write(KeyedRows.of(frame({})), frame({k: ("a", k) for k in range(16)}), frame({}))
    held = upsert(tmp_path, first, WorkerCopies(), number=1)
    keys = range(gone) if gone else range(16)
    assert left == len(held.write(held.load(), frame({}), frame(dict.fromkeys(keys, ("a", 0)))))


def test_a_file_of_the_default_size_is_not_cut(tmp_path):
    """A small table has one file for each range."""
    held = upsert(tmp_path, (), WorkerCopies(), rows_max=FILE_ROWS_MAX)
    assert 1 == len(held.write(KeyedRows.of(frame({})), frame({k: ("a", k) for k in range(5000)}), frame({})))


def test_the_last_row_of_a_key_wins(tmp_path):
    """An output may have two rows with the same key."""
    held = upsert(tmp_path, (), WorkerCopies())
    twice = pl.concat([frame({1: ("a", 1), 2: ("a", 1)}), frame({1: ("a", 2)})])
    written = held.write(KeyedRows.of(frame({})), twice, frame({}))
    assert {1: ("a", 2), 2: ("a", 1)} == content_of(upsert(tmp_path, written, WorkerCopies()).load())
