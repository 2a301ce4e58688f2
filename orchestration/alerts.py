"""Notifies a user's function of what is wrong with a pipeline, once for each problem.

The sensor reads the warehouse and Dagster's runs. It starts no run and no Spark, and changes nothing.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError

from checkpointing.commit.at_rest import held_cut
from checkpointing.completeness import late_rows
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Row
from jobs.credentials import without_credentials
from jobs.launch import launch
from jobs.operators.in_time.windows import LATE
from jobs.pipeline.job_plan import JobPlan
from jobs.pipelines.registry import BrokenPipelineError, PipelineReference, project_of
from jobs.settings import Layer, resolve
from jobs.showing.quantities import plural
from jobs.sources.port import SourceError
from jobs.storage.address import Root, absolute
from jobs.tick.discovery import discover
from jobs.user_code import message_of
from jobs.warehouse.job_stores import Activity, last_failure, state_of
from jobs.warehouse.warehouse import Warehouse
from orchestration.approval import approval_result
from orchestration.deployment import Limits, arguments
from orchestration.health import COMPLETE, LAG, Look, freshness_results
from orchestration.naming import Naming, prefix_parts
from orchestration.observation import Standing, standing
from orchestration.pipelines import called
from orchestration.tags import JOB_TAG

LOOK_EVERY_S: Final = 60
_RUNS: Final = 20
"""How many of the newest failed runs the sensor reads."""

_TRACEBACK: Final = "\nTraceback (most recent call last)"

AlertKind = Literal["tick_failed", "cut_held", "lag", "late_rows", "freshness"]
_KINDS: Final[Mapping[str, AlertKind]] = {LAG: "lag", COMPLETE: "freshness"}
"""From a check's name to the kind of the alerts that come from the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A problem of a pipeline. `subject` is the table, vertex, checkpoint or run that has the problem.

    `message` is a sentence for a user, with the way out where one is known. It contains no password.
    """

    kind: AlertKind
    pipeline: str
    subject: str
    message: str

    @property
    def key(self) -> str:
        """What distinguishes this alert from others."""
        return f"{self.kind} {self.subject}"


class _Told(BaseModel):
    """The sensor's memory: time and checkpoint of its first evaluation, and the alerts of problems that still exist."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    since_s: float
    since_checkpoint: int
    keys: tuple[str, ...] = ()


def alert_sensor(  # noqa: PLR0913 - each is a choice of the project's, and all but two have a default
    pipeline: PipelineReference,
    *,
    notify: Callable[[Alert], object],
    kinds: Sequence[AlertKind] = ("tick_failed", "cut_held", "lag", "late_rows", "freshness"),
    limits: Limits | None = None,
    key_prefix: str | Sequence[str] = (),
    warehouse: str | Path | None = None,
    data: Root | str | None = None,
    settings: Mapping[str, object] | None = None,
) -> dg.SensorDefinition:
    """Return a sensor that calls `notify` with each `Alert` once. It is on from the start.

    - `tick_failed`: a run of the pipeline failed in Dagster, a tick elsewhere failed, or its process died.
    - `cut_held`: a cut waits for approval.
    - `lag`: the sources have more, and the newest checkpoint is older than `limits.fresh_within_ms`.
    - `freshness`: a table with event times is complete until a time that is more than `limits.fresh_within_ms` ago.
    - `late_rows`: an operator got late rows, for each checkpoint that is retained.

    `lag`, `freshness` and `cut_held` are reported again if the problem has ended in between. The first evaluation
    reports the problems that exist then, but no late rows or runs from before. If `notify` raises, the alert is sent
    again at the next look, and the sensor's tick shows the error. The other arguments are those of `build_definitions`.
    """
    given = arguments({**(settings or {}), "warehouse": warehouse, "data": data})
    plan = _plan(pipeline, given)
    naming = Naming(called(pipeline) if plan is None else plan.job, prefix_parts(key_prefix))

    @dg.sensor(
        name=f"{naming.name}_alerts",
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Calls {getattr(notify, '__name__', 'notify')} for each thing that is wrong with {naming.name}.",
    )
    def alerts(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        planned = plan or launch(pipeline, given).plan
        place = _place(pipeline, given, planned)
        stands = standing(place, planned)
        before = _remembered(context.cursor, stands)
        found, unknown = _wrong(place, planned, naming, limits or Limits(), stands, before, context.instance)
        return _tell(notify, [each for each in found if each.kind in kinds], before, unknown)

    return alerts


def _place(pipeline: PipelineReference, given: Layer, plan: JobPlan) -> Warehouse:
    root = resolve({}, given, project=project_of(pipeline)).warehouse
    return Warehouse(absolute(root), ProtocolPaths(plan.job))


def _plan(pipeline: PipelineReference, given: Layer) -> JobPlan | None:
    """Return the plan. None: the columns of a source cannot be read now, so each evaluation tries again."""
    try:
        return launch(pipeline, given).plan
    except (SourceError, BrokenPipelineError) as error:
        if isinstance(error, BrokenPipelineError) and not isinstance(error.__cause__, SourceError):
            raise
        return None


def _remembered(cursor: str | None, stands: Standing) -> _Told:
    try:
        return _Told.model_validate_json(cursor or "")
    except ValidationError:
        return _Told(since_s=time.time(), since_checkpoint=stands.checkpoint)


def _tell(notify: Callable[[Alert], object], found: Sequence[Alert], before: _Told, unknown: str) -> dg.SensorResult:
    """Call `notify` for new alerts. If the first call raises, the sensor fails with its error.

    While it is `unknown` whether the pipeline is fresh, reported alerts about that stay in the sensor's memory.
    """
    holds = {each.key for each in found}
    new = [each for each in found if each.key not in before.keys]
    still = [key for key in before.keys if key in holds or (unknown and key.split()[0] in _KINDS.values())]
    told: list[str] = []
    said = "everything that is wrong was told before" if found else "nothing is wrong"
    for alert in new:
        try:
            notify(alert)
        except Exception as error:
            if not told:
                raise
            said = f"told {', '.join(told)}. The next one could not be told: {message_of(error)}"
            break
        told.append(alert.key)
        said = f"told {', '.join(told)}"
    after = before.model_copy(update={"keys": (*still, *told)})
    return dg.SensorResult(skip_reason=said + unknown, cursor=after.model_dump_json())


# ------------------------------------------------------------------
# What is wrong.


def _wrong(  # noqa: PLR0917 - what is known of a pipeline
    warehouse: Warehouse,
    plan: JobPlan,
    naming: Naming,
    limits: Limits,
    stands: Standing,
    before: _Told,
    instance: dg.DagsterInstance,
) -> tuple[list[Alert], str]:
    """Return all problems, and why it is unknown whether the pipeline is fresh. That text is empty if it is known."""
    found = [*_failed(warehouse, naming, stands.rows, instance, before), *_of_cuts(naming, stands, before)]
    try:
        return [*found, *_of_checks(warehouse, plan, naming, stands, limits)], ""
    except SourceError as error:
        return found, f"; no source says how far behind {plan.job} is: {without_credentials(str(error))}"


def _failed(
    warehouse: Warehouse, naming: Naming, rows: tuple[Row, ...], instance: dg.DagsterInstance, before: _Told
) -> Iterator[Alert]:
    """Yield the ticks that failed: runs of Dagster, and the newest tick if the job's entries say that it failed."""

    def alert(subject: str, message: str) -> Alert:
        said = without_credentials(message.partition(_TRACEBACK)[0].strip())
        return Alert(kind="tick_failed", pipeline=naming.job, subject=subject, message=said)

    tagged = dg.RunsFilter(tags={JOB_TAG: naming.name}, statuses=[dg.DagsterRunStatus.FAILURE])
    for record in instance.get_run_records(tagged, limit=_RUNS):
        run = record.dagster_run
        if (record.end_time or 0) >= before.since_s:
            yield alert(f"run {run.run_id}", f"run {run.run_id} of {run.job_name} failed: {_why(instance, run.run_id)}")
    state, failure = state_of(warehouse, rows), last_failure(rows)
    claims = {row.generation: row.holder for row in rows if isinstance(row, Claim)}
    if failure is not None and failure.ended is not None and state.activity is not Activity.RUNNING:
        holder, ended = claims.get(failure.generation), failure.ended
        if holder is None or holder.dagster_run is None:
            why = ended.message or ("" if ended.reason is None else ended.reason.message)
            yield alert(f"generation {failure.generation}", f"the tick of {naming.job}, {holder}, failed: {why}")
    elif state.holder is not None and state.activity is not Activity.RUNNING and state.holder.dagster_run is None:
        way_out = f"type: tidemark run {naming.job}"
        yield alert(f"generation {state.generation}", f"{naming.job}: {state.why}. To go on, {way_out}")


def _why(instance: dg.DagsterInstance, run: str) -> str:
    """Return why the first failed step of a run failed."""
    for record in instance.get_records_for_run(run, of_type=dg.DagsterEventType.STEP_FAILURE, limit=1).records:
        event = record.event_log_entry.dagster_event
        failure = None if event is None else event.step_failure_data
        if failure is not None and failure.user_failure_data is not None:
            return str(failure.user_failure_data.description)
        if failure is not None and failure.error is not None:
            return (failure.error.cause or failure.error).message.strip()
    return "its page says why"


def _of_cuts(naming: Naming, stands: Standing, before: _Told) -> Iterator[Alert]:
    """Yield the alerts for a cut that waits for approval, and for late rows since the first evaluation."""
    held = held_cut(stands.rows)
    if held is not None:
        said = str(approval_result(naming, stands.rows).description)
        yield Alert(kind="cut_held", pipeline=naming.job, subject=f"cut {held.checkpoint}", message=said)
    for record in stands.records:
        late = late_rows(record, LATE) if record.checkpoint > before.since_checkpoint else {}
        for vertex, rows in late.items():
            if rows:
                said = f"{vertex} of {naming.job} got {plural(rows, 'late row')} in checkpoint {record.checkpoint}"
                subject = f"{vertex} in checkpoint {record.checkpoint}"
                yield Alert(kind="late_rows", pipeline=naming.job, subject=subject, message=said)


def _of_checks(
    warehouse: Warehouse, plan: JobPlan, naming: Naming, stands: Standing, limits: Limits
) -> Iterator[Alert]:
    """Yield an alert for each freshness check that does not pass. Raises SourceError."""
    discovered = discover(plan.sources, None if stands.epoch is None else stands.epoch.record)
    look = Look(
        plan=plan,
        naming=naming,
        root=warehouse.root,
        stands=stands,
        discovered=discovered,
        now_ms=time.time_ns() // 1_000_000,
    )
    for name, subject, result in freshness_results(look, limits):
        if not result.passed:
            said = (
                f"{subject} of {plan.job}: {result.description}"
                if name == COMPLETE
                else f"{plan.job}: {result.description}"
            )
            yield Alert(kind=_KINDS[name], pipeline=naming.job, subject=subject, message=said)
