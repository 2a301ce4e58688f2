"""Clean-up on real Delta tables, without Spark: needed files stay, all others are deleted, beside a tick too."""

import shutil
import threading
import zlib
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_claim
from checkpointing.identifiers import VertexId
from checkpointing.messages import RowAppended
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from jobs.tick.at_rest.import_entry import import_row
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up, plan_cleanup
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse import lease
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import TablesBehindError
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    CONFIG,
    GOLD,
    JOB,
    LocalEngine,
    at,
    build,
    read_cut,
    records,
    run,
    wanted,
)

DAY_MS = 86_400_000
ROWS = {"a": 300, "b": 300}
ORPHAN = "11111111-2222-3333-4444-555555555555"


def at_ms(root: Path, now_ms: int) -> Warehouse:
    return Warehouse(root, ProtocolPaths(JOB), now_ms=lambda: now_ms)


def staged(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("_data/**/*") if path.is_file()}


def needed(root: Path) -> set[str]:
    """Return the files that checkpoints, savepoints and readers need, computed only from entries and logs."""
    found = {path for record in records(root).values() for path in files_of(record)}
    for cut in CutStore(at(root)).all().values():
        for table, version in cut.items():
            found |= {f"{table}/{path}" for path in _paths(root / table, version)}
            found |= {f"{table}/{path}" for path in _paths(root / table, None)}
    return found


def _paths(folder: Path, version: int | None) -> list[str]:
    return [str(row["path"]) for row in pl.DataFrame(DeltaTable(folder, version=version).get_add_actions()).to_dicts()]


def orphan(root: Path, table: str = str(BRONZE), generation: int = 1, name: str = "") -> str:
    plain = str(StagedName(VertexId("bronze"), 0, ORPHAN))
    path = f"{table}/_data/{generation}/{name or plain}"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(b"left behind")
    return path


def whole(root: Path) -> None:
    for cut in CutStore(at(root)).all().values():
        for table, version in cut.items():
            assert DeltaTable(root / table, version=version).to_pyarrow_table().num_rows >= 0
    for record in records(root).values():
        for vertex in record.vertices:
            for snapshot in vertex.subtasks:
                for keyed in snapshot.state:
                    assert keyed.file.crc32 == zlib.crc32((root / keyed.file.path).read_bytes())


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Make a warehouse with a history: two ticks, a savepoint between them, and subsumed checkpoints."""
    root = tmp_path_factory.mktemp("history")
    run(root, 3, plan=build(ROWS))
    savepoint_at_rest(at(root))
    run(root, 1, plan=build(ROWS))
    return root


@pytest.fixture
def root(history, tmp_path):
    return shutil.copytree(history, tmp_path / "warehouse")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    root = tmp_path_factory.mktemp("expected")
    run(root, plan=build(ROWS))
    return read_cut(root)


def test_after_a_clean_up_every_retained_row_restores_and_every_cut_reads(root, tmp_path, expected):
    """Each checkpoint and savepoint is restored with correct checksums, and ends with the tables of an undisturbed run.

    No other file is left.
    """
    orphan(root)
    DeltaTable(root / BRONZE).optimize.compact()  # so that only versions of older cuts show the staged files
    before = _cut_contents(root)
    done = clean_up(at(root), 0)
    assert len(done.deleted.files) > 3
    assert {path for path in needed(root) if "/_data/" in path} == staged(root)
    whole(root)
    assert before == _cut_contents(root)
    assert len(records(root)) > 2
    for number in records(root):
        fork = tmp_path / f"fork-{number}"
        import_row(wanted(f"{root}@{number}", fork, plan=build(ROWS)))
        run(fork, plan=build(ROWS))
        assert expected == read_cut(fork), number
    run(root, plan=build(ROWS))
    assert expected == read_cut(root)


def _cut_contents(root: Path) -> dict[tuple[int, str], list[tuple[object, ...]]]:
    return {
        (checkpoint, str(table)): sorted(pl.read_delta(str(root / table), version=version).rows(), key=str)
        for checkpoint, cut in CutStore(at(root)).all().items()
        for table, version in cut.items()
    }


def test_readers_have_their_grace(root):
    """A file that a table no longer shows stays for 24 h after the first clean-up that found it unneeded.

    Then it is deleted.
    """
    at(root).path(at(root).paths.cleanup_looks).unlink()
    now_ms = at(root).now_ms() + 1_000
    gone = {each.file.path for each in plan_cleanup(at(root), 0).decision.delete if each.file.shown}
    assert gone
    first = clean_up(at_ms(root, now_ms), DAY_MS)
    assert () == first.deleted.files
    assert gone <= {each.file.path for each in first.decision.waiting}
    assert gone <= staged(root)
    clean_up(at_ms(root, now_ms + DAY_MS - 1), DAY_MS)
    assert gone <= staged(root)
    assert gone <= {each.file.path for each in clean_up(at_ms(root, now_ms + DAY_MS), DAY_MS).deleted.files}
    whole(root)


def test_a_dry_run_changes_nothing(root):
    orphan(root)
    _leave_a_cut_behind(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    plan = plan_cleanup(at(root), 0)
    assert len(plan.decision.delete) > 3
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert {each.file.path for each in plan.decision.delete} == {
        each.file.path for each in clean_up(at(root), 0).deleted.files
    }


def test_what_a_killed_process_left_goes_wherever_it_lies(root):
    """Files of outputs, states and channels are deleted, finished or not. Files with other names stay."""
    state, channel = f"_tidemark/{JOB}/state/by_key", f"_tidemark/{JOB}/channels/x"
    names = ("", f".bronze-0-{ORPHAN}.parquet.tmp")
    left = {orphan(root, table, name=name) for table in (str(BRONZE), str(GOLD), state, channel) for name in names}
    foreign = orphan(root, name="notes.txt")
    assert left <= {each.file.path for each in clean_up(at(root), 0).deleted.files}
    assert needed(root) | {foreign} == staged(root)


def test_a_file_that_cannot_be_deleted_is_told_and_stops_no_other(root, monkeypatch):
    stuck, real = orphan(root), Path.unlink

    def refuses(path, *, missing_ok=False):
        if path.name == Path(stuck).name:
            raise PermissionError(13, "Permission denied")
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuses)
    done = clean_up(at(root), 0)
    assert (f"{stuck}: Permission denied",) == done.notes
    assert needed(root) | {stuck} == staged(root)


@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_a_damaged_log_is_met_before_anything_is_deleted(root, damage):
    """A dry run names the table. The clean-up itself claims the job as a tick does, and fails as a tick would."""
    log = root / GOLD / "_delta_log"
    orphan(root)
    before = staged(root)
    shutil.rmtree(log) if damage == "gone" else max(log.glob("*.json")).write_text("{")
    (note,) = plan_cleanup(at(root), 0).notes
    assert note.startswith(f"table {GOLD} is left alone: its log cannot be read")
    with pytest.raises(TablesBehindError, match=f"table {GOLD}"):
        clean_up(at(root), 0)
    assert before == staged(root)


def test_a_clean_up_leaves_another_jobs_table_alone(root):
    """A clean-up touches only tables that this job made, or that its entries name."""
    shutil.copytree(root / GOLD, root / "gold/others")
    DeltaTable(root / "gold/others").alter.set_table_properties({"tidemark.job": "others"}, raise_if_not_exists=False)
    before = {path for path in staged(root) if path.startswith("gold/others")}
    clean_up(at(root), 0)
    assert before == {path for path in staged(root) if path.startswith("gold/others")}


def test_what_an_optimize_left_goes_once_no_cut_needs_it(root):
    """Others' files in a table of this job are known from the table's log. Only this job knows which cuts need them."""
    DeltaTable(root / BRONZE).optimize.compact()
    (compacted,) = (path for path in (root / BRONZE).glob("*.parquet"))
    DeltaTable(root / BRONZE).restore(DeltaTable(root / BRONZE).version() - 1)
    before = {path for path in staged(root) if path.startswith(str(BRONZE))}
    done = clean_up(at(root), 0)
    assert not compacted.exists()
    assert f"{BRONZE}/{compacted.name}" in {each.file.path for each in done.deleted.files}
    whole(root)
    assert {path for path in before if path in needed(root)} == {
        path for path in staged(root) if path.startswith(str(BRONZE))
    }


def _leave_a_cut_behind(root: Path) -> int:
    oldest = min(records(root))
    saved = next(number for number, record in records(root).items() if record.is_savepoint)
    stores = JobStores(at(root), lambda name: None)
    seen = stores.observe()
    claim = next(row for row in seen.rows if type(row).__name__ == "Release")
    freed = claim.model_copy(update={"nonce": "dropping"})
    assert isinstance(stores.entries.append(freed, seen.version, disposed=(oldest, saved)), RowAppended)
    return oldest


def test_a_cut_whose_row_is_gone_is_not_offered_and_its_files_go(root):
    """A tick died between its entry and its cut, and left the cuts of subsumed checkpoints.

    The clean-up deletes the cuts first, and then their files.
    """
    oldest = _leave_a_cut_behind(root)
    assert oldest in CutStore(at(root)).recorded()
    clean_up(at(root), 0)
    assert oldest not in CutStore(at(root)).recorded()
    assert needed(root) == staged(root)
    whole(root)


def test_what_is_committed_and_not_published_keeps_what_it_builds_on(tmp_path, tick, undisturbed, monkeypatch):
    """A tick died between its commit and its cut. Until a tick rolls forward, readers have the cut before."""
    planned = build(config=CONFIG.model_copy(update={"retained": 1}))
    with pytest.raises(Dead):
        tick(plan=planned, boundary=Mortal("after:AppendRow", 2))
    assert {1, 2} == set(records(tmp_path))
    before = _cut_contents(tmp_path)
    assert {1} == {checkpoint for checkpoint, _ in before}
    monkeypatch.setattr(lease, "_process_alive", lambda _: False)
    clean_up(at(tmp_path), 0)
    assert before == _cut_contents(tmp_path)
    monkeypatch.undo()
    tick(plan=planned)
    assert undisturbed == read_cut(tmp_path)


def test_a_cut_that_is_recorded_late_can_be_read(tmp_path, tick, monkeypatch):
    planned = build(ROWS, config=CONFIG.model_copy(update={"retained": 1}))
    run(tmp_path, 2, plan=planned)
    DeltaTable(tmp_path / BRONZE).optimize.compact()
    (first,) = (tmp_path / BRONZE).glob("*.parquet")
    with pytest.raises(Dead):
        tick(plan=planned, boundary=Mortal("before:RecordCut"))
    DeltaTable(tmp_path / BRONZE).optimize.compact()
    monkeypatch.setattr(lease, "_process_alive", lambda _: False)
    done = clean_up(at(tmp_path), 0)
    late = max(records(tmp_path))
    assert [f"checkpoint {late} is committed"] == [note.partition(",")[0] for note in done.notes]
    savepoint_at_rest(at(tmp_path))
    assert late in CutStore(at(tmp_path)).recorded()
    assert first.exists()
    whole(tmp_path)


def test_beside_a_running_tick_a_clean_up_takes_nothing_from_it(root, tmp_path, expected):
    """Clean-ups run without pause while a tick works.

    Every cut can be read at any moment, and the tick ends undisturbed.
    """
    gate = tmp_path / "gate"
    old = orphan(root)
    ticking = threading.Thread(target=_tick, args=(root, gate))
    claimed = newest_claim(CheckpointStore(at(root)).observe()[1]).generation + 1
    ticking.start()
    while not (root / f"_tidemark/{JOB}/traces/{claimed}.ndjson").exists() and ticking.is_alive():
        ticking.join(0.01)
    first = clean_up(at(root), 0)
    assert first.beside is not None
    assert old in {each.file.path for each in first.deleted.files}
    gate.write_text("")
    rounds = 0
    while ticking.is_alive() or not rounds:
        clean_up(at(root), 0)
        rounds += 1
    ticking.join()
    whole(root)
    assert expected == read_cut(root)
    clean_up(at(root), 0)
    assert needed(root) == staged(root)


def _tick(root: Path, gate: Path) -> None:
    run_tick(build(ROWS), RuntimeSettings(warehouse=root), engine=LocalEngine(gate=gate))


def test_a_tick_cleans_up_as_its_last_act(tmp_path, tick):
    """A tick deletes old leftovers at its end, once in a grace period. Without a grace period it deletes nothing."""
    tick()
    left = orphan(tmp_path)
    now_ms = at(tmp_path).now_ms
    tick(clock=lambda: now_ms() + DAY_MS + 1, reader_grace_ms=None)
    assert (tmp_path / left).exists()
    tick(clock=lambda: now_ms() + DAY_MS + 1)
    assert not (tmp_path / left).exists()
    whole(tmp_path)


def test_a_clean_up_that_fails_fails_no_tick(tmp_path, tick, undisturbed):
    """The clean-up's failure is logged. The tick has done its work and succeeds."""

    def fails(name: str) -> None:
        if name == "before:Cleanup":
            raise OSError("the disk is away")

    assert "" == tick(boundary=fails).message
    assert undisturbed == read_cut(tmp_path)


# ------------------------------------------------------------------
# Table logs over ticks, on real Delta without Spark: log entries are deleted, and every retained cut can still be read
# and restored.


NO_WAIT = {"reader_grace_ms": 0, "table_log_keep_ms": 0}


def first_entry(root, table):
    return min(int(path.stem) for path in (root / table / "_delta_log").glob("*.json"))


def log_checkpoints(root):
    for table in (BRONZE, GOLD):
        DeltaTable(root / table).create_checkpoint()


@pytest.fixture
def two_ticks(tmp_path):
    """Run two ticks. The log checkpoints of the first are at versions that no retained cut needs any more."""
    run(tmp_path, 2, **NO_WAIT)
    log_checkpoints(tmp_path)
    run(tmp_path, 3, **NO_WAIT)
    return tmp_path


def test_entries_that_no_cut_needs_go_and_the_oldest_cut_comes_back(two_ticks, undisturbed):
    """The log begins at its last checkpoint before the oldest retained cut, and a rollback to that cut succeeds."""
    assert (0, 0) == (first_entry(two_ticks, BRONZE), first_entry(two_ticks, GOLD))
    run(two_ticks, 1, **NO_WAIT)
    oldest = min(CutStore(at(two_ticks)).all())
    assert 0 < first_entry(two_ticks, BRONZE) <= CutStore(at(two_ticks)).all()[oldest][BRONZE]
    assert 0 < first_entry(two_ticks, GOLD) <= CutStore(at(two_ticks)).all()[oldest][GOLD]
    whole(two_ticks)
    roll_back(at(two_ticks), oldest)
    run(two_ticks, **NO_WAIT)
    whole(two_ticks)
    assert undisturbed == read_cut(two_ticks)


@pytest.mark.parametrize("kept", [{"table_log_keep_ms": 0}, {"reader_grace_ms": 0}, {"reader_grace_ms": None}], ids=str)
def test_entries_stay_for_the_readers_grace_and_their_own_age(two_ticks, kept):
    """By default, entries stay for a day after they were needed, and for thirty days in all.

    A tick that deletes nothing keeps all entries.
    """
    run(two_ticks, 1, **kept)
    assert (0, 0) == (first_entry(two_ticks, BRONZE), first_entry(two_ticks, GOLD))


def test_a_savepoint_keeps_the_entries_of_its_cut(tmp_path):
    """As long as the savepoint exists, the tables of its cut can be read by version."""
    run(tmp_path, 2, **NO_WAIT)
    savepoint_at_rest(at(tmp_path))
    run(tmp_path, 1, **NO_WAIT)
    log_checkpoints(tmp_path)
    for _ in range(3):
        run(tmp_path, 1, **NO_WAIT)
    whole(tmp_path)
    assert (0, 0) == (first_entry(tmp_path, BRONZE), first_entry(tmp_path, GOLD))
