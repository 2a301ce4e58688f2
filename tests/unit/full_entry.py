"""Builds entries of the present format. The entry of a checkpoint has every field that an entry may have.

The machine of entries changes one field of it at a time. The entry is written by hand, so it still has a field that the
product has dropped by mistake.
"""

from typing import Any, Final

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics
from spec.world.entry_texts import PRESENT

Fields = dict[str, Any]
"""A JSON object."""

OWN: Final = "_tidemark/small"
KEY_GROUPS: Final = 8


def handle(path: str, **fields: object) -> Fields:
    """Return a file of ten rows."""
    return {"path": path, "rows": 10, "bytes": 300, "crc32": 77, "stats": '{"numRecords":10}', "inline": ""} | fields


def staged(folder: str, writer: str, unique: int, inside: str = "") -> str:
    """Return the path of a file that a micro-batch of generation 3 staged for a folder."""
    return f"{folder}/_data/3/{inside}{writer}-7-{unique:032x}.parquet"


def full_entry() -> Fields:
    """Return the envelope of a checkpoint."""
    return {"kind": "checkpoint", "format": PRESENT, "writer": "spec", "row": _row()}


def claim() -> Fields:
    """Return the envelope of a claim."""
    holder = {"host": "here", "pid": 5, "started": "at noon", "dagster_run": "a-run"}
    row = {
        "format": PRESENT,
        "generation": 3,
        "holder": holder,
        "first_id": 9,
        "last_id": 30,
        "at_ms": 50,
        "nonce": "one",
    }
    return {"kind": "claim", "format": PRESENT, "writer": "spec", "row": row}


def release() -> Fields:
    """Return the envelope of a release."""
    failed = {"checkpoint": 11, "reason": "QUALITY", "message": "too few", "at_ms": 59}
    ended = {"outcome": "failed", "reason": "QUALITY", "message": "too few\nin gold/totals", "failed": [failed]}
    row = {"format": PRESENT, "generation": 3, "next_id": 12, "at_ms": 60, "nonce": "two", "ended": ended}
    return {"kind": "release", "format": PRESENT, "writer": "spec", "row": row}


def _row() -> Fields:
    named = {"was": "older", "now": "newer", "vertex": ""}
    return {
        "format": PRESENT,
        "job": "small",
        "kind": "checkpoint",
        "pinned": True,
        "abandoned": False,
        "checkpoint": 12,
        "parent": 11,
        "generation": 3,
        "nonce": "three",
        "max_parallelism": KEY_GROUPS,
        "vertices": [_source(), _stateless(), _keyed()],
        "tables": _tables(),
        "columns": [
            {
                "table": "silver/rows",
                "columns": [
                    {"name": "Key of a row", "type": "long", "after": 4, "first": "key"},
                    {"name": "price", "type": "decimal(10,2)", "after": 0, "first": ""},
                    {"name": "tags", "type": '{"containsNull":true,"elementType":"string","type":"array"}', "after": 0}
                    | {"first": ""},
                ],
                "dropped": ["gone"],
            },
            {"table": f"{OWN}/state/totals", "columns": [], "dropped": []},
        ],
        "renames": [
            {"kind": "vertex", **named},
            {"kind": "table", **named, "was": "gold/older", "now": "gold/newer"},
            {"kind": "column", "was": "An old one", "now": "A new one", "vertex": "totals"},
        ],
        "hooks": [{"hook": "ledger", "state": '{"page":3}'}, {"hook": "other", "state": "null"}],
        "outside": ["silver/rows"],
        "manifests": [],
        "erased": [
            {"table": "silver/rows", "path": "silver/rows/part-1.parquet", "into": None},
            {"table": f"{OWN}/state/totals", "path": staged(f"{OWN}/state/totals", "totals", 90)}
            | {"into": handle(staged(f"{OWN}/state/totals", "totals", 91))},
        ],
        "barriers": [
            {
                "checkpoint": 11,
                "clock_ms": 6,
                "positions": [{"source": "source", "split": "a", "position": "place 3"}],
                "watermarks": [{"vertex": "totals", "watermark_ms": -1}],
            }
        ],
        "statistics": _statistics(),
    }


def _vertex(name: str, subtasks: list[Fields], **fields: object) -> Fields:
    plain: Fields = {"splits": [], "meanings": [], "table_keys": [], "coordinator": None, "outputs_read": []}
    return {"vertex": name, "micro_batch": 7, "subtasks": subtasks} | plain | {"time": None, "expiry": None} | fields


def _time() -> Fields:
    split = {"input": 0, "upstream": "source", "split": "a", "watermark_ms": 5, "idle": True, "active_ms": 7}
    split |= {"delay_ms": 60_000, "idle_after_ms": 300_000, "close_after_ms": 600_000}
    vertex = {"input": 1, "upstream": "silver", "split": "", "watermark_ms": -(2**63), "idle": False, "active_ms": None}
    vertex |= {"delay_ms": None, "idle_after_ms": None, "close_after_ms": None}
    written: Fields = {"tables": ["gold/totals"], "behind_ms": 9}
    return {"watermark_ms": 5, "idle": False, "rows_ms": None, "drained": True, "inputs": [split, vertex]} | written


def _snapshot(**fields: object) -> Fields:
    empty: Fields = {"state": [], "ranges": [], "staged": [], "in_flight": [], "due_ms": None}
    return {"position": None, "finished": False} | empty | fields


def _source() -> Fields:
    subtasks = [_snapshot(position="place 4"), _snapshot(position="place 9", finished=True)]
    return _vertex("source", subtasks, micro_batch=0, splits=["a", "Topic-0.x=1"], coordinator='{"known":2}')


def _stateless() -> Fields:
    files = [
        handle(staged("silver/rows", "silver", 1)),
        handle(staged("silver/rows", "silver", 2, "day=2024-05-01/city=S%C3%A3o%20Paulo/"), stats="{}"),
    ]
    slices = {"source": "source", "split": "a", "start": "1", "end": "2", "detail": "{}", "rows": 4, "bytes": 90}
    into = {"edge": {"upstream": "source", "downstream": "silver", "input": 0}, "subtask": 0}
    segment = {**slices, "rows_estimated": True, "cut": None, "at_cut": False, "offered_ms": 1_700_000_000_000}
    subtask = _snapshot(
        staged=[{"table": "silver/rows", "file": file, "after": 11} for file in files],
        in_flight=[{"channel": into, "segments": [segment]}],
    )
    return _vertex("silver", [subtask], outputs_read=["rejected", None])


def _keyed() -> Fields:
    own = [_keyed_subtask(number) for number in range(2)]
    meaning = {"column": "sum", "function": "sum", "arguments": [{"column": "v", "type": "bigint"}], "version": 2}
    keys = [
        {"table": "gold/totals", "columns": ["key"], "mode": "upsert"},
        {"table": "gold/newest", "columns": ["delivered"], "mode": "overwrite"},
    ]
    expiry = {"ttl_ms": 9, "by_clock": True, "now_ms": 5}
    return _vertex(
        "totals", own, meanings=[meaning, meaning | {"version": None}], table_keys=keys, time=_time(), expiry=expiry
    )


def _keyed_subtask(number: int) -> Fields:
    first, last = (0, 3) if number == 0 else (4, 7)
    sent = [
        handle(staged(f"{OWN}/channels/silver", "silver", 20 + number), stats="{}"),
        handle(staged("silver/rows", "silver", 30 + number)),
    ]
    edge = {"upstream": "silver", "downstream": "totals", "input": 0}
    held = handle(staged(f"{OWN}/state/totals", "totals", 50 + number), bytes=3, inline="QUJD")
    return _snapshot(
        state=[
            _of_keys(handle(staged(f"{OWN}/state/totals", "totals", 40 + number)), "base", first, last),
            _of_keys(held, "delta", last, last),
        ],
        ranges=[
            {
                "table": "gold/totals",
                "files": [_of_keys(handle(staged("gold/totals", "totals", 60 + number)), "base", first, last)],
            },
            {"table": "gold/empty", "files": []},
        ],
        staged=[
            {"table": "gold/newest", "file": file, "after": 10}
            for file in [handle(staged("gold/newest", "totals", 70 + number, "version.date.2024-05-01/"))]
        ],
        in_flight=[{"channel": {"edge": edge, "subtask": 1}, "segments": [{"files": sent}]}],
    )


def _of_keys(file: Fields, kind: str, first: int, last: int) -> Fields:
    version = {"generation": 3, "micro_batch": 7}
    plain = {"file": file, "kind": kind, "first_key_group": first, "last_key_group": last, "version": version}
    return plain | {"touched_ms": 5 if kind == "delta" else None}


def _table(name: str, mode: str, **fields: object) -> Fields:
    lists: Fields = {name: [] for name in ("adds", "files", "removes", "leaving", "renamed", "compactions")}
    plain = {"parent_version": 5, "planned_on": None, "in_order": False, "of_snapshots": False}
    return {"table": name, "mode": mode} | lists | plain | fields


def _tables() -> list[Fields]:
    small = [staged("silver/rows", "silver", number) for number in (80, 81)]
    state = handle(staged(f"{OWN}/state/totals", "totals", 50), bytes=3, inline="QUJD")
    return [
        _table(
            "silver/rows",
            "append",
            adds=[handle(staged("silver/rows", "silver", 1)), handle("silver/rows/day=1/of others.parquet", crc32=-1)],
            removes=[handle(staged("silver/rows", "silver", 3))],
            leaving=["old"],
            planned_on=9,
            renamed=[["new name", "old name"]],
            compactions=[{"into": handle(staged("silver/rows", "silver", 82)), "of": small}],
        ),
        _table("gold/totals", "upsert", files=[handle(staged("gold/totals", "totals", 60))]),
        _table("gold/newest", "overwrite", files=[handle(staged("gold/newest", "totals", 70, "version.number.5/"))]),
        _table(f"{OWN}/state/totals", "state", files=[state]),
    ]


def _statistics() -> Fields:
    columns = ("task_ms", "sync_ms", "rows_in", "rows_out", "bytes_out", "checkpointed_bytes")
    numbers = {"aligned_ms": 70, "acknowledged_ms": 90, "bytes_held": 3, "micro_batches": 2, "rows_in": 30}
    numbers |= {"rows_out": 20, "bytes_out": 900, "alignment_ms": 4, "busy_ms": 40, "start_delay_ms": 6}
    numbers |= {"bytes_processed": 8, "async_ms": 20}
    vertices = [
        {
            "vertex": name,
            "barriers": [{"channel": "silver[1]", "at_ms": 65}],
            "alignment": "unaligned",
            **numbers,
            "subtasks": {column: [measured] * subtasks for column in columns},
        }
        for name, subtasks, measured in (("silver", 1, None), ("totals", 2, 6))
    ]
    return {
        "triggered_ms": 60,
        "committed_ms": 95,
        "rows": 30,
        "rows_estimated": 4,
        "vertices": vertices,
        "verdicts": ["all is well"],
        "counts": {"total": 6, "in_progress": 1, "completed": 4, "failed": 1, "restored": 1},
        "failed": [{"checkpoint": 11, "reason": "QUALITY", "message": "too few", "at_ms": 61}],
    }


# ------------------------------------------------------------------
# Makes entries of a small job for machines that look at only a few fields of an entry.


def plain_entry(kind: RowKind = RowKind.CHECKPOINT, **fields: Any) -> CheckpointRecord:
    """Return an entry without vertices and tables, but with these fields."""
    plain: dict[str, Any] = {
        "job": "small",
        "checkpoint": CheckpointId(7),
        "parent": CheckpointId(6),
        "generation": Generation(1),
        "nonce": "n",
        "max_parallelism": 8,
        "vertices": (),
        "tables": (),
        "statistics": Statistics(triggered_ms=1, committed_ms=1, rows=1),
    }
    return CheckpointRecord(kind=kind, **{**plain, **fields})
