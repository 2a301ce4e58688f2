"""Checks that look at the warehouse: one cut, freshness, and who waits too long; told apart from a healthy job."""

import shutil

import dagster as dg
import polars as pl
import pytest
from deltalake import DeltaTable

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.metadata.record import CheckpointRecord, Statistics, VertexRecord
from jobs.launch import launch
from jobs.operators.spec import arrow_schema
from jobs.reading.waiting import waiting_rows, waits_in
from jobs.settings import Layer
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import state_file_schema
from jobs.tick.discovery import discover
from orchestration.approval import APPROVAL
from orchestration.deployment import Limits
from orchestration.epochs import Epoch
from orchestration.health import Look, health_results
from orchestration.naming import Naming
from orchestration.observation import Standing, standing
from orchestration.pipelines import build_definitions
from tests.orchestration.conftest import NUMBERS
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB

MINUTE_MS = 60_000
HOUR = Limits(fresh_within_ms=60 * MINUTE_MS, waiting_within_ms=60 * MINUTE_MS)


@pytest.fixture
def judged(tmp_path):
    """Judge the tiny job as it stands in this test's warehouse, so many ms after its newest checkpoint."""

    def judge(after_ms: int = 0) -> dict[tuple[str, str], dg.AssetCheckResult]:
        launched = launch(NUMBERS, Layer("", {"warehouse": tmp_path / "warehouse"}))
        plan, root = launched.plan, launched.warehouse.root
        stands = standing(launched.warehouse, plan)
        newest = None if stands.epoch is None else stands.epoch.record
        now_ms = after_ms + (0 if newest is None else newest.statistics.committed_ms)
        look = Look(
            plan=plan,
            naming=Naming(plan.job),
            root=root,
            stands=stands,
            discovered=discover(plan.sources, newest),
            now_ms=now_ms,
        )
        return {(result.asset_key.to_user_string(), result.check_name): result for result in health_results(look, HOUR)}

    return judge


def test_before_the_first_checkpoint_nothing_passes_and_nothing_is_created(judged, tmp_path):
    """For a job that never ran, every check warns and says what to do. Only nothing waits for approval."""
    results = {check: result for check, result in judged().items() if check[1] != APPROVAL}
    assert {(False, dg.AssetCheckSeverity.WARN)} == {(each.passed, each.severity) for each in results.values()}
    assert "materialize its tables" in results[GOLD, "fresh"].description
    assert not (tmp_path / "warehouse").exists()


def test_a_table_is_stale_only_while_the_sources_have_more(run_job, judged):
    """An old checkpoint is fresh enough as long as there is nothing to read; it says how much there is."""
    run_job(checkpoints=1)
    assert judged(after_ms=59 * MINUTE_MS)[GOLD, "fresh"].passed
    late = judged(after_ms=61 * MINUTE_MS)[GOLD, "fresh"]
    assert (False, 200) == (late.passed, late.metadata["rows_unread"].value)
    assert "200 rows wait at the sources: start a tick" in late.description
    run_job()
    assert judged(after_ms=61 * MINUTE_MS)[GOLD, "fresh"].passed


def test_a_table_that_is_not_at_the_cut_is_found(run_job, judged, tmp_path):
    """Files of an upsert table that differ from the checkpoint's row, and a table that is gone, fail `one_cut`."""
    run_job()
    assert {True} == {each.passed for (_, name), each in judged().items() if name == "one_cut"}
    log = tmp_path / "warehouse" / GOLD / "_delta_log"
    newest = DeltaTable(str(tmp_path / "warehouse" / GOLD)).version()
    (log / f"{newest:020d}.json").unlink()
    assert "the cut says version" in judged()[GOLD, "one_cut"].description
    shutil.rmtree(tmp_path / "warehouse" / BRONZE)
    gone = judged()[BRONZE, "one_cut"]
    assert (False, True) == (gone.passed, "the table is gone" in gone.description)


def waiting_record(root, plan, checkpoint: int, committed_ms: int, waiting: dict[str, int]) -> CheckpointRecord:
    """Return a checkpoint at which so many flights of each origin wait for their weather, its state file written."""
    spec = waits_in(plan.vertices[VertexId("silver_flights")])
    table = plan.graph.vertex(spec.vertex).tables[-1].name
    schema = state_file_schema(arrow_schema(spec.state), spec.keys)
    left = schema.field("waiting").type.value_type
    flight = dict.fromkeys(field.name for field in left)
    rows = [
        {
            "_key_group": 0,
            "origin": origin,
            "time_hour": None,
            "right": None,
            "waiting": [flight] * count,
            "_deleted": False,
        }
        for origin, count in waiting.items()
    ]
    DeltaTable.create(str(root / table), schema, mode="ignore")
    content = pl.DataFrame(rows, schema=pl.from_arrow(schema.empty_table()).schema).to_arrow().cast(schema)
    writer = StagedFiles(str(root), plan.job, Generation(1), spec.vertex, checkpoint)
    written: FileHandle = writer.write(table, content)
    base = KeyedFile(written, KeyedFileKind.BASE, 0, 127, Version(Generation(1), checkpoint))
    vertex = VertexRecord(vertex=spec.vertex, micro_batch=checkpoint, subtasks=(SubtaskSnapshot(state=(base,)),))
    return CheckpointRecord(
        job=plan.job,
        checkpoint=CheckpointId(checkpoint),
        parent=CheckpointId(checkpoint - 1),
        generation=Generation(1),
        nonce=str(checkpoint),
        max_parallelism=128,
        vertices=(vertex,),
        tables=(),
        statistics=Statistics(triggered_ms=committed_ms, committed_ms=committed_ms, rows=0),
    )


def test_rows_that_wait_since_an_old_checkpoint_are_counted(tmp_path):
    """A row that waited at a checkpoint beyond the limit and still waits has waited too long. Later rows have not."""
    plan = launch("flights", Layer("", {})).plan
    then = waiting_record(tmp_path, plan, 1, 0, {"EWR": 2, "JFK": 3})
    now = waiting_record(tmp_path, plan, 2, 61 * MINUTE_MS, {"EWR": 4, "LGA": 5})
    spec = waits_in(plan.vertices[VertexId("silver_flights")])
    assert waiting_rows(tmp_path, then.model_copy(update={"vertices": ()}), spec).is_empty()
    assert {"EWR": 2, "JFK": 3} == dict(waiting_rows(tmp_path, then, spec).select("origin", "rows_waiting").rows())
    stands = Standing((then, now), Epoch(now, (), {}), {})
    look = Look(plan=plan, naming=Naming(plan.job), root=tmp_path, stands=stands, discovered={}, now_ms=62 * MINUTE_MS)
    results = {(each.asset_key.path[-1], each.check_name): each for each in health_results(look, HOUR)}
    found = results["silver_flights", "nothing_waiting_too_long"]
    told = tuple(found.metadata[name].value for name in ("rows_waiting", "rows_waiting_too_long"))
    assert (False, (9, 2)) == (found.passed, told)
    patient = health_results(look, Limits(waiting_within_ms=63 * MINUTE_MS))
    (other,) = [each for each in patient if each.check_name == "nothing_waiting_too_long"]
    assert (True, "since when is not known" in other.description) == (other.passed, True)


def test_the_lag_of_a_pipeline_is_one_check_and_grows_only_while_rows_wait(judged, run_job):
    """With rows at the sources the lag is the newest checkpoint's age, and too much of it fails; caught up it is 0."""
    cuts = (f"_tidemark/{JOB}/cuts", "checkpoint_lag")
    assert not judged()[cuts].passed
    run_job(checkpoints=1)
    behind = judged(after_ms=61 * MINUTE_MS)[cuts]
    assert (False, 3660.0) == (behind.passed, behind.metadata["lag_s"].value)
    assert judged(after_ms=59 * MINUTE_MS)[cuts].passed
    run_job()
    caught_up = judged(after_ms=61 * MINUTE_MS)[cuts]
    assert (True, 0.0) == (caught_up.passed, caught_up.metadata["lag_s"].value)


def test_the_health_job_waits_for_a_first_tick(run_job, instance, tmp_path, monkeypatch):
    """Its schedule does nothing before the first tick. A state that is no asset is still checked."""
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(tmp_path / "warehouse"))
    definitions = build_definitions(NUMBERS, show_state=False)
    schedule = definitions.resolve_schedule_def(f"{JOB}_health_schedule")
    context = dg.build_schedule_context(instance=instance)
    assert "has never run" in schedule.evaluate_tick(context).skip_message
    run_job()
    assert 1 == len(schedule.evaluate_tick(context).run_requests)
    done = definitions.resolve_job_def(f"{JOB}_health").execute_in_process(instance=instance)
    assert {"one_cut", "fresh", "checkpoint_lag", "one_cut_by_key", APPROVAL} == {
        check.check_name for check in done.get_asset_check_evaluations()
    }
