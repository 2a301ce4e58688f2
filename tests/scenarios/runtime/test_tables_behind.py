"""A table that shows less than its recorded cut is published again, or a tick is refused (G1).

A log can lose entries in a power cut, by a person's mistake, or when a table's folder is restored from an older backup.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import threading
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from deltalake import write_deltalake

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import TickOutcome
from jobs.cli import run as run_command
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.doctor.examination import examine
from jobs.reading import Cuts, CutUnreadableError
from jobs.spark.session import SparkConfig
from jobs.tick.at_rest.roll_back import preview_rollback, roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.tick.listener import TickListener
from jobs.tick.rollback_plan import RollbackRefusedError, plan_rollback
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import CORRECT_CUTS, PUBLISH_AGAIN, cross_freely
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.delta_log import Durability
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import TablesAheadError, TablesBehindError
from spec.traces import judge as judge_trace
from tests.scenarios.faults.strikes import HalfWritten
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    CONFIG,
    GOLD,
    JOB,
    KEEPS_ALL,
    ROWS,
    STATE,
    LocalEngine,
    at,
    at_cut,
    build,
    contents,
    laid_out,
    newest,
    read_cut,
    records,
    run,
    tick,
)
from tests.scenarios.runtime.test_rollback import merged

DAY_MS = 86_400_000


def entries(root, table=BRONZE):
    return sorted((root / table / "_delta_log").glob("*.json"))


def empty_the_newest(root, table):
    entries(root, table)[-1].write_bytes(b"")


def delete_the_newest(root, table):
    entries(root, table)[-1].unlink()


def delete_the_newest_two(root, table):
    for entry in entries(root, table)[-2:]:
        entry.unlink()


def delete_the_log(root, table):
    shutil.rmtree(root / table / "_delta_log")


LOSSES = [empty_the_newest, delete_the_newest, delete_the_newest_two, delete_the_log]


def empty_the_middle(root):
    entries(root)[2].write_bytes(b"")


def delete_the_middle(root):
    entries(root)[2].unlink()


def cut_off(entry):
    entry.write_bytes(entry.read_bytes()[:200])


def of_job(root):
    sections = [
        each for each in examine(at(root), DAY_MS, SparkConfig(), verify=False).sections if each.name != "machine"
    ]
    return [(found.what, found.repair) for each in sections for found in each.findings]


def version(root):
    return CheckpointStore(at(root)).observe()[0]


def all_cuts(root):
    return {each: at_cut(root, each) for each in CutStore(at(root)).recorded()}


@pytest.mark.parametrize("table", [BRONZE, GOLD, STATE])
@pytest.mark.parametrize("lose", LOSSES)
def test_what_a_table_lost_is_published_again(tmp_path, undisturbed, lose, table):
    """Whichever entries a table lost, the doctor finds the loss, and a tick restores every cut and goes on."""
    ids = laid_out(tmp_path, 2)
    before, state = all_cuts(tmp_path), pl.read_delta(str(tmp_path / STATE)).sort("key")
    lose(tmp_path, table)
    ((what, repair),) = of_job(tmp_path)
    assert f"table {table} shows less than the recorded cuts say" in what
    assert f"tidemark run numbers --warehouse {tmp_path}" in repair
    tick(tmp_path, 0)
    assert before == {each: at_cut(tmp_path, each) for each in ids}
    assert state.equals(pl.read_delta(str(tmp_path / STATE)).sort("key"))
    assert [] == of_job(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_a_cut_is_recorded_anew_where_versions_differ(tmp_path):
    """Another writer's commit has taken the lost version. The cut names a later version, with this writer's row too."""
    _, second = laid_out(tmp_path, 2)
    before, named = at_cut(tmp_path, second), CutStore(at(tmp_path)).read(CheckpointId(second))[BRONZE]
    published = CutStore(at(tmp_path)).entries()[second].published_at_ms
    theirs = pl.read_delta(str(tmp_path / BRONZE)).head(1).to_arrow()
    delete_the_newest(tmp_path, BRONZE)
    write_deltalake(str(tmp_path / BRONZE), theirs, mode="append")
    tick(tmp_path, 0)
    now = CutStore(at(tmp_path)).entries()[second]
    assert (named + 1, published) == (now.versions[BRONZE], now.published_at_ms)
    assert sorted([*before[BRONZE], *pl.from_arrow(theirs).rows()]) == at_cut(tmp_path, second)[BRONZE]
    assert before[GOLD] == at_cut(tmp_path, second)[GOLD]


def test_an_entry_that_others_put_in_its_place_is_not_taken_for_ours(tmp_path):
    """A table comes from an older backup, and another writer has appended since. The version number proves nothing."""
    ids = laid_out(tmp_path, 3)
    delete_the_newest_two(tmp_path, BRONZE)
    for _ in range(3):
        write_deltalake(str(tmp_path / BRONZE), pl.read_delta(str(tmp_path / BRONZE)).head(1).to_arrow(), mode="append")
    theirs = pl.read_delta(str(tmp_path / BRONZE)).height - 100
    tick(tmp_path, 0)
    assert [100, 200 + theirs, 300 + theirs] == [len(at_cut(tmp_path, each)[BRONZE]) for each in ids]


@pytest.mark.parametrize("occurrence", [1, 2])
@pytest.mark.parametrize(
    "boundary",
    [
        f"before:{PUBLISH_AGAIN}:{BRONZE}",
        f"after:{PUBLISH_AGAIN}:{BRONZE}",
        f"before:{CORRECT_CUTS}",
        f"after:{CORRECT_CUTS}",
        "after:LogCommit:tables",
        "after:LogCommit:cuts",
    ],
)
def test_a_death_while_tables_are_brought_back_is_made_up_for(tmp_path, undisturbed, monkeypatch, boundary, occurrence):
    """Wherever the tick dies, the next tick finishes. Every cut shows the same as before."""
    ids = laid_out(tmp_path, 2)
    before = all_cuts(tmp_path)
    entries(tmp_path)[-1].write_bytes(b"")
    entries(tmp_path)[-2].write_bytes(b"")
    try:
        run_tick(
            KEEPS_ALL, RuntimeSettings(warehouse=tmp_path), engine=LocalEngine(), boundary=Mortal(boundary, occurrence)
        )
    except Dead:
        monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    tick(tmp_path)
    assert before == {each: at_cut(tmp_path, each) for each in ids}
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_without_the_rows_it_is_refused_by_name_before_the_claim(tmp_path, undisturbed):
    """Only the newest two entries are retained, and bronze lost three.

    Nothing changes. The tick goes on after the folder is restored from a backup.
    """
    root = tmp_path / "warehouse"
    run(root, 3)
    backup = shutil.copytree(root / BRONZE, tmp_path / "backup")
    for entry in entries(root)[-3:]:
        entry.unlink()
    before, shown = version(root), contents(root)
    with pytest.raises(TablesBehindError, match=rf"table {BRONZE} in .* shows no checkpoint of numbers") as refused:
        run(root)
    assert f"restore the folder {root / BRONZE} from a backup" in str(refused.value)
    assert [(refused.value.what, refused.value.way_out)] == of_job(root)
    for at_rest in (lambda: savepoint_at_rest(at(root)), lambda: clean_up(at(root), 0)):
        with pytest.raises(TablesBehindError, match=f"table {BRONZE}"):
            at_rest()
    assert (before, shown) == (version(root), contents(root))
    shutil.rmtree(root / BRONZE)
    shutil.copytree(backup, root / BRONZE)
    run(root)
    assert undisturbed == read_cut(root)


def test_a_hole_is_refused_and_the_rollback_that_is_offered_goes_through(tmp_path, undisturbed, capsys, monkeypatch):
    """An entry in the middle of the log is empty. The command in the message repairs the job."""
    first, second, _ = laid_out(tmp_path, 3)
    empty_the_middle(tmp_path)
    with pytest.raises(TablesBehindError, match=f"lacks what checkpoint {second} brought") as refused:
        tick(tmp_path)
    with pytest.raises(RollbackRefusedError, match=rf"table {BRONZE} no longer has version 2"):
        roll_back(at(tmp_path), second)
    (command,) = re.findall("'tidemark (rollback [^']*)'", str(refused.value))
    assert f"rollback numbers {first} --warehouse {tmp_path}" == command
    monkeypatch.setattr(run_command, "run_tick", lambda *told: run_tick(*told, engine=LocalEngine()))
    assert 0 == execute(command.split()), capsys.readouterr()
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)
    assert [] == of_job(tmp_path)


def test_a_hole_is_found_although_its_cut_is_lost_too(tmp_path, undisturbed, capsys, monkeypatch):
    """The next checkpoint's entry shows which version was lost.

    The retained entries name the lost files. So the job can be rolled back to the checkpoint that the log lacks.
    """
    _, second, _ = laid_out(tmp_path, 3)
    expected = at_cut(tmp_path, second)
    empty_the_middle(tmp_path)
    sorted((tmp_path / f"_tidemark/{JOB}/cuts/_rows").glob("*.parquet"))[1].unlink()
    assert second not in CutStore(at(tmp_path)).recorded()
    with pytest.raises(TablesBehindError, match=f"lacks what checkpoint {second} brought") as refused:
        tick(tmp_path)
    (command,) = re.findall("'tidemark (rollback [^']*)'", str(refused.value))
    assert f"rollback numbers {second} --warehouse {tmp_path}" == command
    monkeypatch.setattr(run_command, "run_tick", lambda *told: run_tick(*told, engine=LocalEngine()))
    assert 0 == execute(command.split()), capsys.readouterr()
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)
    assert [] == of_job(tmp_path)


def test_a_rollback_is_published_only_onto_what_it_was_planned_on(tmp_path, undisturbed, capsys, monkeypatch):
    """The log entry in which a first rollback removed rows is lost. A second one was planned with nothing to remove."""
    first, *_ = laid_out(tmp_path, 3)
    expected = at_cut(tmp_path, first)
    back = roll_back(at(tmp_path), first).record.checkpoint
    with pytest.raises(Dead):
        roll_back(at(tmp_path), first, boundary=Mortal(f"after:RollForward:{BRONZE}"))
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    delete_the_newest_two(tmp_path, BRONZE)
    with pytest.raises(TablesBehindError, match=f"lacks what checkpoint {back} brought") as refused:
        tick(tmp_path)
    (command,) = re.findall("'tidemark (rollback [^']*)'", str(refused.value))
    assert 0 == execute(command.split()), capsys.readouterr()
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    assert {first, newest(tmp_path).checkpoint} == set(CutStore(at(tmp_path)).recorded())
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_an_entry_that_is_cut_off_is_named_and_moving_it_away_helps(tmp_path, undisturbed):
    laid_out(tmp_path, 2)
    cut_off(entries(tmp_path)[-1])
    with pytest.raises(TablesBehindError, match="the newest entry of its log, is cut off") as refused:
        tick(tmp_path)
    assert [(refused.value.what, refused.value.way_out)] == of_job(tmp_path)
    (command,) = re.findall("'(mv [^']*)'", str(refused.value))
    subprocess.run(command.split(), check=True)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (delete_the_middle, "00000000000000000002.json is missing from its log"),
        (lambda root: cut_off(entries(root)[2]), "00000000000000000002.json of its log is cut off"),
    ],
)
def test_a_log_that_nobody_can_load_is_named(tmp_path, undisturbed, damage, said):
    """An entry is missing or cut off, and later ones exist.

    One sentence says so. After the table is restored from its backup, the job goes on.
    """
    laid_out(tmp_path / "warehouse", 3)
    root = tmp_path / "warehouse"
    backup = shutil.copytree(root / BRONZE, tmp_path / "backup")
    damage(root)
    with pytest.raises(TablesBehindError, match=rf"table {BRONZE}: entry {said}.*: restore {root / BRONZE} from a"):
        tick(root)
    assert [said in what for what, _ in of_job(root)] == [True]
    with pytest.raises(RollbackRefusedError, match=said):
        preview_rollback(at(root), min(records(root)))
    shutil.rmtree(root / BRONZE)
    shutil.copytree(backup, root / BRONZE)
    tick(root)
    assert undisturbed == read_cut(root)


def test_a_savepoint_at_rest_brings_the_tables_back_first(tmp_path):
    _, second = laid_out(tmp_path, 2)
    before = at_cut(tmp_path, second)
    empty_the_newest(tmp_path, BRONZE)
    savepoint_at_rest(at(tmp_path))
    assert before == at_cut(tmp_path, second) == contents(tmp_path)


def test_a_rollback_brings_the_tables_back_first(tmp_path):
    _, second, _ = laid_out(tmp_path, 3)
    before = at_cut(tmp_path, second)
    delete_the_newest_two(tmp_path, BRONZE)
    with pytest.raises(RollbackRefusedError, match=f"run 'tidemark run numbers --warehouse {tmp_path}' first"):
        preview_rollback(at(tmp_path), second)
    roll_back(at(tmp_path), second)
    assert before == read_cut(tmp_path) == contents(tmp_path)


def test_at_rest_a_table_without_a_log_waits_for_a_tick(tmp_path):
    """Only the pipeline knows the table's columns. The message says which command to run."""
    laid_out(tmp_path, 2)
    delete_the_log(tmp_path, BRONZE)
    with pytest.raises(TablesBehindError, match=rf"run 'tidemark run numbers --warehouse {tmp_path}' first"):
        savepoint_at_rest(at(tmp_path))


def test_a_cut_that_a_table_no_longer_has_is_not_read(tmp_path):
    """Readers get an error that names table and version, and never fewer rows.

    After a tick they can read the cut again.
    """
    _, second = laid_out(tmp_path, 2)
    before = at_cut(tmp_path, second)[BRONZE]
    empty_the_newest(tmp_path, BRONZE)
    with pytest.raises(CutUnreadableError, match=rf"table {BRONZE} .*version 2 is not what was published for it"):
        Cuts(tmp_path, JOB).at(second).arrow(BRONZE)
    tick(tmp_path, 0)
    assert before == sorted(pl.from_arrow(Cuts(tmp_path, JOB).at(second).arrow(BRONZE)).rows())


def test_a_tick_says_what_it_published_again(tmp_path):
    first, second = laid_out(tmp_path, 2)
    empty_the_newest(tmp_path, BRONZE)
    heard = []

    class Listening:
        def __getattr__(self, name):
            return lambda *told: heard.extend(told[0].repaired) if name == "recovered" else None

    run_tick(KEEPS_ALL, RuntimeSettings(warehouse=tmp_path), Listening(), engine=LocalEngine())
    told = (
        f"table {BRONZE} showed checkpoint {first}, less than its newest cut: checkpoint {second} was published again"
    )
    assert [told] == heard


def test_the_doctor_finds_tables_that_are_newer_than_the_rows(tmp_path):
    """`checkpoints` comes from an older backup. The doctor reports the same loss and command as the refused tick."""
    root = tmp_path / "warehouse"
    laid_out(root, 1)
    backup = shutil.copytree(root / f"_tidemark/{JOB}", tmp_path / "backup")
    tick(root, 1)
    shutil.rmtree(root / f"_tidemark/{JOB}")
    shutil.copytree(backup, root / f"_tidemark/{JOB}")
    with pytest.raises(TablesAheadError) as refused:
        tick(root)
    assert (refused.value.what, refused.value.way_out) in of_job(root)
    (command,) = re.findall("'tidemark (run [^']*--from [^']*)'", str(refused.value))
    assert f"run numbers --from {root}@1 --warehouse EMPTY_FOLDER" == command
    assert json.dumps(str(refused.value)).endswith("EMPTY_FOLDER'\"")


# ------------------------------------------------------------------
# `--allow-non-restored-state` in place: the dry run, the tick and the tick door decide alike, and the rest of the job
# goes on.


WITHOUT = "tests.scenarios.runtime.sequence_job:without_aggregate"
ALLOW = "--allow-non-restored-state"


@pytest.fixture
def root(tmp_path):
    """Return a warehouse whose newest cut holds the state of an aggregate."""
    run(tmp_path / "warehouse", 1)
    return tmp_path / "warehouse"


def test_with_the_flag_the_tick_leaves_the_state_behind_and_reads_on(root, answered):
    code, said = answered("run", WITHOUT, "--warehouse", root, ALLOW, "--dry-run")
    assert ExitCode.DONE is code, said
    code, said = answered("run", WITHOUT, "--warehouse", root, ALLOW)
    assert ExitCode.DONE is code, said
    assert sum(ROWS.values()) == pl.read_delta(str(root / BRONZE)).height
    newest = records(root)[max(records(root))]
    assert "by_key" not in [vertex.vertex for vertex in newest.vertices]
    code, said = answered("run", WITHOUT, "--warehouse", root)
    assert ExitCode.DONE is code, said


# ------------------------------------------------------------------
# A power cut loses every byte and every name that was not synced. No entry, no cut and no data row is lost with them.


class Disk:
    """Records the files whose bytes are durable, and the durable file names.

    A file's bytes are durable after an fsync of the file. Its name is durable only after an fsync of its folder.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bytes: set[int] = set()
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()
        self._real = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, descriptor: int) -> None:
        self._real(descriptor)
        seen = os.fstat(descriptor)
        with self._lock:
            if not stat.S_ISDIR(seen.st_mode):
                self._bytes.add(seen.st_ino)
                return
            folder = Path(f"/proc/self/fd/{descriptor}").readlink()
            for entry in os.scandir(folder):
                self._names[entry.path] = entry.inode()

    def after_a_power_cut(self, root: Path, to: Path) -> None:
        for path in sorted(root.rglob("*")):
            seen = path.stat()
            named = all(self._is_named(each) for each in (path, *path.parents) if each != root and root in each.parents)
            if not named:
                continue
            if path.is_dir():
                (to / path.relative_to(root)).mkdir(parents=True, exist_ok=True)
            elif seen.st_ino in self._bytes:
                shutil.copy2(path, to / path.relative_to(root))

    def _is_named(self, path: Path) -> bool:
        return self._names.get(str(path)) == path.stat().st_ino


@pytest.mark.parametrize(
    ("boundary", "occurrence"),
    [
        ("after:AppendRow", 2),
        ("after:PublishTable:bronze/numbers", 2),
        ("before:RecordCut", 2),
        ("after:RecordCut", 2),
        ("before:Release", 1),
    ],
)
def test_a_power_cut_takes_nothing_that_was_committed(tmp_path, undisturbed, monkeypatch, boundary, occurrence):
    """Only synced files are left. All entries and cuts exist and show the same as before, and the job goes on."""
    root, left = tmp_path / "before", tmp_path / "after"
    left.mkdir()
    root.mkdir()
    disk = Disk(monkeypatch)
    with pytest.raises(Dead):
        run_tick(
            KEEPS_ALL, RuntimeSettings(warehouse=root), engine=LocalEngine(), boundary=Mortal(boundary, occurrence)
        )
    disk.after_a_power_cut(root, left)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    assert sorted(records(root)) == sorted(records(left))
    recorded = CutStore(at(root)).recorded()
    assert recorded == CutStore(at(left)).recorded()
    assert [at_cut(root, each) for each in recorded] == [at_cut(left, each) for each in recorded]
    tick(left)
    assert undisturbed == read_cut(left) == contents(left)


def test_what_is_published_again_is_durable_at_once(tmp_path, monkeypatch):
    """A start may die before it corrects the cuts.

    Later starts find nothing lost and so would not sync the log entry.
    """
    laid_out(tmp_path, 2)
    log = tmp_path / "bronze/numbers/_delta_log"
    newest = max(log.glob("*.json"))
    newest.unlink()
    disk = Disk(monkeypatch)
    with pytest.raises(Dead):
        run_tick(
            KEEPS_ALL,
            RuntimeSettings(warehouse=tmp_path),
            engine=LocalEngine(),
            boundary=Mortal(f"after:{PUBLISH_AGAIN}:bronze/numbers"),
        )
    left = tmp_path / "left"
    left.mkdir()
    disk.after_a_power_cut(log, left)
    assert newest.name in {each.name for each in left.iterdir()}


@pytest.mark.parametrize("is_undone", [False, True])
def test_the_undoing_of_a_merge_is_durable_before_the_rollback_relies_on_it(tmp_path, monkeypatch, is_undone):
    """The rollback dies after its entry.

    Without the undoing, its publication would find other files than the entry names.

    With `is_undone`, an earlier rollback has undone the merge, and was killed before it made the undoing durable.
    """
    first, *_ = laid_out(tmp_path, 2)
    log = tmp_path / "bronze/numbers/_delta_log"
    merges = merged(tmp_path).version()
    disk = Disk(monkeypatch)
    if is_undone:
        stores = JobStores(at(tmp_path), cross_freely)
        (back,) = (each for each in plan_rollback(stores, stores.observe(), first, checksums=False).tables if each.undo)
        stores.tables.rearrange(back.record.table, back.undo.actions, version=back.version)
    with pytest.raises(Dead):
        roll_back(at(tmp_path), first, boundary=Mortal("after:AppendRow"))
    left = tmp_path / "left"
    left.mkdir()
    disk.after_a_power_cut(log, left)
    undoing = {f"{version:020}.json" for version in (merges, merges + 1)}
    assert undoing <= {each.name for each in left.iterdir()}


def test_a_rollback_is_refused_if_log_entries_cannot_be_made_durable(tmp_path, monkeypatch):
    """Otherwise the rollback's entry would rely on log entries that the next power cut may take."""
    first, *_ = laid_out(tmp_path, 2)
    merged(tmp_path)
    before = records(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Durability, "sync_entries", fails)
    with pytest.raises(RollbackRefusedError, match=r"could not be made durable .*No space left.*type the same again"):
        roll_back(at(tmp_path), first)
    assert before == records(tmp_path)


# ------------------------------------------------------------------
# The log of an output table cannot be read for a while. The checkpoint is declined, and the job goes on (E3).


class Failed(TickListener):
    """Records which checkpoints failed."""

    def __init__(self):
        self.heard = []

    def failed(self, checkpoint, reason, message, *, ends_tick):
        self.heard.append((checkpoint, reason, message))


@pytest.mark.parametrize("times", [1, 2])
def test_a_log_that_can_be_read_again_costs_a_checkpoint_and_nothing_else(tick, tmp_path, undisturbed, times):
    failed = Failed()
    config = CONFIG.model_copy(update={"tolerable_failures": times})
    report = tick(plan=build(config=config), listener=failed, boundary=partial(HalfWritten(GOLD, times), root=tmp_path))
    assert TickOutcome.CAUGHT_UP is report.outcome, report.message
    assert [CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE] * times == [reason for _, reason, _ in failed.heard]
    for _, _, message in failed.heard:
        assert f"nothing is committed: table {GOLD}: its log cannot be read" in message
        assert "\n" not in message
    assert undisturbed == read_cut(tmp_path)
    with report.trace.open("rb") as lines:
        assert [] == judge_trace(lines).problems


def test_without_a_setting_the_first_failure_ends_the_tick(tick, tmp_path, undisturbed):
    """The message names the way out. The next tick, on the repaired log, makes the tables of an undisturbed run."""
    report = tick(boundary=partial(HalfWritten(GOLD, 1), root=tmp_path))
    reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert (TickOutcome.FAILED, reason) == (report.outcome, report.reason)
    assert f"table {GOLD}: its log cannot be read" in report.message
    assert "--set tolerable_failures=3" in report.message
    assert TickOutcome.CAUGHT_UP is tick().outcome
    assert undisturbed == read_cut(tmp_path)
