"""Tests a source of another job's cuts without Spark: with real cuts, and with rollbacks of the other job."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from polars.testing import assert_frame_equal
from pyspark.sql.types import LongType, StructType

from checkpointing.config import CheckpointConfig, CheckpointingMode
from checkpointing.identifiers import CheckpointId, JobName, VertexId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import NotifyComplete, PollSource
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.cli.main import execute
from jobs.pipeline.planning import plan
from jobs.sources.delta.cut_source import CutSource
from jobs.sources.delta.delta_history import DeltaHistory
from jobs.sources.delta.delta_reader import DeltaSlice
from jobs.sources.delta.delta_source import SPLIT
from jobs.sources.delta.upstream_job import UpstreamHolds, newest_that_stands, taken_back
from jobs.sources.port import NoSuchPositionError, SourceError
from jobs.storage.address import StoreUrl
from jobs.storage.place import local, storage_of
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.source_reset import Reset, reset
from jobs.tick.cleaning import clean_up
from jobs.tick.effects import Notices
from jobs.tick.listener import TickListener
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.warehouse import Warehouse
from tests.object_store import KEY, SECRET
from tests.scenarios.runtime import cut_jobs
from tests.scenarios.runtime.cut_jobs import REPORT, SHOP, SOURCES, tick
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, build
from tidemark import Cuts, InvalidPipelineError, NoSuchCutError, Pipeline

ONE = TickLimits(checkpoints=1)


def poll(source, position=None, cut=None, rows_max=1_000):
    return source.poll(PollSource(VertexId("numbers"), SPLIT, position, rows_max, cut))


def to_the_cut(source, position=None, cut=None, rows_max=1_000):
    while (piece := poll(source, position, cut, rows_max)) is not None:
        yield piece
        position, cut = piece.end, piece.cut
        if piece.at_cut:
            return


@pytest.fixture
def source(tmp_path):
    return CutSource(tmp_path, JOB, BRONZE)


def test_the_source_reads_from_cut_to_cut(tick, tmp_path, source):
    """Slices may have any size. A slice without rows ends at a cut that adds no row to the table."""
    tick(limits=ONE)
    assert ["split", "n", "key", "value"] == source.schema().names
    first = list(to_the_cut(source, rows_max=30))
    newest = Cuts(tmp_path, JOB).latest()
    assert newest.polars(str(BRONZE)).collect().height == sum(piece.rows for piece in first)
    assert [False] * (len(first) - 1) + [True] == [piece.at_cut for piece in first]
    assert f"cut {newest.checkpoint} of {JOB}" == source.named(SPLIT, first[-1].end)
    assert poll(source, first[-1].end) is None
    tick()
    later = list(to_the_cut(source, first[-1].end))
    assert 300 == sum(piece.rows for piece in (*first, *later))
    assert source.rows_between(SPLIT, None, later[-1].end) == 300
    (again,) = to_the_cut(source, later[-1].end, later[-1].cut)
    assert (0, True, later[-1].cut) == (again.rows, again.at_cut, again.cut)
    assert () == DeltaSlice.parse(again.detail).ranges
    assert 0 == source.lag({SPLIT: later[-1].end})[SPLIT].rows


def test_a_missing_job_and_an_unfit_table_are_named(tick, tmp_path, source):
    """The job never ran, a table does not exist or has one row per key, or a reset is asked for a single table."""
    with pytest.raises(SourceError, match="has never run in"):
        poll(source)
    tick()
    upserted = r"rows of gold/by_key of numbers are replaced.*: bronze/numbers\."
    with pytest.raises(SourceError, match=upserted):
        poll(CutSource(tmp_path, JOB, GOLD))
    reset(Warehouse(tmp_path, ProtocolPaths(JOB)), build().sources, Reset("numbers", "start"))
    with pytest.raises(SourceError, match=upserted):  # also if the newest entry changes no table
        poll(CutSource(tmp_path, JOB, GOLD))
    with pytest.raises(SourceError, match=r"has no table 'bronze/other', only bronze/numbers:"):
        poll(CutSource(tmp_path, JOB, "bronze/other", schema=source.schema()))
    with pytest.raises(SourceError, match="is not a position of a source of cuts"):
        poll(source, "150")
    with pytest.raises(NoSuchPositionError, match="all tables of numbers are read at one cut"):
        source.seek(SPLIT, None, "end")
    with pytest.raises(InvalidPipelineError, match="no rows_per_epoch can cap"):
        Pipeline("other").source("numbers", source, rows_per_epoch=5)


@pytest.mark.parametrize("changed", [{"unaligned": True}, {"mode": CheckpointingMode.AT_LEAST_ONCE}])
def test_a_mode_that_shows_a_part_of_a_cut_is_refused(changed, tmp_path):
    pipeline = Pipeline("other", config=CheckpointConfig(**changed))
    source = CutSource(tmp_path, "shop", "silver/orders", schema=StructType().add("n", LongType()))
    pipeline.source("orders", source).table("bronze/orders", id="kept")
    with pytest.raises(InvalidPipelineError, match="source orders: it reads whole cuts, and with"):
        plan(pipeline)


def test_the_source_sees_a_rollback_of_the_upstream_job(tick, tmp_path, source):
    """The cut to which the job was rolled back is valid, and abandoned cuts are not, even after further checkpoints."""
    warehouse = Warehouse(tmp_path, ProtocolPaths(JOB))
    tick(limits=ONE)
    old = list(to_the_cut(source))[-1]
    tick(limits=ONE)
    new = list(to_the_cut(source, old.end))[-1]
    any_entry = next(row for row in CheckpointStore(warehouse).observe()[1] if isinstance(row, CheckpointRecord))

    def resting_on(piece):
        vertex = next(each for each in any_entry.vertices if each.splits)
        stands = (replace(vertex.subtasks[0], position=piece.end),)
        return any_entry.model_copy(
            update={"vertices": (vertex.model_copy(update={"subtasks": stands, "splits": ("table",)}),)}
        )

    assert ["", ""] == [taken_back(resting_on(piece)) for piece in (old, new)]
    roll_back(warehouse, int(old.cut.partition(".")[0]))
    for _ in range(2):
        assert "" == taken_back(resting_on(old))
        lost = taken_back(resting_on(new))
        assert lost.startswith(f"cut {new.cut.partition('.')[0]} of {JOB} in {tmp_path} was read")
        assert "was rolled back behind it" in lost
        assert resting_on(old) == newest_that_stands([resting_on(new), resting_on(old)])
        tick(limits=ONE)
    with pytest.raises(SourceError, match=r"cannot be read on from where it was read: .* --to start, so rows"):
        list(to_the_cut(CutSource(tmp_path, JOB, BRONZE), new.end))
    with pytest.raises(SourceError, match=f"at a cut of {JOB}, and this source reads other"):
        poll(CutSource(tmp_path, "other", BRONZE), new.end)


@pytest.mark.parametrize("rows_max", [30, 70])
def test_rows_that_a_rollback_removed_are_not_read(tick, tmp_path, rows_max):
    """A reader at an older cut skips these rows, also in a process that begins midway."""
    tick(limits=ONE)
    first = list(to_the_cut(CutSource(tmp_path, JOB, BRONZE)))
    tick(limits=ONE)
    roll_back(Warehouse(tmp_path, ProtocolPaths(JOB)), int(first[-1].cut.partition(".")[0]))
    tick()
    source = CutSource(tmp_path, JOB, BRONZE)
    later = list(to_the_cut(source, first[-1].end, rows_max=rows_max))
    paths = [part.path for piece in (*first, *later) for part in DeltaSlice.parse(piece.detail).ranges]
    shown = [file.path for file in DeltaHistory(local(tmp_path / BRONZE)).files_at(source._newest().version)]
    assert set(shown) == set(paths)
    assert 300 == sum(piece.rows for piece in (*first, *later))
    elsewhere = CutSource(tmp_path, JOB, BRONZE)
    elsewhere._upstream.newest()
    assert later[1:] == list(to_the_cut(elsewhere, later[0].end, later[0].cut, rows_max))


def test_a_warehouse_may_be_moved(tick, tmp_path, source):
    """The position names the old folder, and the source reads from the present one."""
    tick(limits=ONE)
    end = list(to_the_cut(source))[-1].end
    tick()
    moved = tmp_path.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert 0 < sum(piece.rows for piece in to_the_cut(CutSource(moved, JOB, BRONZE), end))


def test_upstream_keeps_the_cut_that_a_job_reads_on_from(tick, tmp_path, source, typed):
    """The upstream job's clean-ups keep the cut and its tables until the reader reads on, for at most 30 days."""
    notices = Notices({}, (), TickListener(), UpstreamHolds("report in /reports"))
    tick(limits=ONE)
    end = list(to_the_cut(source))[-1].end
    number = newest(tmp_path)
    gold = Cuts(tmp_path, JOB).latest().polars(str(GOLD)).collect()
    notices.complete(NotifyComplete(CheckpointId(4), ((VertexId("numbers"), SPLIT, end),)))
    for rows in (2_000, 3_000):
        tick(plan=build({"a": rows, "b": rows}), reader_grace_ms=0, table_log_keep_ms=0)
    kept = Cuts(tmp_path, JOB).at(number)
    assert_frame_equal(gold, kept.polars(str(GOLD)).collect(), check_row_order=False)
    said = typed("doctor", JOB, "--warehouse", tmp_path)[1]
    assert f"report in /reports, from cut {number}, which is kept for it until" in " ".join(said.split())
    notices.complete(NotifyComplete(CheckpointId(5), ((VertexId("numbers"), SPLIT, last(source, end)),)))
    with pytest.raises(NoSuchCutError):
        Cuts(tmp_path, JOB).at(number)
    Cuts(tmp_path, JOB).at(newest(tmp_path))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_job_that_reads_on_finds_the_files_that_were_compacted_meanwhile(tick, tmp_path, source, keeps):
    """No cut shows these files any more, since they came and went after the reserved cut. A clean-up keeps them.

    If the reading job reserves no cut, the files are deleted, and the source's error names the version.
    """
    rows = {"a": 240, "b": 240}
    many = CheckpointConfig(every_rows=60, slice_rows_max=60, compact_files_min=2)
    tick(limits=ONE, plan=build(rows, config=many))
    end = list(to_the_cut(source))[-1].end
    if keeps:
        notices = Notices({}, (), TickListener(), UpstreamHolds("report in /reports"))
        notices.complete(NotifyComplete(CheckpointId(4), ((VertexId("numbers"), SPLIT, end),)))
    before = source.rows_between(SPLIT, None, end)
    tick(plan=build(rows, config=many), reader_grace_ms=0)
    clean_up(Warehouse(tmp_path, ProtocolPaths(JOB)), 0)
    if not keeps:
        with pytest.raises(SourceError, match="is gone, before its rows of version 2 were read"):
            list(to_the_cut(source, end))
        return
    pieces = list(to_the_cut(source, end))
    assert 480 == before + sum(piece.rows for piece in pieces)
    files = {tmp_path / str(BRONZE) / each.path for piece in pieces for each in DeltaSlice.parse(piece.detail).ranges}
    assert len(files) > 3
    assert all(file.exists() for file in files)


def test_a_compaction_that_a_rollback_undid_stops_no_reader(tick, tmp_path):
    """Files of the reader's cut were merged, and a rollback restored them. The reader gets each later row once."""
    rows = {"a": 240, "b": 240}
    many = CheckpointConfig(every_rows=60, slice_rows_max=60, compact_files_min=2, retained=9)
    tick(limits=ONE, plan=build(rows, config=many))
    first = list(to_the_cut(CutSource(tmp_path, JOB, BRONZE)))
    tick(plan=build(rows, config=many))
    roll_back(Warehouse(tmp_path, ProtocolPaths(JOB)), int(first[-1].cut.partition(".")[0]))
    tick(plan=build(rows, config=many))
    log = DeltaHistory(local(tmp_path / BRONZE))
    commits = [log.commit(version) for version in range(log.newest().version + 1)]
    merged = frozenset().union(*(each.merged for each in commits))
    assert any(file.path in merged for each in commits for file in each.adds if each.removes)
    pieces = list(to_the_cut(CutSource(tmp_path, JOB, BRONZE), first[-1].end, rows_max=50))
    assert 480 == sum(piece.rows for piece in (*first, *pieces))


def newest(root):
    return Cuts(root, JOB).latest().checkpoint


def last(source, position):
    return list(to_the_cut(source, position))[-1].end


# ------------------------------------------------------------------
# Two jobs, one or both with the warehouse on an S3 server. The second job reads the cuts of the first.


@pytest.fixture
def url(store_server, monkeypatch):
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    return StoreUrl(f"s3://lake/{uuid4().hex}")


def entries(root, job):
    return CheckpointStore(Warehouse(root, ProtocolPaths(JobName(job)))).observe()[1]


def shows(up, down):
    """Assert that both tables equal the upstream cut on which the newest cut rests. Return that cut's number."""
    cut = Cuts(down, REPORT).latest()
    (below,) = cut.rests_on
    theirs = Cuts(up, SHOP).at(below.checkpoint)
    for name in SOURCES:
        there = sorted(theirs.polars(f"silver/{name}").collect()["n"])
        assert there == sorted(cut.polars(f"gold/{name}").collect()["n"])
    assert str(up) == below.warehouse
    return below.checkpoint


@pytest.mark.dear
@pytest.mark.parametrize(("up_in_store", "down_in_store"), [(True, False), (False, True), (True, True)])
def test_a_job_reads_the_cuts_of_another_one_and_follows_its_rollback(url, tmp_path, typed, up_in_store, down_in_store):
    """A store behaves like a folder: the tick after the rollback is refused before its claim.

    `rollback --follow` and a new tick then let the job go on.
    """
    near, far = (url if up_in_store else tmp_path), (url if down_in_store else tmp_path)
    up, down = near / SHOP, far / REPORT
    tick(SHOP, near, 40)
    tick(REPORT, near, warehouse=down)
    first = shows(up, down)
    assert first == Cuts(up, SHOP).latest().checkpoint
    code, out, _ = typed("cut", REPORT, "--warehouse", down)
    assert 0 == code
    assert f"rests on cut {first} of {SHOP} in {up}" in " ".join(out.split())
    code, out, _ = typed("doctor", SHOP, "--warehouse", up)
    assert f"report in {down}, from cut {first}, which is kept for it until" in " ".join(out.split())

    tick(SHOP, near, 80)
    tick(REPORT, near, warehouse=down)
    lost = shows(up, down)
    roll_back(Warehouse(up, ProtocolPaths(JobName(SHOP))), first)
    before = entries(down, REPORT)
    refused = rf"cut {lost} of shop in {up} .* rolled back behind it.*rollback report --follow"
    with pytest.raises(SourceError, match=refused):
        tick(REPORT, near, warehouse=down)
    assert before == entries(down, REPORT)
    assert 0 == typed("rollback", REPORT, "--follow", "--warehouse", down)[0]
    assert first == Cuts(down, REPORT).latest().rests_on[0].checkpoint
    tick(SHOP, near, 80)
    tick(REPORT, near, warehouse=down)
    assert shows(up, down) == Cuts(up, SHOP).latest().checkpoint
    assert list(range(80)) == sorted(Cuts(down, REPORT).latest().polars("gold/orders").collect()["n"])
    must_hold_no_secret(url, tmp_path)


def must_hold_no_secret(url: StoreUrl, folder: Path) -> None:
    """Assert that no entry, position, row, log or trace of both jobs contains the store's key."""
    found = [(each.name, storage_of(url).read(each.name).bytes) for each in storage_of(url).list("", deep=True)]
    found += [(str(file), file.read_bytes()) for file in folder.rglob("*") if file.is_file()]
    assert len(found) > 50
    for name, content in found:
        assert KEY.encode() not in content, name
        assert SECRET.encode() not in content, name


@pytest.mark.parametrize("has_read", [False, pytest.param(True, marks=pytest.mark.dear)])
def test_a_store_that_does_not_answer_stops_the_tick_before_its_claim(url, tmp_path, typed, monkeypatch, has_read):
    """Nothing is written. `rollback --follow` also fails as long as the store does not answer."""
    down = tmp_path / REPORT
    tick(SHOP, url, 40)
    if has_read:
        tick(REPORT, url, warehouse=down)
    there = entries(down, REPORT) if has_read else ()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    from jobs.storage import objects

    monkeypatch.setattr(objects, "_RETRIES", 1)
    objects._client_of.cache_clear()
    try:
        with pytest.raises(SourceError, match=r"because the store cannot be reached: check AWS_ENDPOINT_URL"):
            tick(REPORT, url, warehouse=down)
        if has_read:
            code, _, err = typed("rollback", REPORT, "--follow", "--warehouse", down)
            assert 0 != code
            assert "the store cannot be reached: check AWS_ENDPOINT_URL" in " ".join(err.split())
    finally:
        objects._client_of.cache_clear()
    assert there == (entries(down, REPORT) if down.exists() else ())


# ------------------------------------------------------------------
# An upstream and a downstream job are killed at random moments, while both run. The cuts stay whole.


ROUNDS = 4
ROWS_PER_ROUND = 300


def rests(folder):
    upstream, seen = Cuts(folder / SHOP, SHOP), []
    for cut in Cuts(folder / REPORT, REPORT).all():
        (below,) = cut.rests_on
        source = upstream.at(below.checkpoint)
        for name in SOURCES:
            theirs = sorted(source.polars(f"silver/{name}").collect()["n"])
            assert theirs == sorted(cut.polars(f"gold/{name}").collect()["n"]), (cut, below)
        seen.append(below.checkpoint)
    return seen


def killed(folder, rows, chance):
    programs = {}
    for job in (SHOP, REPORT):
        command = [sys.executable, cut_jobs.__file__, job, str(folder), str(rows)]
        root = Path(__file__).parents[3]
        programs[job] = subprocess.Popen(
            command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, text=True, stdout=subprocess.PIPE
        )
    for program in programs.values():
        program.stdout.readline()  # a checkpoint is complete, or the tick has ended
    moments = sorted((chance.uniform(0, 0.6), job) for job in programs)
    begun = time.monotonic()
    for after_s, job in moments:
        time.sleep(max(0.0, begun + after_s - time.monotonic()))
        programs[job].send_signal(signal.SIGKILL)
    for program in programs.values():
        program.communicate()
    return [program.returncode == -signal.SIGKILL for program in programs.values()]


@pytest.mark.dear
@pytest.mark.timeout(600)
def test_both_jobs_are_killed_again_and_again(tmp_path, capsys):
    """Each downstream cut shows whole upstream cuts only, also after a rollback that the downstream job follows."""
    chance = random.Random("both jobs are killed")  # noqa: S311 - a run must be repeatable
    tick(SHOP, tmp_path, 40)
    struck = [killed(tmp_path, round_ * ROWS_PER_ROUND, chance) for round_ in range(1, ROUNDS + 1)]
    assert any(up for up, _ in struck), struck
    assert any(down for _, down in struck), struck
    rests(tmp_path)
    tick(SHOP, tmp_path, ROUNDS * ROWS_PER_ROUND)
    tick(REPORT, tmp_path)
    seen = rests(tmp_path)
    assert sorted(set(seen)) == seen
    assert Cuts(tmp_path / SHOP, SHOP).latest().checkpoint == seen[-1]
    assert 0 == execute(["cut", REPORT, "--warehouse", str(tmp_path / REPORT)])
    assert f"rests on cut {seen[-1]} of {SHOP} in {tmp_path / SHOP}" in " ".join(capsys.readouterr().out.split())
    roll_back(Warehouse(tmp_path / SHOP, ProtocolPaths(JobName(SHOP))), seen[len(seen) // 2])
    with pytest.raises(SourceError, match=f"rollback report --follow --warehouse {tmp_path / REPORT}'"):
        tick(REPORT, tmp_path)
    assert 0 == execute(["rollback", REPORT, "--follow", "--warehouse", str(tmp_path / REPORT)])
    assert seen[len(seen) // 2] == Cuts(tmp_path / REPORT, REPORT).latest().rests_on[0].checkpoint
    tick(SHOP, tmp_path, ROUNDS * ROWS_PER_ROUND)
    tick(REPORT, tmp_path)
    newest = Cuts(tmp_path / REPORT, REPORT).latest()
    assert [Cuts(tmp_path / SHOP, SHOP).latest().checkpoint] == [each.checkpoint for each in newest.rests_on]
    for name in SOURCES:
        assert list(range(ROUNDS * ROWS_PER_ROUND)) == sorted(newest.polars(f"gold/{name}").collect()["n"])
