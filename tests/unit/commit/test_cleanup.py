"""When clean-ups delete, to the millisecond, which small files become one, and how often a row is written again.

The machines of clean-ups and of compactions check what is deleted and compacted.
"""

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.commit.cleanup import (
    JOB_RESERVATION_MS_MAX,
    RESERVATION_MS_MAX,
    CleanupFacts,
    CleanUpLook,
    ListedFile,
    Reason,
    Reservation,
    Shown,
    TableSeen,
    Unneeded,
    decide_cleanup,
    log_floor,
    read_before_erasure,
    standing,
)
from checkpointing.commit.compaction import ActiveFile, groups_to_compact
from checkpointing.identifiers import Generation, TableName
from checkpointing.metadata.record import COMPACTED_FILES_MAX

TABLE = TableName("gold/by_key")


def test_a_log_stays_whole_while_a_look_does_not_know_its_table():
    """At that look the table could not be read, so its versions were not recorded."""
    seen = TableSeen(9, frozenset({7}), in_every_cut=True)
    assert 0 == log_floor((CleanUpLook(0, {TABLE: seen}), CleanUpLook(50, {})), TABLE, 100, 60)
    assert 0 == log_floor((CleanUpLook(50, {TABLE: seen}),), TABLE, 100, 60)


def cleaned(file, grace_ms, looks=()):
    """Return the decision on this file at 1,000 ms, while no entry names it."""
    facts = CleanupFacts(
        current=Generation(3),
        others_hold=False,
        now_ms=1_000,
        grace_ms=grace_ms,
        rows=(),
        recorded=frozenset(),
        found=(file,),
        active=frozenset(),
        looks=looks,
    )
    return decide_cleanup(facts)


@pytest.mark.parametrize(("modified_ms", "expected"), [(900, ["a"]), (901, [])])
def test_a_file_that_was_never_published_is_deleted_by_its_age(modified_ms, expected):
    """No reader can have opened the file, so only its age counts, to the millisecond."""
    decision = cleaned(ListedFile("a", TABLE, Generation(1), 1, modified_ms), 100)
    assert expected == [each.file.path for each in decision.delete]
    assert [Reason.UNNAMED] == [each.reason for each in (*decision.delete, *decision.waiting)]


@pytest.mark.parametrize(("removed_ms", "since_ms"), [(500, 800), (850, 850)])
def test_a_removed_file_waits_from_the_first_look_that_found_no_cut_with_it(removed_ms, since_ms):
    """An older look found a cut that shows the file. At another look, the table could not be read."""
    seen = {600: {TABLE: TableSeen(9, frozenset({2}))}, 700: {}, 800: {TABLE: TableSeen(9)}, 900: {TABLE: TableSeen(9)}}
    looks = tuple(CleanUpLook(at_ms, tables) for at_ms, tables in seen.items())
    file = ListedFile("a", TABLE, Generation(1), 1, 0, (Shown(1, 3, removed_ms), Shown(4, 5, 400)))
    due, grace_ms = (Unneeded(file, Reason.REMOVED, since_ms),), 1_000 - since_ms
    assert cleaned(file, grace_ms, looks).delete == due
    assert cleaned(file, grace_ms + 1, looks).waiting == due


# ------------------------------------------------------------------
# A reader's reservation holds while it is renewed. A killed reader's reservation ends.


VERSIONS = {TableName("gold/by_key"): 3}


def counts(given_ms, lapses_ms, now_ms, *, by_job=False):
    return bool(standing([Reservation(VERSIONS, given_ms, lapses_ms, by_job=by_job)], now_ms))


def test_a_job_that_reads_cuts_may_stand_still_for_30_days():
    """After 30 days without renewal, the job's reservation ends, even if it names a later end."""
    for_ever = 10**15
    assert counts(0, for_ever, JOB_RESERVATION_MS_MAX - 1, by_job=True)
    assert not counts(0, for_ever, JOB_RESERVATION_MS_MAX, by_job=True)
    assert not counts(0, for_ever, RESERVATION_MS_MAX)


@pytest.mark.parametrize(
    ("removed_ms", "by_job", "waits"), [(501, False, True), (500, False, False), (501, True, False)]
)
def test_rows_that_were_erased_wait_a_day_for_readers_that_opened_their_file(removed_ms, by_job, waits):
    """The table had shown the file once before, until a compaction removed it. Another reader reads another table."""
    shown = (Shown(1, 3, 100), Shown(0, 0, removed_ms))
    now_ms = 500 + RESERVATION_MS_MAX
    readers = [Reservation(versions, now_ms - 1, now_ms + 1, by_job=by_job) for versions in (VERSIONS, {})]
    assert waits is read_before_erasure(ListedFile("a", TABLE, Generation(1), 1, 0, shown), readers, now_ms)


# ------------------------------------------------------------------
# Which small files become one, decided without a store and without Spark.


BYTES_MAX = 1_000_000
UNIQUE = "11111111-2222-3333-4444-{:012}"


def file(number, size, partition=""):
    folder = f"{partition}/" if partition else ""
    return ActiveFile(f"bronze/rows/_data/1/{folder}rows-{number}-{UNIQUE.format(number)}.parquet", size)


def paths(files):
    return tuple(each.path for each in files)


def groups(files, files_min=4, bytes_max=BYTES_MAX):
    return [{*each} for each in groups_to_compact(files, files_min, bytes_max)]


def test_enough_small_files_become_one():
    """Three small files are too few, and four are enough. A file that is much larger than all of them stays."""
    small = [file(number, 100) for number in range(4)]
    assert [] == groups(small[:3])
    assert [{*paths(small)}] == groups(small)
    assert [{*paths(small)}] == groups([*small, file(9, 801)])
    assert [{*paths([*small, file(9, 800)])}] == groups([*small, file(9, 800)])


def test_files_fill_up_and_are_left_alone_then():
    """Two files are enough if they make a full one. A file of more than half the full size is not written again."""
    half = [file(number, BYTES_MAX // 2) for number in range(4)]
    assert [{*paths(half[:2])}] == groups(half)
    assert [] == groups([file(number, BYTES_MAX // 2 + 1) for number in range(9)])
    many = [file(number, 1) for number in range(COMPACTED_FILES_MAX + 1)]
    assert [COMPACTED_FILES_MAX] == [len(each) for each in groups(many)]


@given(
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=200), files_min=st.integers(2, 12), empty=st.booleans()
)
def test_few_files_remain_and_no_row_is_written_often(sizes, files_min, empty):
    """Whatever comes, a table's files are bounded, and a row is written again a bounded number of times.

    Each new file comes in the place of ones that are at most two thirds of it. Only full files add up.
    """
    table: dict[str, tuple[int, int]] = {}
    for number, size in enumerate([0 if empty and each % 7 == 0 else each for each in sizes]):
        table[file(number, size).path] = (size, 0)
        for at, group in enumerate(
            groups_to_compact((ActiveFile(p, s) for p, (s, _) in table.items()), files_min, 9_000)
        ):
            was = [table.pop(path) for path in group]
            total = sum(size for size, _ in was)
            assert total <= 9_000
            assert len(was) >= files_min or 2 * total > 9_000
            table[file(10_000 * (at + 1) + number, 0).path] = (total, max(times for _, times in was) + 1)
            assert all(2 * size <= 9_000 for size, _ in was)
    small = [size for size, _ in table.values() if 2 * size <= 9_000]
    assert len(small) <= files_min * (log(9_000, 3) + 2)
    assert max(times for _, times in table.values()) <= log(9_000, 1.5) + 2
