"""Checks a job's entries: its last cut and its age, the holder, an unpublished checkpoint, unanswered requests."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, assert_never

from checkpointing.commit.at_rest import held_cut
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.outside_sinks import SinkTransaction
from checkpointing.completeness import closes_at_ms, first_due_ms, split_held_back_by
from checkpointing.event_time import BEFORE_TIME
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, InputTimeRecord, Release, Row, VertexRecord
from jobs.doctor.findings import Finding, Section, command
from jobs.reading.moments import shown
from jobs.showing.quantities import seconds
from jobs.sinks.port import TableSink, TwoPhaseSink
from jobs.user_code import sentence_of
from jobs.warehouse.cuts_table import Cut, ReservationStore, event_time
from jobs.warehouse.job_stores import Activity, JobState, last_failure
from jobs.warehouse.lease import is_alive
from jobs.warehouse.outside_publishing import NO_SINKS, out_of_step
from jobs.warehouse.requests import RequestFolder, Unreadable
from jobs.warehouse.warehouse import Warehouse

UNANSWERED_MS: Final = 60_000
"""A running tick looks for requests four times a second. So a request that is older than this will stay unanswered."""

_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


def job_section(
    warehouse: Warehouse, rows: tuple[Row, ...], cuts: Mapping[CheckpointId, Cut], state: JobState
) -> Section:
    """Return the section about the job's entries."""
    records = [row for row in rows if isinstance(row, CheckpointRecord)]
    newest = newest_checkpoint(rows)
    retained = ", ".join(
        f"{row.checkpoint} ({row.kind.value})" for row in sorted(records, key=lambda row: row.checkpoint)
    )
    seen = (
        ("last cut", _cut(warehouse, newest)),
        ("retained", retained or "none"),
        ("generation", f"{state.generation}: {state.why}"),
        *_waits(warehouse, newest),
        *_readers(warehouse),
    )
    held = held_cut(rows)
    findings = (
        *_of_holder(warehouse, state),
        *(_of_newest(warehouse, newest, cuts, running=state.activity is Activity.RUNNING) if held is None else ()),
        *_of_held(warehouse, held),
        *_of_requests(warehouse, running=state.activity is Activity.RUNNING),
        *(_of_failure(warehouse, last_failure(rows)) if state.activity is not Activity.RUNNING else ()),
    )
    return Section("job", seen, findings, _values(warehouse, records, newest, state))


def _values(
    warehouse: Warehouse, records: list[CheckpointRecord], newest: CheckpointRecord | None, state: JobState
) -> dict[str, object]:
    last = None
    if newest is not None:
        last = {
            "checkpoint": newest.checkpoint,
            "kind": newest.kind.value,
            "committed_at_ms": newest.statistics.committed_ms,
            "generation": newest.generation,
            "finished": newest.finished,
        }
    retained = [
        {"checkpoint": row.checkpoint, "kind": row.kind.value, "pinned": row.pinned, "abandoned": row.abandoned}
        for row in sorted(records, key=lambda row: row.checkpoint)
    ]
    readers = [
        {"reader": str(file.reader), "checkpoint": file.checkpoint, "until_ms": file.reservation(None).ends_ms}
        for file in ReservationStore(warehouse).by_jobs()
    ]
    return {
        "last_cut": last,
        "retained": retained,
        "generation": state.generation,
        "activity": state.activity.name.lower(),
        "holder": None if state.holder is None else {"host": state.holder.host, "pid": state.holder.pid},
        "readers": readers,
    }


def age(ms: int) -> str:
    """Return how long ago something happened, in the largest unit that fits."""
    whole_s = max(ms, 0) // 1000
    for unit_s, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if whole_s >= unit_s:
            return f"{whole_s // unit_s} {name} ago"
    return f"{whole_s} s ago"


def _cut(warehouse: Warehouse, newest: CheckpointRecord | None) -> str:
    if newest is None:
        return "none"
    when = age(warehouse.now_ms() - newest.statistics.committed_ms)
    finished = "; the job is finished: its sources have ended" if newest.finished else ""
    return f"{newest.kind.value} {newest.checkpoint}, committed {when} by generation {newest.generation}{finished}"


def _waits(warehouse: Warehouse, newest: CheckpointRecord | None) -> Iterator[tuple[str, str]]:
    """Yield the event time for which each vertex waits, if something in its state is due later."""
    if newest is None:
        return
    for vertex in newest.vertices:
        due_ms = first_due_ms(vertex)
        if vertex.time is None or due_ms is None or vertex.time.watermark_ms >= due_ms:
            continue
        rests = _rests(warehouse, closes_at_ms(newest, vertex, due_ms))
        at = f"{_at(warehouse, newest, vertex)}{rests}"
        yield "event time", f"{vertex.vertex} waits for {_minute(due_ms + 1)} UTC: {at}"


def _at(warehouse: Warehouse, newest: CheckpointRecord, vertex: VertexRecord) -> str:
    """Return which split holds a vertex back, the split's newest event time, and when the split will be idle."""
    waits = split_held_back_by(newest, vertex)
    if waits is None:
        return "all splits are idle, or were not there yet"
    far = "no row of it had a time"
    if waits.watermark_ms > BEFORE_TIME:
        far = f"its newest row is of {_minute(waits.watermark_ms + (waits.delay_ms or 0) + 1)} UTC"
    return f"split {waits.split} of {waits.upstream} holds it back, {far}{_idle(warehouse, waits)}"


def _idle(warehouse: Warehouse, waits: InputTimeRecord) -> str:
    """Return when a quiet split will be idle, which it becomes at a barrier, or for how long it has been quiet."""
    if waits.active_ms is None:
        return ""
    quiet_ms = max(0, warehouse.now_ms() - waits.active_ms)
    if waits.idle_after_ms is None:
        return f", quiet for {seconds(quiet_ms)}, and it never turns idle (event_time has no idle_after)"
    left_ms = waits.idle_after_ms - quiet_ms
    return f", idle in {seconds(left_ms)}" if left_ms > 0 else ", idle at the next checkpoint"


def _rests(warehouse: Warehouse, closes_at: int | None) -> str:
    """Return when the waiting rows are due by the clock, if no row comes and the input has `close_after`."""
    if closes_at is None:
        return ""
    left_ms = closes_at - warehouse.now_ms()
    then = f"in {seconds(left_ms)}" if left_ms > 0 else "at the next tick"
    return f"; if no row comes, it is due by the clock {then}"


def _minute(ms: int) -> str:
    return event_time(ms).replace(tzinfo=None).isoformat(" ", "seconds")


def _readers(warehouse: Warehouse) -> Iterator[tuple[str, str]]:
    """Yield the jobs that read this job's cuts.

    Each text has the time until which the cut that the job has read last is kept (A10).
    """
    for file in ReservationStore(warehouse).by_jobs():
        until = file.reservation(None).ends_ms
        kept = "is kept" if warehouse.now_ms() < until else "was kept"
        yield "read by", f"{file.reader}, from cut {file.checkpoint}, which {kept} for it until {shown(until)}"


def _of_holder(warehouse: Warehouse, state: JobState) -> Iterator[Finding]:
    match state.activity:
        case Activity.AT_REST if state.holder is not None:
            what = f"{state.holder} died while it held the job: what it had begun is not cleaned up yet"
            yield Finding(what, command("run", warehouse))
        case Activity.SILENT:
            yield Finding(state.why, f"{command('run', warehouse)} --take-over, if you know that it is gone")
        case Activity.AT_REST | Activity.RUNNING:
            return
        case _ as unreachable:
            assert_never(unreachable)


def _of_failure(warehouse: Warehouse, release: Release | None) -> Iterator[Finding]:
    """Yield why the newest tick failed, and its last failed checkpoint. The next tick would fail for the same cause."""
    if release is None or release.ended is None:
        return
    ended = release.ended
    last = ended.failed[-1] if ended.failed else None
    at = "" if last is None else f" at checkpoint {last.checkpoint}"
    why = ended.message or (ended.reason.message if ended.reason is not None else "it did not say why")
    if ended.reason is not CheckpointFailureReason.QUALITY:
        why = sentence_of(why)
    what = (
        f"the last tick, generation {release.generation}, failed{at} {age(warehouse.now_ms() - release.at_ms)}: {why}"
    )
    yield Finding(what, f"remove the cause as the message says, then {command('run', warehouse)}")


def _of_held(warehouse: Warehouse, held: CheckpointRecord | None) -> Iterator[Finding]:
    if held is not None:
        when = age(warehouse.now_ms() - held.statistics.committed_ms)
        what = f"cut {held.checkpoint} waits for approval, held {when}: no tick begins before it is settled"
        yield Finding(what, f"{command('approve', warehouse)}, or {command('reject', warehouse)}")


def _of_newest(
    warehouse: Warehouse, newest: CheckpointRecord | None, cuts: Mapping[CheckpointId, Cut], *, running: bool
) -> Iterator[Finding]:
    if running:
        return  # it is about to
    if newest is None:
        yield Finding("no checkpoint has completed yet", command("run", warehouse))
    elif newest.checkpoint not in cuts:
        what = f"{newest.kind.value} {newest.checkpoint} is committed, but its tables are not published yet"
        yield Finding(what, command("run", warehouse))


def _of_requests(warehouse: Warehouse, *, running: bool) -> Iterator[Finding]:
    folder = warehouse.place(warehouse.paths.requests)
    for request in RequestFolder(warehouse).waiting():
        if isinstance(request, Unreadable):
            file = folder / f"{request.request}.json"
            yield Finding(f"request {request.request} cannot be read ({request.error})", f"rm {file}")
            continue
        waits_ms = warehouse.now_ms() - request.asked_at_ms
        if waits_ms > UNANSWERED_MS or is_alive(request.asker) is False:
            what = f"request {request.request} was made {age(waits_ms)} by {request.asker} and never answered"
            way_out = "make it again" if running else command("run", warehouse)
            yield Finding(what, f"rm {folder / request.request}.json, and {way_out}")


# ------------------------------------------------------------------
# Checks whether outside sinks are in step with their tables, and whether they hold transactions that no tick will end.


Sinks = Callable[[], Mapping[TableName, TableSink]]
"""Loads a pipeline and returns its sinks."""


def no_sinks() -> Mapping[TableName, TableSink]:
    """Return no sinks, for an unknown pipeline."""
    return NO_SINKS


def sink_sections(warehouse: Warehouse, sinks: Sinks, state: JobState, rows: Iterable[Row]) -> Iterator[Section]:
    """Yield a section about outside sinks: whether they are in step with the tables, and what they have prepared."""
    known_rows = tuple(rows)
    seen: list[tuple[str, str]] = []
    findings: list[Finding] = []
    known: set[SinkTransaction] = set()
    elsewhere: dict[SinkTransaction, str] = {}
    values: dict[str, object] = {}
    for table, bound in sinks().items():
        sink, job = bound.sink, warehouse.paths.job
        left: tuple[SinkTransaction, ...] = ()
        try:
            newest = sink.newest(job, table)
            if isinstance(sink, TwoPhaseSink):
                left = tuple(sink.pre_committed(job, table))
                elsewhere |= dict(sink.left_elsewhere(job, table))
        except Exception as error:  # noqa: BLE001 - a sink is a user's code, and the next tick would meet it too
            first = (str(error).splitlines() or [type(error).__name__])[0]
            findings.append(Finding(f"the sink of table {table} cannot be looked at: {first}", "do what it says"))
            values[str(table)] = {"sink": repr(sink), "error": first}
            continue
        differs = None if newest is None else out_of_step(table, bound, newest, known_rows)
        if differs is not None and state.activity is not Activity.RUNNING:
            what = f"the sink of table {table} ({sink!r}) {differs}"
            findings.append(Finding(what, f"{command('run', warehouse)}, and compare the target with the table"))
        known |= {*left}
        has = "" if newest is None else f", has checkpoint {newest}" if newest else ", has no checkpoint"
        prepared = f", {len(left) or 'nothing'} prepared" if isinstance(sink, TwoPhaseSink) else ""
        seen.append((str(table), f"{sink!r}{has}{prepared}"))
        values[str(table)] = {
            "sink": repr(sink),
            "checkpoint": newest,
            "in_step": None if newest is None else differs is None,
            "prepared": [{"checkpoint": each.checkpoint, "generation": each.generation} for each in left],
        }
        findings += [_finding(warehouse, each) for each in left if _is_left(each, state)]
    for each, said in elsewhere.items():
        if each not in known:
            name, _, way_out = said.partition(": ")
            what = (
                f"{name} is prepared for a target that the pipeline no longer has, and no tick ends it: it keeps locks"
            )
            findings.append(Finding(what, way_out))
    if seen or findings:
        yield Section("sinks", tuple(seen), tuple(findings), values)


def _is_left(transaction: SinkTransaction, state: JobState) -> bool:
    """Return whether the tick that prepared this transaction has ended. A running tick ends its own transactions."""
    return state.activity is not Activity.RUNNING or transaction.generation < state.generation


def _finding(warehouse: Warehouse, left: SinkTransaction) -> Finding:
    what = (
        f"checkpoint {left.checkpoint} of generation {left.generation} is prepared in the sink of table {left.table}, "
        "and its tick has ended: the transaction keeps its locks"
    )
    return Finding(what, f"{command('run', warehouse)}, which publishes it or rolls it back")
