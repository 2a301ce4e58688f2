"""Checks a job's entries: its last cut and its age, the holder, an unpublished checkpoint, unanswered requests."""

from collections.abc import Iterator, Mapping
from typing import Final, assert_never

from checkpointing.commit.approval import held_cut
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.metadata.record import CheckpointRecord, Release, Row
from jobs.doctor.findings import Finding, Section, command
from jobs.holding.job_state import Activity, JobState, last_failure
from jobs.reading.moments import shown
from jobs.stores.cuts import Cut
from jobs.stores.holders import is_alive
from jobs.stores.requests import RequestFolder, Unreadable
from jobs.stores.reservations import ReservationStore
from jobs.stores.warehouse import Warehouse
from jobs.user_code import sentence_of

UNANSWERED_MS: Final = 60_000
"""A running tick looks for requests four times a second. It will not answer a request that is older than this."""

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
    """Return how long ago something was, in its largest unit."""
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


def _readers(warehouse: Warehouse) -> Iterator[tuple[str, str]]:
    """Yield the jobs that read this one's cuts, and how long the cut from which each reads on is kept (A10)."""
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
    """Yield why the newest tick failed, and its last failed checkpoint. The next tick would meet the same cause."""
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
