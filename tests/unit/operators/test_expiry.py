"""Tests that expired rows are not returned, and that their files leave the state (N5).

The tests run Flink's cases, and compare state with a dict.
"""

import json
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkpointing.channel_items import Barrier
from checkpointing.event_time import Expiry
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId, job_name
from checkpointing.job.operator_run import LiveFiles
from checkpointing.key_groups import KeyGroupRange
from checkpointing.messages import RunMicroBatch, SubtaskOutput
from jobs.operators.keyed_job import _outdated
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import CompactionPolicy, Expires, IncrementalBackend, RangeState
from jobs.state.merge import KEY_GROUP, change_of
from jobs.state.worker_copy import Aged, WorkerCopies
from spec.machines.judging import expect
from tests.unit.operators.test_end_of_input import Bench

CASES = json.loads((Path(__file__).parents[2] / "vectors/time/ttl.json").read_text())["cases"]
ENTRY = pa.schema([("key", pa.string()), ("of", pa.string()), ("entry", pa.string()), ("value", pa.string())])
KEYS = ("key", "of", "entry")
MAX = 2**63 - 1


@dataclass
class Store:
    """The state of one subtask in the files of its cuts. `barrier` passes a barrier, as the core does."""

    root: str
    expiry: Expiry | None
    policy: CompactionPolicy = field(default_factory=CompactionPolicy)
    live: LiveFiles = field(default_factory=LiveFiles)
    now_ms: int | None = None
    lapsed: Aged | None = None
    copies: list = field(default_factory=lambda: [WorkerCopies(), WorkerCopies()])
    writes: int = 0

    def barrier(self, ms):
        self.now_ms = self.expiry.time_at(Barrier(CheckpointId(1), created_ms=ms), self.now_ms)
        self.live.age(self.expiry, self.now_ms)

    def range(self, worker=0, outdated=False):
        aged = None if self.expiry is None else Aged(self.expiry, self.now_ms)
        touched = [] if aged is None else [pa.field(aged.column, pa.int64())]
        return RangeState(
            operator="op",
            table=TableName("_tidemark/j/state/op"),
            keys=KEYS,
            schema=pa.schema([*ENTRY, *touched]),
            range=KeyGroupRange(first=0, last=7),
            files=self.live.state,
            writer=StagedFiles(self.root, job_name("j"), Generation(1), VertexId("op"), self.writes),
            version=Version(Generation(1), self.writes),
            backend=IncrementalBackend(self.policy),
            outdated=outdated,
            aged=aged,
            lapsed=self.lapsed,
            copies=self.copies[worker],
        )

    def rows(self, worker=0):
        return {row[1:4]: row[4] for row in self.range(worker).load().frame().rows()}

    def write(self, changes, worker=0, outdated=False):
        """Write {(key, of, entry): value or None} in a micro-batch."""
        self.writes += 1
        state = self.range(worker, outdated)
        touched = pl.DataFrame(
            [(0, *key) for key in changes], schema={KEY_GROUP: pl.Int32, **dict.fromkeys(KEYS, pl.String)}, orient="row"
        )
        after = pl.DataFrame(
            [(*key, value) for key, value in changes.items() if value is not None],
            schema=dict.fromkeys(ENTRY.names, pl.String),
            orient="row",
        )
        found = state.load().find(touched, KEYS)
        delta = change_of(found.rows, after, touched, KEYS)
        if outdated or not delta.is_empty():
            written = state.write(found, delta)
            self.live.take(SubtaskOutput(state=written.files, ended=written.ended))

    def stored(self):
        """Return the keys of all rows in the files, however old the rows are."""
        everything = replace(self, expiry=self.expiry and Expiry(MAX), copies=[WorkerCopies()])
        return set(everything.rows())


# ------------------------------------------------------------------
# Flink's cases. Each element of a list and each entry of a map is a row with its own key. Each event is an epoch.


class Flink:
    def __init__(self, root, given):
        ttl_ms = MAX if given["ttl_ms"] == "MAX" else given["ttl_ms"]
        self.store, self.kind, self.update = Store(root, Expiry(ttl_ms, by_clock=True)), given["state"], given["update"]
        self.clock, self.key, self.of, self.elements, self.snapshots, self.said = 0, "defaultKey", "", 0, {}, {}
        self.store.barrier(0)

    def run(self, event):
        getattr(self, f"on_{event[0]}")(*event[1:])
        self.store.barrier(self.clock)

    def own(self, of=None):
        """Return the present key's rows in state, as a dict from entries to values. A read may renew the rows."""
        here = self.key, self.of if of is None else of
        found = {key: value for key, value in self.store.rows().items() if key[:2] == here}
        return {key[2]: json.loads(value) for key, value in sorted(found.items(), key=lambda row: row[0])}

    def read(self, entries):
        if self.update == "on_read_and_write" and entries:
            self.put(entries)
        return entries

    def put(self, entries, of=None):
        where = self.of if of is None else of
        values = {entry: None if value is None else json.dumps(value[0]) for entry, value in entries.items()}
        self.store.write({(self.key, where, entry): value for entry, value in values.items()})

    def on_time(self, ms):
        self.clock = ms

    def on_key(self, key):
        self.key = key

    def on_namespace(self, name):
        self.of = name

    def on_update(self, value):
        self.put({"": None if value is None else [value]})

    def on_add(self, number):
        self.put({"": [self.total() + number]})

    def total(self, of=None):
        return self.own(of).get("", 0 if self.kind == "reducing" else 3)

    def on_add_all(self, values, of=None):
        for value in values:
            self.elements += 1
            self.put({f"{self.elements:06}": [value]}, of)

    def on_put_all(self, entries):
        self.put({json.dumps(entry): [value] for entry, value in entries})

    def on_put(self, entry, value):
        self.on_put_all([[entry, value]])

    def on_get(self):
        found = self.own()
        self.read({entry: [value] for entry, value in found.items()})
        many = list(found.values())
        one = many[0] if many else None
        self.said["value"] = many if self.kind == "list" else str(one) if many and self.kind == "aggregating" else one

    def on_entries(self):
        self.on_get()
        self.said["value"] = sorted(([json.loads(entry), value] for entry, value in self.own().items()), key=str)

    def on_get_entry(self, entry):
        found = {each: value for each, value in self.own().items() if each == json.dumps(entry)}
        self.read({each: [value] for each, value in found.items()})
        self.said["value"], self.said["contains"] = next(iter(found.values()), None), bool(found)

    on_contains = on_get_entry

    def on_merge(self, target, names):
        if self.kind == "list":
            return self.on_add_all([value for name in names for value in self.own(name).values()], target)
        there = [self.total(name) for name in [target, *names] if self.own(name)]
        return self.put({"": [sum(there)]}, target) if there else None

    def on_snapshot(self, name):
        self.snapshots[name] = self.store.live.state, self.store.now_ms

    def on_restore(self, name, groups=None):
        state, self.store.now_ms = self.snapshots[name]
        self.store.live, self.key, self.of = LiveFiles(state), "defaultKey", ""

    def on_snapshot_restore(self, groups=None):
        self.on_snapshot("")
        self.on_restore("")

    def on_restore_without_ttl(self, name):
        self.on_restore(name)
        without = replace(self.store, expiry=None, copies=[WorkerCopies()])
        without.write({}, outdated=True)
        assert without.rows() == self.store.rows() != {}

    def on_compact(self):
        self.store.write({}, outdated=True)

    @property
    def is_empty(self):
        return not any(key[:2] == (self.key, self.of) for key in self.store.stored())


def is_run(case):
    """Return whether this kind of case applies here (docs/FLINK_MAP.md)."""
    given = case["given"]
    if case["unit"] != "state":
        return case["unit"] == "ttl_change"
    shows_expired = given["visibility"] != "never_return_expired" and given["cleanup"] != "compaction"
    return not shows_expired and not isinstance(given["cleanup"], dict)


@pytest.mark.parametrize("case", [case for case in CASES if is_run(case)], ids=lambda case: case["name"])
def test_state_expires_as_flinks_does(case, tmp_path):
    """Where a later version of Flink changed the rule (`superseded`), the later rule holds."""
    if case["unit"] == "ttl_change":
        return check_change(case, tmp_path)
    run, expected = Flink(str(tmp_path), case["given"]), {each["after"]: each for each in case["expect"]}
    for number, event in enumerate(case["events"]):
        run.run(event)
        for name, fact in expected.get(number, {}).items():
            if name == "raw_empty":
                if fact:
                    run.on_compact()
                assert run.is_empty is fact, number
            elif name in ("value", "contains"):
                said = run.said[name]
                assert said == (sorted(fact, key=str) if event[0] == "entries" else fact), number
            else:
                assert name == "after" or "superseded" in case
    return None


def check_change(case, tmp_path):
    before, after = (
        case["given"][name] and Expiry(case["given"][name], by_clock=True) for name in ("before_ms", "after_ms")
    )
    store, key = Store(str(tmp_path), before), ("key", "", "")
    store.write({key: "11"})
    if before:
        store.barrier(10)
    store = replace(store, expiry=after, now_ms=None, copies=[WorkerCopies()])
    store.write({}, outdated=before is None)
    store.barrier(10)
    store.barrier(9 + after.ttl_ms)
    assert store.rows() == {key: "11"}
    store.barrier(10 + after.ttl_ms)
    assert store.rows() == {}


# ------------------------------------------------------------------
# Against a dict


EXPIRED = "expired-is-gone"
"""State returns the rows that have not expired by the last barrier, and no others."""


STEPS = st.one_of(
    st.tuples(st.just("write"), st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(0, 3), min_size=1)),
    st.tuples(st.just("barrier"), st.integers(0, 6)),
    st.tuples(st.just("cut"), st.none()),
    st.tuples(st.just("rollback"), st.none()),
)


LIVES_ON = [("write", {"a": 1}), ("barrier", 1), ("write", {"b": 1}), ("barrier", 2), ("cut", None), ("barrier", 3)]
"""At the last barrier only `a` has expired. Both rows are in one file. A rollback brings `a` back."""
BY_ANOTHER = [("write", {"a": 1}), ("barrier", 1), ("write", {"b": 1}), ("barrier", 1), ("barrier", 3)]
"""A worker without a copy writes the second file. In both files, row `a` has the same age."""


@settings(deadline=None, max_examples=150)
@example([*LIVES_ON, ("rollback", None)], 4, CompactionPolicy(0.1), [0] * 30)
@example(BY_ANOTHER, 4, CompactionPolicy(0.1), [0, 0, 1, 1, 1])
@given(
    st.lists(STEPS, max_size=25),
    st.integers(1, 8),
    st.builds(CompactionPolicy, ratio=st.sampled_from([0.3, 1.0, 100.0]), deltas_max=st.integers(1, 6)),
    st.lists(st.integers(0, 1), min_size=30, max_size=30),
)
def test_no_worker_returns_an_expired_row(steps, ttl_ms, policy, workers):
    """A worker with an old copy, another one and one without any return the same rows: those that have not expired.

    That holds after rollbacks too, which make time go back to that of the cut.
    """
    with tempfile.TemporaryDirectory() as root:
        store, model, cut = Store(root, Expiry(ttl_ms, by_clock=True), policy), {}, ((), None, {})
        for (step, said), worker in zip(steps, workers, strict=False):
            if step == "write":
                store.write(
                    {(key, "", ""): None if value is None else str(value) for key, value in said.items()}, worker
                )
                model = model | {key: (value, None) for key, value in said.items()}
                model = {key: (value, at) for key, (value, at) in model.items() if value is not None}
            elif step == "barrier":
                now_ms = (store.now_ms or 0) + said
                store.barrier(now_ms)
                model = {key: (value, now_ms if at is None else at) for key, (value, at) in model.items()}
                model = {key: (value, at) for key, (value, at) in model.items() if at + ttl_ms > now_ms}
            elif step == "cut":
                cut = store.live.state, store.now_ms, model
            else:
                state, store.now_ms, model = cut
                store.live = LiveFiles(state)
            alive = {(key, "", ""): str(value) for key, (value, _) in model.items()}
            expect(store.rows(worker) == alive, EXPIRED, f"{store.rows(worker)}, not {alive}")
            expect(replace(store, copies=[WorkerCopies()]).rows() == alive, EXPIRED)
        assert store.now_ms is None or not model or len(store.live.state) <= policy.deltas_max + 1


@pytest.mark.parametrize("after", [None, Expiry(10)], ids=["no longer", "by event time"])
def test_another_way_to_expire_does_not_bring_back_or_take_away(after, tmp_path):
    """Rows that had expired at the cut stay expired.

    All other rows count as written when the expiry was changed, however old they were.
    """
    store = Store(str(tmp_path), Expiry(10, by_clock=True), CompactionPolicy(0.1))
    store.write({("old", "", ""): "1"})
    store.barrier(1_000)
    store.write({("new", "", ""): "2"})
    store.barrier(1_009)
    store.barrier(1_010)
    lapsed = Aged(store.expiry, store.now_ms) if after is None else None
    live = (
        store.live if after is None else LiveFiles(tuple(replace(each, touched_ms=None) for each in store.live.state))
    )
    changed = replace(store, expiry=after, lapsed=lapsed, live=live, now_ms=None, copies=[WorkerCopies()])
    changed.write({}, outdated=True)
    if after is None:
        assert changed.rows() == {("new", "", ""): "2"}
        return
    changed.live.age(after, 100)
    changed = replace(changed, now_ms=109)
    assert changed.rows()[("new", "", "")] == "2"
    changed.live.age(after, 110)
    assert changed.live.state == ()


def test_files_leave_whole_and_the_rest_at_the_next_base(tmp_path):
    """Even after a long time, the files hold at most twice as many rows as have not expired."""
    store = Store(str(tmp_path), Expiry(10, by_clock=True))
    for moment in range(200):
        store.write({(str(100 * moment + key), "", ""): "x" for key in range(20)})
        store.barrier(moment)
        assert sum(file.file.rows for file in store.live.state) <= 2 * 11 * 20
    store.barrier(210)
    assert store.live.state == ()


def test_a_drain_writes_what_lives_and_nothing_else():
    """A drain writes only rows that have not expired. Without a time of expiry, no row has expired."""
    spec = SimpleNamespace(expires=Expires(Expiry(10)), outdated=frozenset(), table=None, function=None)
    live = LiveFiles((KeyedFile(FileHandle("a", 1, 1, 0), KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1), 5),))
    drain = RunMicroBatch("sums", 2, 1, (), (live.state, ()), (), end_of_input=True, now_ms=7)
    assert _outdated(spec, drain) == {0}
    assert _outdated(spec, replace(drain, end_of_input=False)) == set()
    assert _outdated(spec, replace(drain, now_ms=None)) == set()


@dataclass
class Expiring(Bench):
    """Runs one subtask whose state expires."""

    expires: Expires | None = None

    def _task(self, *, end):
        stored = pa.schema([*self.state_schema, pa.field(Aged(self.expires.expiry, None).column, pa.int64())])
        return replace(super()._task(end=end), expires=self.expires, stored=stored)


@pytest.mark.parametrize("on_read", [False, True])
def test_a_row_that_changes_nothing_renews_its_key_only_if_reads_do(on_read, tmp_path):
    """In `enrich`, a left row that finds its right row does not change the state."""
    lives = Expires(Expiry(10), on_read=on_read)
    bench = Expiring(str(tmp_path), expires=lives, policy=CompactionPolicy(ratio=100.0))
    assert [1] == [each.file.rows for each in bench.run([], [("a", 1.0)]).state]
    assert ([1] if on_read else []) == [each.file.rows for each in bench.run([("a", 7)], []).state]
    assert [1] == [each.file.rows for each in bench.run([("b", 8)], []).state]
