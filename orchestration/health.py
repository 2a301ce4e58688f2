"""Checks of the warehouse: whether all tables show one cut, whether the cut is fresh, and whether rows wait too long.

The checks need no Spark. They run after every tick, and can run alone at any time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from checkpointing.commit.live_files import live_files
from checkpointing.completeness import complete_until_ms
from checkpointing.event_time import END_OF_TIME
from checkpointing.graph import Table, TableMode, Vertex
from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.tables import keeps_time
from jobs.reading.waiting import ROWS, still_waiting, waiting_rows, waits_in
from jobs.showing.quantities import count, moment, seconds
from jobs.storage.address import Root
from jobs.tick.discovery import Discovered
from jobs.warehouse.cuts_table import event_time
from jobs.warehouse.tables import TableShown
from orchestration.approval import approval_result, approval_spec
from orchestration.cut_line import broken_rules
from orchestration.deployment import Limits
from orchestration.naming import Naming
from orchestration.observation import Standing

ONE_CUT: Final = "one_cut"
FRESH: Final = "fresh"
COMPLETE: Final = "complete"
LAG: Final = "checkpoint_lag"
WAITING: Final = "nothing_waiting_too_long"
_KEYS_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the checks read: the job in its warehouse, the unread rows of its sources, and the time in ms."""

    plan: JobPlan
    naming: Naming
    root: Root
    stands: Standing
    discovered: Mapping[VertexId, Discovered]
    now_ms: int

    @property
    def behind(self) -> bool:
        """Whether the sources have rows that the newest checkpoint does not hold."""
        return any(found.any for found in self.discovered.values())

    @property
    def rows_unread(self) -> int | None:
        """How many rows of the sources are unread. None if a source does not know."""
        known = [found.rows for found in self.discovered.values() if found.rows is not None]
        return sum(known) if len(known) == len(self.discovered) else None


def health_specs(plan: JobPlan, naming: Naming, limits: Limits) -> tuple[dg.AssetCheckSpec, ...]:
    """Return `one_cut` for each table, `fresh` for each output, `nothing_waiting_too_long` where rows may wait.

    An output that keeps event time has `complete` too.

    The table of cuts has `checkpoint_lag` and `nothing_waits_for_approval`, for the whole pipeline.
    """
    lag = dg.AssetCheckSpec(LAG, asset=naming.cuts_key(), description=_about(LAG, limits))
    return (
        lag,
        approval_spec(naming),
        *(
            dg.AssetCheckSpec(
                _shown_as(naming, name, table), asset=_asset(naming, table), description=_about(name, limits)
            )
            for vertex in plan.graph.operators()
            for table in vertex.tables
            for name in _names(plan, vertex, table)
        ),
    )


def freshness_results(look: Look, limits: Limits) -> Iterator[tuple[str, str, dg.AssetCheckResult]]:
    """Yield the pipeline's check LAG and its tables' checks COMPLETE, each as the check's name, subject and result.

    Yield nothing before the first checkpoint.
    """
    newest = look.stands.epoch
    if newest is None:
        return
    cuts = dg.AssetCheckKey(look.naming.cuts_key(), LAG)
    yield LAG, str(look.plan.job), _lag(cuts, newest.record, look, limits)
    for vertex in look.plan.graph.operators():
        for table in vertex.tables:
            if COMPLETE in _names(look.plan, vertex, table):
                yield COMPLETE, str(table.name), _result(COMPLETE, vertex, table, look, limits, ())


def health_results(look: Look, limits: Limits) -> Iterator[dg.AssetCheckResult]:
    """Yield a result for each of `health_specs`. Raises StateFileError for a state file that cannot be read."""
    rules = broken_rules(look.stands)
    cuts = dg.AssetCheckKey(look.naming.cuts_key(), LAG)
    yield _never(cuts, look) if look.stands.epoch is None else _lag(cuts, look.stands.epoch.record, look, limits)
    yield approval_result(look.naming, look.stands.rows)
    for vertex in look.plan.graph.operators():
        for table in vertex.tables:
            for name in _names(look.plan, vertex, table):
                yield _result(name, vertex, table, look, limits, rules)


def _asset(naming: Naming, table: Table) -> dg.AssetKey:
    """Return the asset that shows a table's checks: its own, or the table of cuts if a state is not an asset."""
    return naming.table_key(table.name) if naming.shows(table) else naming.cuts_key()


def _shown_as(naming: Naming, name: str, table: Table) -> str:
    """Return a check's name. If the table of cuts shows the check, the name includes the operator."""
    return name if naming.shows(table) else f"{name}_{table.name.rpartition('/')[2]}"


def _names(plan: JobPlan, vertex: Vertex, table: Table) -> Iterator[str]:
    yield ONE_CUT
    if table.mode is not TableMode.STATE:
        yield FRESH
        if keeps_time(plan.graph, vertex) and plan.graph.rows_wait_ms(vertex.id) is not None:
            yield COMPLETE
    elif waits_in(plan.vertices[vertex.id]) is not None:
        yield WAITING


def _about(name: str, limits: Limits) -> str:
    return {
        ONE_CUT: "The table shows the newest checkpoint, like all others: it is at the Delta version of the cut, and "
        "has exactly the checkpoint's files. The retained checkpoints form one line.",
        FRESH: (
            f"The newest checkpoint is at most {seconds(limits.fresh_within_ms)} old, or the sources have no new rows."
        ),
        COMPLETE: "The table has all rows up to an event time that is at most "
        f"{seconds(limits.fresh_within_ms)} ago, or no more rows can come.",
        LAG: "How far the tables are behind the sources. If the sources have rows that are in no checkpoint yet, the "
        f"lag is the age of the newest checkpoint, else 0. It may be at most {seconds(limits.fresh_within_ms)}.",
        WAITING: "No row has waited for its counterpart since a retained checkpoint that is more than "
        f"{seconds(limits.waiting_within_ms)} old.",
    }[name]


def _result(
    name: str, vertex: Vertex, table: Table, look: Look, limits: Limits, rules: tuple[str, ...]
) -> dg.AssetCheckResult:
    check = dg.AssetCheckKey(_asset(look.naming, table), _shown_as(look.naming, name, table))
    newest = look.stands.epoch
    if newest is None:
        return _never(check, look)
    if name == ONE_CUT:
        return _one_cut(check, vertex, table, look, newest.record, rules)
    if name == FRESH:
        return _lag(check, newest.record, look, limits)
    if name == COMPLETE:
        return _complete(check, table, newest.record, look, limits)
    return _waiting(check, vertex, newest.record, look, limits)


def _one_cut(
    check: dg.AssetCheckKey, vertex: Vertex, table: Table, look: Look, newest: CheckpointRecord, rules: tuple[str, ...]
) -> dg.AssetCheckResult:
    versions = {} if look.stands.epoch is None else look.stands.epoch.versions
    recorded = versions.get(table.name)
    seen = look.stands.tables.get(table.name)
    wrong = [*_wrong(vertex, table, newest, seen, recorded), *rules]
    return dg.AssetCheckResult(
        passed=not wrong,
        asset_key=check.asset_key,
        check_name=check.name,
        description="; ".join(wrong) or f"the table is at checkpoint {newest.checkpoint}, as all others are",
        metadata={
            "newest_checkpoint": newest.checkpoint,
            "shows_checkpoint": 0 if seen is None else int(seen.shows),
            "delta_version": 0 if seen is None else seen.version,
            "delta_version_of_cut": "not recorded" if recorded is None else recorded,
        },
    )


def _wrong(
    vertex: Vertex, table: Table, newest: CheckpointRecord, seen: TableShown | None, recorded: int | None
) -> Iterator[str]:
    """Yield why a table is not at the newest checkpoint. An unchanged table can show an older checkpoint."""
    if recorded is None:
        yield f"checkpoint {newest.checkpoint} is committed, its cut is not recorded yet: the next tick publishes it"
        return
    if seen is None or recorded > seen.version:
        yield f"the cut says version {recorded}, and the table {'is gone' if seen is None else f'is at {seen.version}'}"
        return
    changed = any(written.table == table.name for written in newest.tables)
    if changed and seen.shows < newest.checkpoint:
        yield f"checkpoint {newest.checkpoint} changes the table, which shows {seen.shows}"
    record = next((each for each in newest.vertices if each.vertex == vertex.id), None)
    if record is not None and seen.at_cut is not None:
        wanted = {file.path for file in live_files(table, record)}
        if wanted != seen.at_cut:
            lacks, more = len(wanted - seen.at_cut), len(seen.at_cut - wanted)
            yield f"at its cut the table lacks {lacks} of the checkpoint's files and has {more} others"


def _warned(
    check: dg.AssetCheckKey, description: str, *, passed: bool, metadata: Mapping[str, Any] | None = None
) -> dg.AssetCheckResult:
    """Return a result that is a warning if the check does not pass."""
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=check.asset_key,
        check_name=check.name,
        severity=dg.AssetCheckSeverity.WARN,
        description=description,
        metadata=metadata,
    )


def _never(check: dg.AssetCheckKey, look: Look) -> dg.AssetCheckResult:
    said = f"{look.plan.job} has completed no checkpoint in {look.root} yet: materialize its tables"
    return _warned(check, said, passed=False)


def _lag(check: dg.AssetCheckKey, newest: CheckpointRecord, look: Look, limits: Limits) -> dg.AssetCheckResult:
    age_ms = max(look.now_ms - newest.statistics.committed_ms, 0)
    rows = look.rows_unread
    passed = age_ms <= limits.fresh_within_ms or not look.behind
    unread = "rows" if rows is None else f"{count(rows)} rows"
    behind = f"{unread} wait at the sources" if look.behind else "the sources have nothing new"
    way_out = "" if passed else ": start a tick, or switch the schedule on"
    return _warned(
        check,
        f"checkpoint {newest.checkpoint} is {seconds(age_ms)} old, and {behind}{way_out}",
        passed=passed,
        metadata={
            "lag_s": dg.MetadataValue.float(round(age_ms / 1000, 1) if look.behind else 0.0),
            "age_s": dg.MetadataValue.float(round(age_ms / 1000, 1)),
            **({} if rows is None else {"rows_unread": dg.MetadataValue.int(rows)}),
            "committed_at": dg.MetadataValue.timestamp(newest.statistics.committed_ms / 1000),
        },
    )


def _complete(
    check: dg.AssetCheckKey, table: Table, newest: CheckpointRecord, look: Look, limits: Limits
) -> dg.AssetCheckResult:
    """Return whether a table is fresh by event time. When its rows came does not matter."""
    until_ms = complete_until_ms(newest, table.name)
    if until_ms is None:
        return _warned(check, f"no row of it had an event time by checkpoint {newest.checkpoint}", passed=False)
    if until_ms == END_OF_TIME:
        return _warned(check, "it is complete for ever", passed=True)
    behind_ms = max(look.now_ms - until_ms, 0)
    return _warned(
        check,
        f"it is complete until {event_time(until_ms):%Y-%m-%d %H:%M:%S} UTC, {seconds(behind_ms)} ago",
        passed=behind_ms <= limits.fresh_within_ms,
        metadata={
            "event_time_lag_s": dg.MetadataValue.float(round(behind_ms / 1000, 1)),
            "complete_until": dg.MetadataValue.timestamp(event_time(until_ms)),
        },
    )


def _waiting(
    check: dg.AssetCheckKey, vertex: Vertex, newest: CheckpointRecord, look: Look, limits: Limits
) -> dg.AssetCheckResult:
    spec = waits_in(look.plan.vertices[vertex.id])
    if spec is None:
        raise ValueError(f"nothing waits in vertex {vertex.id}")
    now = waiting_rows(look.root, newest, spec)
    waits = int(now[ROWS].sum())
    since = _newest_before(look.stands.records, look.now_ms - limits.waiting_within_ms)
    late = 0 if since is None else still_waiting(waiting_rows(look.root, since, spec), now, spec.keys)
    if since is None:
        oldest = min(look.stands.records, key=lambda record: record.checkpoint)
        compared = (
            f"since when is not known: the oldest retained checkpoint is of {moment(oldest.statistics.committed_ms)}"
        )
    else:
        compared = f"{count(late)} of them since before {moment(since.statistics.committed_ms)}"
    keys = now.sort(ROWS, descending=True).head(_KEYS_SHOWN)
    return _warned(
        check,
        f"{count(waits)} rows wait for their counterpart, {compared}",
        passed=late == 0,
        metadata={
            "rows_waiting": dg.MetadataValue.int(waits),
            "rows_waiting_too_long": dg.MetadataValue.int(late),
            "keys": dg.MetadataValue.json(
                [{name: str(value) for name, value in row.items()} for row in keys.to_dicts()]
            ),
        },
    )


def _newest_before(records: tuple[CheckpointRecord, ...], at_ms: int) -> CheckpointRecord | None:
    before = [record for record in records if record.statistics.committed_ms <= at_ms]
    return max(before, key=lambda record: record.checkpoint, default=None)
