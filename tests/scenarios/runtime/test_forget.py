"""One entry erases rows from tables, state, kept cuts and savepoints, and kills do not change the result (K6).

These jobs run without Spark. Here Polars finds the rows. In `test_forget_on_spark`, Spark finds them.
"""

from pathlib import Path

import polars as pl
import pytest

from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import RowKind
from jobs.doctor.table_health import file_section
from jobs.operators.scan.matching import opened
from jobs.storage.address import Root
from jobs.storage.place import place_in
from jobs.tick.at_rest import forget as at_rest
from jobs.tick.at_rest.forget import ErasureAsked, Forgotten, UnknownTableError, forget, preview_forget
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.warehouse.boundaries import KillAt, cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.savepoint_copy import copy_savepoint
from tests.cloud_stores import STORES
from tests.scenarios.processes import killed
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    GOLD,
    append_foreign,
    at,
    build,
    copied,
    records,
    tick,
    ticks,
)

KEY = 3
WHERE = ErasureAsked(str(BRONZE), f"key = {KEY}")
STATE = TableName("_tidemark/numbers/state/by_key")


@pytest.fixture(autouse=True)
def found_by_polars(monkeypatch):
    find_by_polars(monkeypatch.setattr)


def find_by_polars(put) -> None:
    put(at_rest, "columns_of_predicate", lambda _session, _predicate, _schema: ("key",))
    put(at_rest, "matching_rows", matching_rows)


def matching_rows(_session, root, predicate, _schema, files, _renamed):
    found = {}
    for file in files:
        source = opened(root, file)
        rows = pl.read_parquet(source if isinstance(source, str) else source.read())
        places = rows.with_row_index("place").sql(f"SELECT place FROM self WHERE {predicate}")["place"].to_list()
        found |= {file.path: places} if places else {}
    return found


def erase(root: Path, asked: ErasureAsked = WHERE, boundary=cross_freely) -> Forgotten:
    return forget(at(root), asked, lambda: None, boundary=boundary)


def dies_forgetting(root: Path, boundary: str, occurrence: int = 1) -> None:
    find_by_polars(setattr)
    erase(root, boundary=KillAt(boundary, occurrence))


def shown(root: Path) -> dict[tuple[int, str], list[tuple[object, ...]]]:
    """Return every table and state at every recorded cut, and the present rows of the tables."""
    recorded = JobStores(at(root), cross_freely).cuts.all()
    found = {
        (checkpoint, table): rows_of(root, table, version)
        for checkpoint, cut in recorded.items()
        for table, version in cut.items()
    }
    return found | {(0, table): rows_of(root, table, None) for table in (BRONZE, GOLD, STATE)}


def rows_of(root: Path, table: str, version: int | None) -> list[tuple[object, ...]]:
    return sorted(map(str, pl.read_delta(str(place_in(root, table)), version=version).rows(named=True)))


def damage(root: Root) -> object:
    """Return the missing or damaged files that the doctor finds."""
    stores = JobStores(at(root), cross_freely)
    return file_section(at(root), stores.entries.rows(), stores.cuts.all(), 0, verify=True).values["damaged"]


def without_key(found: dict[tuple[int, str], list[str]]) -> dict[tuple[int, str], list[str]]:
    return {name: [row for row in rows if f"'key': {KEY}," not in row] for name, rows in found.items()}


def of(found, names) -> dict[tuple[int, str], list[str]]:
    return {name: found[name] for name in names}


def prepared(root: Path) -> dict[tuple[int, str], list[str]]:
    """Copy a job with three cuts, a savepoint and a row of another program. Return its tables and state."""
    copied(root, "forget", make)
    return shown(root)


def make(root: Root) -> None:
    ticks(root, 2)
    savepoint_at_rest(at(root))
    append_foreign(root, 1_000)
    ticks(root, 1)


def test_all_cuts_lose_the_rows_and_keep_all_others(tmp_path):
    before = prepared(tmp_path)
    plan = preview_forget(at(tmp_path), WHERE, lambda: None)
    assert shown(tmp_path) == before
    done = erase(tmp_path)
    assert done.record is not None
    assert (RowKind.FORGET, max(records(tmp_path))) == (done.record.kind, done.record.checkpoint)
    assert {each.table: each.at_cuts for each in done.plan.matched} == {
        each.table: each.at_cuts for each in plan.matched
    }
    assert {each.table for each in plan.matched} == {BRONZE, GOLD, STATE}
    after = shown(tmp_path)
    assert of(after, before) == without_key(before)
    assert len(before[0, str(BRONZE)]) > len(after[0, str(BRONZE)]) > 0
    clean_up(at(tmp_path), grace_ms=0)
    assert shown(tmp_path) == after
    assert erase(tmp_path).record is None  # there is nothing left to find
    tick(tmp_path, 1, plan=build({"a": 900, "b": 900}))  # keeps two checkpoints, and deletes state of older ones
    assert done.record.checkpoint in records(tmp_path)
    assert damage(tmp_path) == []


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_rollback_brings_no_state_back_and_the_source_is_read_again(tmp_path, savepoint):
    """The report names the source, which gives the rows after the cut again. Nothing else brings an erased row back."""
    before = prepared(tmp_path)
    first = min(number for number, row in records(tmp_path).items() if row.is_savepoint is savepoint)
    done = erase(tmp_path)
    assert done.plan.sources == ("numbers",)
    clean_up(at(tmp_path), grace_ms=0)
    base = records(tmp_path)[first].parent if savepoint else first
    roll_back(at(tmp_path), first)
    then = shown(tmp_path)
    foreign = [row for row in before[0, str(BRONZE)] if "1000" in row]
    assert then[0, str(GOLD)] == without_key(before)[base, str(GOLD)]
    assert sorted([*then[0, str(BRONZE)]]) == sorted([*without_key(before)[base, str(BRONZE)], *foreign])
    tick(tmp_path)
    tick(tmp_path / "undisturbed")
    assert without_key({(0, ""): rows_of(tmp_path, GOLD, None)}) == without_key(
        {(0, ""): rows_of(tmp_path / "undisturbed", GOLD, None)}
    )


def test_a_copy_of_a_savepoint_has_none_of_the_rows(tmp_path):
    prepared(tmp_path / "job")
    savepoint = next(number for number, row in records(tmp_path / "job").items() if row.is_savepoint)
    erase(tmp_path / "job")
    copy_savepoint(at(tmp_path / "job"), CheckpointId(savepoint), tmp_path / "copy")
    rows = pl.read_delta(str(tmp_path / "copy" / BRONZE))
    assert (KEY in rows["key"].to_list(), rows.is_empty()) == (False, False)
    state = pl.concat(map(pl.read_parquet, (tmp_path / "copy" / STATE).rglob("*.parquet")))
    assert (KEY in state["key"].to_list(), state.is_empty()) == (False, False)


BOUNDARIES = [
    "before:Claim",
    "after:Claim",
    "before:WriteSuccessors",
    "after:WriteSuccessors",
    "before:LogCommit:checkpoints#2",
    "after:AppendRow",
    *(f"before:LogCommit:tables#{place}" for place in (1, 2, 3, 5, 8, 12)),
    f"after:RollForward:{BRONZE}",
    f"before:RollForward:{GOLD}",
    f"after:RollForward:{STATE}",
    "before:RollForwardCut",
    "after:RollForwardCut",
    "before:Release",
    "after:Release",
]
NOTHING_YET = BOUNDARIES[:5]


@pytest.mark.kill
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_kill_leaves_nothing_or_the_next_start_finishes_all(tmp_path, boundary):
    """At any moment, each cut shows every row of another key once, and a row of the key once or not at all."""
    before = prepared(tmp_path)
    name, _, occurrence = boundary.partition("#")
    killed(dies_forgetting, tmp_path, name, int(occurrence or 1))
    between = shown(tmp_path)
    assert without_key(of(between, before)) == without_key(before)
    assert all(len(between[name]) <= len(before[name]) for name in before)
    assert (of(between, before) == before) or boundary not in NOTHING_YET
    ticks(tmp_path, 1)
    after = shown(tmp_path)
    past = [name for name in before if name[0]]
    if boundary in NOTHING_YET:
        assert of(after, past) == of(before, past)
        erase(tmp_path)
        after = shown(tmp_path)
    assert of(after, past) == without_key(of(before, past))
    clean_up(at(tmp_path), grace_ms=0)
    assert shown(tmp_path) == after


REWRITING = "before:LogCommit:tables#3"
IN_A_STORE = [pytest.param(REWRITING, store.values[0], marks=store.marks) for store in STORES]
IN_A_STORE += [pytest.param("after:WriteSuccessors", "store_server")]


@pytest.mark.kill
@pytest.mark.parametrize(("boundary", "each_store"), IN_A_STORE, indirect=["each_store"])
def test_in_a_store_the_same_command_finishes_what_a_kill_left(url, boundary):
    """The process dies after it wrote the successors, or while it rewrites tables' logs. No tick runs in between."""
    make(url)
    before = shown(url)
    name, _, occurrence = boundary.partition("#")
    killed(dies_forgetting, url, name, int(occurrence or 1))
    assert without_key(of(shown(url), before)) == without_key(before)
    again = erase(url)
    assert (again.record is None) == (boundary not in NOTHING_YET)
    after = shown(url)
    assert of(after, before) == without_key(before)
    clean_up(at(url), grace_ms=0)
    assert shown(url) == after
    assert damage(url) == []


def test_rows_that_another_program_may_have_copied_meanwhile_are_told(tmp_path):
    """The other program commits after the search, so its files were not searched."""
    prepared(tmp_path)

    def writes(boundary: str) -> None:
        if boundary == "after:WriteSuccessors":
            append_foreign(tmp_path, 2_000)

    (note,) = erase(tmp_path, boundary=writes).notes
    assert f"another program wrote to {BRONZE} after the search" in note
    assert erase(tmp_path).notes == ()


def test_what_cannot_be_erased_now_is_refused_by_name(tmp_path):
    prepared(tmp_path)
    entries = JobStores(at(tmp_path), cross_freely).observe().version
    with pytest.raises(UnknownTableError, match="numbers has no table 'bronze/number': did you mean 'bronze/numbers'"):
        erase(tmp_path, ErasureAsked("bronze/number", "key = 3"))
    with pytest.raises(UnknownTableError, match="has no table 'gold/x'"):
        erase(tmp_path, ErasureAsked(str(BRONZE), "key = 3", besides=("gold/x",)))
    assert JobStores(at(tmp_path), cross_freely).observe().version == entries
    left = erase(tmp_path, ErasureAsked(str(BRONZE), "key = 3", besides=(str(GOLD),))).plan.left
    assert [(each.table, each.why) for each in left] == [(GOLD, "left out with --except")]
