"""What holds a watermark back, what is due first, and how many late rows a cut has added (N3, N8)."""

import pytest

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.completeness import (
    closes_at_ms,
    complete_tables,
    complete_until_ms,
    first_due_ms,
    held_back_by,
    is_complete_before,
    late_rows,
    split_held_back_by,
)
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName, VertexId
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import InputTimeRecord, Statistics, TableRecord, VertexRecord, VertexTimeRecord
from jobs.doctor.job_health import _waits
from jobs.showing.checkpoints import checkpoint_as_json
from jobs.warehouse.warehouse import Warehouse
from tests.unit.full_entry import plain_entry

LATE = TableName("late/clicks")
AT = 42 * 60_000 - 1


def an_input(upstream, split, ms, *, idle=False, **further):
    """Rows may come ten minutes late, and a split turns idle after five. Its last rows came before minute 1."""
    said = {"active_ms": 60_000} | ({"delay_ms": 600_000, "idle_after_ms": 300_000} if split else {}) | further
    return InputTimeRecord(input=0, upstream=upstream, split=split, watermark_ms=ms, idle=idle, **said)


def a_vertex(name, ms, *inputs, due=(), output=None, tables=()):
    snapshots = tuple(SubtaskSnapshot(due_ms=each) for each in due)
    time = VertexTimeRecord(watermark_ms=ms, inputs=inputs, tables=tables)
    return VertexRecord(vertex=VertexId(name), micro_batch=1, subtasks=snapshots, time=time, outputs_read=(output,))


USERS = a_vertex("users", AT, an_input("users", "all", AT))
BRONZE = a_vertex(
    "bronze",
    AT,
    an_input("clicks", "orders-6", 5, idle=True),
    an_input("clicks", "orders-7", AT),
    an_input("clicks", "orders-8", AT + 1),
)
HOURLY = a_vertex("hourly", AT, an_input("bronze", "", AT), due=(3_599_999, None, 7_199_999))
OF_LATE = a_vertex("hourly_late", AT, an_input("hourly", "", AT), output="late", tables=(LATE, TableName("late/views")))
CUT = plain_entry(
    vertices=(USERS, BRONZE, HOURLY, OF_LATE),
    tables=(
        TableRecord(
            table=LATE, mode=TableMode.APPEND, parent_version=0, adds=tuple(FileHandle(n, 3, 1, 1) for n in ("a", "b"))
        ),
    ),
)


def test_the_least_input_that_is_not_idle_holds_a_vertex_back():
    assert "orders-7" == held_back_by(BRONZE.time).split
    assert "orders-7" == split_held_back_by(CUT, HOURLY).split
    assert held_back_by(BRONZE.time.model_copy(update={"watermark_ms": END_OF_TIME})) is None


def test_the_doctor_says_when_a_window_closes_by_the_clock(tmp_path):
    """The greatest event time of both splits is minute 45. The windows follow a join that is one minute behind.

    The stream has been at rest since its last rows, which split a had.
    """
    said = {"idle_after_ms": None, "close_after_ms": 900_000}
    rests = said | {"active_ms": 30_000}
    bronze = a_vertex(
        "bronze", 5, an_input("clicks", "a", 5, **said), an_input("clicks", "b", 45 * 60_000 - 1, **rests)
    )
    bronze = bronze.model_copy(update={"time": bronze.time.model_copy(update={"behind_ms": 60_000})})
    hourly = a_vertex("hourly", 5, an_input("bronze", "", 5), due=(3_599_999,))
    for due_ms, closes_ms in ((3_599_999, 60_000 + 16 * 60_000), (2_000_000, 60_000 + 900_001), (4, 0)):
        assert closes_ms == closes_at_ms(plain_entry(vertices=(USERS, bronze, hourly)), hourly, due_ms)
    assert closes_at_ms(CUT, HOURLY, 3_599_999) is None
    assert closes_at_ms(plain_entry(vertices=(hourly,)), hourly, 3_599_999) is None, "nothing is known of bronze"
    for clock_ms, rests in ((960_000, []), (960_001, [0, 1])):
        statistics = Statistics(triggered_ms=clock_ms, committed_ms=clock_ms, rows=0)
        (shown, _) = checkpoint_as_json("small", plain_entry(vertices=(bronze, hourly), statistics=statistics), ())[
            "event_time"
        ]
        assert rests == shown["at_rest"]
    cut = plain_entry(vertices=(bronze, hourly))
    for now_ms, then in ((120_000, "in 15 min 00 s"), (2_000_000, "at the next tick")):
        warehouse = Warehouse(tmp_path, ProtocolPaths("shop"), now_ms=lambda now_ms=now_ms: now_ms)
        ((_, line),) = _waits(warehouse, cut)
        assert line.endswith(f"; if no row comes, it is due by the clock {then}")


@pytest.mark.parametrize(
    ("idle", "views", "closes_ms"),
    [
        (False, an_input("views", "v", 5, active_ms=120_000, close_after_ms=900_000), 120_000 + 900_001),
        (False, an_input("views", "v", 5, active_ms=120_000), None),
        (False, an_input("views", "v", 5, active_ms=120_000, idle=True), 60_000 + 900_001),
        (False, an_input("views", "v", 99), 60_000 + 900_001),
        (True, an_input("views", "v", 5, active_ms=120_000, idle=True), None),
    ],
)
def test_a_window_over_two_streams_closes_by_the_clock_with_the_later_one(idle, views, closes_ms):
    """The time is None if one stream has no `close_after`, unless it is idle or its watermark has passed the window.

    If both streams are idle, the time depends on both.
    """
    rests = {"a": 30_000, "b": 60_000, "c": None}
    clicks = [an_input("clicks", a, 5, idle=idle, active_ms=ms, close_after_ms=900_000) for a, ms in rests.items()]
    joined = a_vertex("joined", 5, *clicks, views)
    assert closes_ms == closes_at_ms(plain_entry(vertices=(joined,)), joined, 99)


def test_late_rows_are_those_that_the_cut_adds_to_tables_of_late_rows():
    assert {"hourly": 6} == late_rows(CUT, "late")


def test_the_doctor_says_for_which_split_a_window_waits(tmp_path):
    assert 3_599_999 == first_due_ms(HOURLY)
    warehouse = Warehouse(tmp_path, ProtocolPaths("shop"), now_ms=lambda: 180_000)
    ((_, said),) = _waits(warehouse, CUT)
    assert said == (
        "hourly waits for 1970-01-01 01:00:00 UTC: split orders-7 of clicks holds it back, "
        "its newest row is of 1970-01-01 00:52:00 UTC, idle in 3 min 00 s"
    )


@pytest.mark.parametrize(
    ("said", "until_ms"),
    [
        ({"watermark_ms": 500}, 400),
        ({"watermark_ms": 500, "rows_ms": 450}, 350),
        ({"watermark_ms": END_OF_TIME, "rows_ms": 450}, END_OF_TIME),
        ({"watermark_ms": END_OF_TIME, "rows_ms": 450, "drained": True}, 350),
        ({"watermark_ms": BEFORE_TIME + 99}, BEFORE_TIME),
        ({"watermark_ms": BEFORE_TIME}, None),
    ],
)
def test_a_table_is_complete_as_far_as_its_vertex_less_what_rows_may_wait(said, until_ms):
    """The end of all inputs completes a table for ever, and a drain does not.

    Without a recorded time, no table is complete.
    """
    time = VertexTimeRecord(inputs=(), tables=(LATE,), behind_ms=100, **said)
    own = USERS.model_copy(update={"time": time})
    cut = plain_entry(vertices=(USERS.model_copy(update={"time": None}), USERS, own))
    assert until_ms == complete_until_ms(cut, LATE)
    assert complete_tables(cut) == ({} if until_ms is None else {LATE: until_ms})
    assert complete_until_ms(cut, TableName("late/views")) is None


def test_a_day_is_complete_from_its_last_millisecond_on():
    """A table that does not say until when it is complete has no complete day."""
    assert [False, True, False] == [is_complete_before(until_ms, 1_000) for until_ms in (998, 999, None)]
