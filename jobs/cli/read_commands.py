"""`tidemark cut` and `tidemark state`: show how to read all tables at a cut, and an operator's state there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

import polars as pl
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from checkpointing.identifiers import JobName
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.cli.errors import CommandError, ExitCode, naming_pipeline, with_pipeline
from jobs.cli.explain import prepared
from jobs.cli.naming import position_words, sinks_of, sources_of, warehouse_of
from jobs.credentials import without_credentials
from jobs.doctor.examination import Examination, examine
from jobs.doctor.findings import Finding, Section
from jobs.engine_paths import typed
from jobs.launch import catalog_settings, spark_config
from jobs.packing.archive import contents, must_hold_imported, write_archive
from jobs.pipelines.registry import project_of
from jobs.reading import Cuts, NoSuchCutError, OperatorState
from jobs.reading.cut_sql import cut_dbt, cut_sql
from jobs.reading.moments import PENDING
from jobs.reading.state_sql import DIALECTS, Dialect
from jobs.settings import Layer, resolve
from jobs.showing.checkpoints import checkpoint_as_json, checkpoints_as_json, render_checkpoints, render_timeline
from jobs.showing.cut import render_cut, render_operators, render_pending, render_state
from jobs.showing.plans import render_cleanup
from jobs.showing.quantities import count, plural, size
from jobs.sources.port import closing
from jobs.tick.cleaning import clean_up, plan_cleanup
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import Activity, JobState, must_have_run, state_of
from jobs.warehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class CutQuestion:
    """What the user asked for: which cut, and its form, which is a page, views in an SQL dialect, or dbt sources."""

    pipeline: str
    moment: str
    sql: str | None = None
    schema: str | None = None
    dbt: bool = False


def show_cut(question: CutQuestion, given: Layer, out: Console) -> None:
    """Show how to read all tables at a cut.

    Raises what `Cuts.find` raises, and CommandError for options that do not go together.
    """
    pipeline = question.pipeline
    warehouse = warehouse_of(pipeline, given)
    cuts = Cuts(warehouse.root, warehouse.paths.job)
    dialect = None if question.sql is None else _dialect_named(question.sql)
    if question.dbt and dialect is not None:
        raise CommandError("--dbt and --sql print different things: write one of them", ExitCode.USAGE)
    if question.schema is not None and dialect is None:
        raise CommandError("--schema is for the views of --sql spark or --sql duckdb", ExitCode.USAGE)
    if question.moment != PENDING:
        with naming_pipeline(pipeline, warehouse.paths.job):
            found = cuts.find(question.moment)
            if dialect is not None:
                schema = question.schema or f"{warehouse.paths.job}_cut"
                out.print(cut_sql(found, dialect, schema), soft_wrap=True, markup=False, highlight=False, end="")
            elif question.dbt:
                out.print(cut_dbt(found), soft_wrap=True, markup=False, highlight=False)
            else:
                out.print(render_cut(found, warehouse.root), soft_wrap=True)
        return
    if dialect is not None or question.dbt:
        raise CommandError("no table shows the cut that waits, so no view can: approve it first", ExitCode.USAGE)
    pending = cuts.pending()
    if pending is None:
        raise NoSuchCutError(f"no cut of {pipeline} waits for approval: 'tidemark run {pipeline} --hold' makes one")
    out.print(render_pending(pending, pipeline), soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuestion:
    """What the user asked for: operator (None: a list of operators), cut, keys, number of rows, and SQL dialect."""

    operator: str | None
    pipeline: str
    at: str
    keys: tuple[str, ...] = ()
    limit: int
    sql: str | None = None


def show_state(question: StateQuestion, given: Layer, out: Console) -> None:
    """Print an operator's state, or the SQL for it; without an operator, list the operators.

    Raises CommandError for wrong words, and what `Cuts.find` and `Cut.state` raise.
    """
    dialect = _dialect(question)
    warehouse = warehouse_of(question.pipeline, given)
    cut = Cuts(warehouse.root, warehouse.paths.job).find(question.at)
    if question.operator is None:
        out.print(render_operators(cut, [cut.state(each) for each in cut.operators]), soft_wrap=True)
        return
    state = cut.state(question.operator)
    if dialect is not None:
        out.print(state.sql(dialect), soft_wrap=True, markup=False)
        return
    rows = _of_keys(state, question.keys)
    shown, total = pl.collect_all([rows.sort(list(state.keys)).head(question.limit), rows.select(pl.len())])
    out.print(render_state(cut, state, shown, int(total.item())), soft_wrap=True)


def _dialect(question: StateQuestion) -> Dialect | None:
    if question.sql is None:
        return None
    if question.operator is None:
        raise CommandError("--sql needs an operator: 'tidemark state' lists them", ExitCode.USAGE)
    if question.keys:
        raise CommandError(
            "--sql prints the query of the whole state: leave --key out, and add your condition to the query",
            ExitCode.USAGE,
        )
    return _dialect_named(question.sql)


def _dialect_named(word: str) -> Dialect:
    found = next((each for each in DIALECTS if each == word), None)
    if found is None:
        raise CommandError(f"--sql {word}: write {' or '.join(get_args(Dialect))}", ExitCode.USAGE)
    return found


def _of_keys(state: OperatorState, words: Sequence[str]) -> pl.LazyFrame:
    rows = state.polars()
    types = rows.collect_schema()
    for name, text in _wanted(state, words).items():
        rows = rows.filter(pl.col(name).eq_missing(_literal(state, name, text, types[name])))
    return rows


def _wanted(state: OperatorState, words: Sequence[str]) -> Mapping[str, str]:
    """Return the typed text of each key column. The user types `origin=EWR`, or only `EWR` for a single key column."""
    wanted: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if len(state.keys) == 1 and not (equals and name in state.keys):
            name, text = state.keys[0], word
        if name not in state.keys or not (equals or len(state.keys) == 1):
            example = " ".join(f"--key {key}=VALUE" for key in state.keys)
            raise CommandError(
                f"--key {word}: the key of {state.operator} is {', '.join(state.keys) or 'unknown: it has no rows'}; "
                f"write {example or 'no --key'}",
                ExitCode.USAGE,
            )
        wanted[name] = text
    return wanted


def _literal(state: OperatorState, name: str, text: str, kind: pl.DataType) -> pl.Expr:
    """Return a typed value in the key column's type. Times are in ISO 8601, and in UTC unless they name a zone."""
    try:
        value = pl.Series([text])
        if isinstance(kind, pl.Datetime):
            value = value.str.to_datetime(time_unit=kind.time_unit, time_zone=kind.time_zone, strict=True)
        elif isinstance(kind, pl.Boolean):
            value = pl.Series([{"true": True, "false": False}[text.lower()]])
        else:
            value = value.cast(kind, strict=True)
        return pl.lit(value.item(), dtype=kind)
    except (pl.exceptions.PolarsError, KeyError) as error:
        raise CommandError(
            f"--key {name}={text}: {name} of {state.operator} is {kind}, and {text!r} is none", ExitCode.USAGE
        ) from error


# ------------------------------------------------------------------
# `tidemark package`: builds the archive that brings this environment to the workers of a cluster.


def package(reference: str, to: Path | None, given: Layer, out: Console) -> None:
    """Write the archive and print what to type next. Raises NotPackableError, and what `prepared` raises."""
    started = prepared(reference, given)
    with closing(started.plan.sources):
        project = project_of(reference)
        packed = contents(project.root if project else None)
        must_hold_imported(packed)
    made = write_archive(packed, to or Path(f"{started.plan.job}-workers.tar.gz"))
    out.print(f"{made.path}: {count(made.files)} files, {size(made.bytes)}", soft_wrap=True)
    out.print(
        f"each worker needs {made.python} on its PATH, on the same kind of machine, and no package", soft_wrap=True
    )
    run = f"tidemark run {reference} --spark-master spark://HOST:PORT --set spark_archive={typed(made.path)}"
    out.print(Text(f"go on with: {run}"), soft_wrap=True)


# ------------------------------------------------------------------
# `tidemark checkpoints list` and `tidemark checkpoints show`. They read entries and change nothing.


def list_checkpoints(pipeline: str, given: Layer, out: Console, *, as_json: bool = False) -> None:
    """Show the retained and the failed checkpoints of a job, newest first, and who holds it; raise NeverRunError."""
    warehouse = warehouse_of(pipeline, given)
    rows, cuts = _rows(warehouse), CutStore(warehouse).entries()
    holder = _holder(state_of(warehouse, rows))
    if as_json:
        found = checkpoints_as_json(warehouse.paths.job, rows, cuts, holder)
        out.print(json.dumps(found, indent=1), soft_wrap=True, markup=False, highlight=False)
    else:
        out.print(render_checkpoints(warehouse.paths.job, rows, cuts, holder))


def show_checkpoint(
    pipeline: str,
    checkpoint: int | None,
    given: Layer,
    out: Console,
    *,
    every_subtask: bool = False,
    as_json: bool = False,
) -> None:
    """Show the timeline of one epoch (None: the newest), and for each vertex its slowest subtasks or all of them.

    Raises NeverRunError, and CommandError for a checkpoint that is not retained.
    """
    warehouse = warehouse_of(pipeline, given)
    record = _chosen(warehouse.paths.job, _newest_first(_rows(warehouse)), checkpoint)
    cuts = CutStore(warehouse).entries()
    if as_json:
        found = checkpoint_as_json(warehouse.paths.job, record, cuts)
        out.print(json.dumps(found, indent=1), soft_wrap=True, markup=False, highlight=False)
        return
    published = cuts.get(record.checkpoint)
    at_ms, versions = (None, {}) if published is None else (published.published_at_ms, published.versions)
    words = position_words(pipeline, given)
    out.print(render_timeline(record, at_ms, versions, words, every_subtask=every_subtask))


def _rows(warehouse: Warehouse) -> tuple[Row, ...]:
    must_have_run(warehouse)
    return CheckpointStore(warehouse).observe()[1]


def _newest_first(rows: tuple[Row, ...]) -> list[CheckpointRecord]:
    records = (row for row in rows if isinstance(row, CheckpointRecord))
    return sorted(records, key=lambda record: record.checkpoint, reverse=True)


def _chosen(job: JobName, records: list[CheckpointRecord], checkpoint: int | None) -> CheckpointRecord:
    """Return that checkpoint or savepoint, or the newest checkpoint for None. Raise CommandError if there is none."""
    if not records:
        said = f"{job} has completed no checkpoint yet: run 'tidemark run {job}' until it has one"
        raise CommandError(said, ExitCode.NOT_THERE)
    if checkpoint is None:
        return next((record for record in records if record.commits and not record.abandoned), records[0])
    found = next((record for record in records if record.checkpoint == checkpoint), None)
    if found is None:
        raise CommandError(
            f"checkpoint {checkpoint} of {job} is not retained: there are "
            f"{', '.join(str(record.checkpoint) for record in records)}; the setting 'retained' says how many are kept",
            ExitCode.NOT_THERE,
        )
    return found


def _holder(state: JobState) -> str:
    if state.activity is not Activity.AT_REST:
        return f"held by {state.holder}, generation {state.generation}"
    if state.holder is None:
        return f"nobody holds the job: {state.why}"
    return f"{state.holder} held the job as generation {state.generation} and has died: the next tick takes over"


# ------------------------------------------------------------------
# `tidemark doctor`: prints a page for people or JSON for programs, and ends with an exit code for scripts.


_VERDICTS: Final = {ExitCode.DONE: "healthy", ExitCode.FAILED: "findings", ExitCode.USAGE: "could_not_look"}


def doctor(pipeline: str, given: Layer, out: Console, *, verify: bool, as_json: bool) -> ExitCode:
    """Show whether a job is healthy: 0 if it is, 1 with findings, 2 if it cannot be examined, 4 if it never ran."""
    settings = resolve({}, given)
    warehouse = warehouse_of(pipeline, given)
    found = examine(
        warehouse,
        settings.reader_grace_ms,
        spark_config(settings),
        verify=verify,
        sources=lambda: sources_of(pipeline, given),
        sinks=lambda: sinks_of(pipeline, given),
        catalog=catalog_settings(settings),
    )
    found = _named(found, pipeline)
    if as_json:
        out.print(json.dumps(_document(found), indent=1), soft_wrap=True, markup=False, highlight=False)
    else:
        out.print(render_examination(found), soft_wrap=True)
    return _code(found) if found.has_run else ExitCode.NOT_THERE


def _named(found: Examination, typed: str) -> Examination:
    """Return the examination with commands that name the pipeline as the user typed it."""

    def section(was: Section) -> Section:
        said = [
            [without_credentials(with_pipeline(text, typed, found.job)) for text in (each.what, each.repair)]
            for each in was.findings
        ]
        seen = tuple((name, without_credentials(value)) for name, value in was.seen)
        return replace(was, seen=seen, findings=tuple(Finding(what, repair) for what, repair in said))

    return replace(found, sections=tuple(map(section, found.sections)))


def _code(found: Examination) -> ExitCode:
    """Return the exit code for a job that has run."""
    if not found.looked:
        return ExitCode.USAGE
    return ExitCode.FAILED if found.findings else ExitCode.DONE


def render_examination(found: Examination) -> RenderableType:
    """Return the page: what was seen, then each finding with the command that repairs it."""
    page = Table.grid(padding=(0, 2))
    for section in found.sections:
        page.add_row(Text(section.name, style="bold"), "", "")
        for name, value in section.seen:
            page.add_row("", name, Text(value))
    parts: list[RenderableType] = [page, _verdict(found)]
    parts += [Text(f"not looked at: {each}", style="dim") for section in found.sections for each in section.not_looked]
    for number, finding in enumerate(found.findings, start=1):
        parts.append(Text(f"{number}. {finding.what}"))
        parts.append(Text(f"   repair: {finding.repair}", style="bold"))
    return Group(*parts)


def _verdict(found: Examination) -> Text:
    where = f"{found.job} in {found.warehouse}"
    if not found.looked:
        return Text(f"{where} could not be looked at", style="bold red")
    if found.findings:
        return Text(f"{where}: {plural(len(found.findings), 'finding')}", style="bold yellow")
    skipped = ", except what was not looked at" if any(section.not_looked for section in found.sections) else ""
    return Text(f"{where} is healthy{skipped}", style="bold green")


def _document(found: Examination) -> dict[str, object]:
    return {
        "job": str(found.job),
        "warehouse": found.warehouse,
        "verdict": _VERDICTS[_code(found)],
        "sections": {section.name: dict(section.seen) for section in found.sections},
        "values": {section.name: dict(section.values) for section in found.sections},
        "not_looked": {section.name: list(section.not_looked) for section in found.sections if section.not_looked},
        "findings": [
            {"section": section.name, "what": finding.what, "repair": finding.repair}
            for section in found.sections
            for finding in section.findings
        ],
    }


# ------------------------------------------------------------------
# `tidemark cleanup`: deletes unneeded files, or shows them.


def cleanup(pipeline: str, given: Layer, out: Console, *, dry_run: bool) -> ExitCode:
    """Delete a job's unneeded files, or with `dry_run` show them. Return FAILED if a file could not be deleted."""
    grace_ms = resolve({}, given).reader_grace_ms
    warehouse = warehouse_of(pipeline, given)
    done = plan_cleanup(warehouse, grace_ms) if dry_run else clean_up(warehouse, grace_ms)
    out.print(render_cleanup(warehouse.paths.job, done, grace_ms, dry_run=dry_run), soft_wrap=True)
    return ExitCode.FAILED if done.notes else ExitCode.DONE
