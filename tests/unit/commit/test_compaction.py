"""Which small files become one, and when a table allows it. No store and no Spark."""

from math import log

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.commit.compaction import ActiveFile, groups_to_compact, still_possible
from checkpointing.handles import FileHandle
from checkpointing.metadata.record import COMPACTED_FILES_MAX, FileCompaction

UNIQUE = "11111111-2222-3333-4444-{:012}"
BYTES_MAX = 1_000_000


def file(number, size, partition=""):
    """Return a file of a table."""
    folder = f"{partition}/" if partition else ""
    return ActiveFile(f"bronze/rows/_data/1/{folder}rows-{number}-{UNIQUE.format(number)}.parquet", size)


def paths(files):
    """Return the paths of files, in order."""
    return tuple(each.path for each in files)


def groups(files, files_min=4, bytes_max=BYTES_MAX):
    """Return the groups, as sets of paths."""
    return [{*each} for each in groups_to_compact(files, files_min, bytes_max)]


def test_enough_small_files_become_one():
    """Three are too few, and four are enough. A file that is much larger than all of them stays."""
    small = [file(number, 100) for number in range(4)]
    assert [] == groups(small[:3])
    assert [{*paths(small)}] == groups(small)
    assert [{*paths(small)}] == groups([*small, file(9, 801)])
    assert [{*paths([*small, file(9, 800)])}] == groups([*small, file(9, 800)])


def test_a_large_file_hides_no_small_ones():
    """Files of different sizes lie in groups of their own."""
    tiny, mid = [file(number, 10) for number in range(5)], [file(9 + number, 5_000) for number in range(5)]
    assert [{*paths(tiny)}, {*paths(mid)}] == groups([*mid, *tiny])
    assert [{*paths(mid)}] == groups([*mid, tiny[0]])


def test_each_partition_has_groups_of_its_own():
    """A file belongs to one partition, and so does the file in whose place it comes."""
    graz = [file(number, 100, "city=Graz") for number in range(4)]
    linz = [file(10 + number, 100, "city=Linz") for number in range(3)]
    assert [{*paths(graz)}] == groups([*linz, *graz])


def test_files_fill_up_and_are_left_alone_then():
    """Two files that make a full one are enough. A file of more than half the size is not written again."""
    half = [file(number, BYTES_MAX // 2) for number in range(4)]
    assert [{*paths(half[:2])}] == groups(half)
    assert [] == groups([file(number, BYTES_MAX // 2 + 1) for number in range(9)])
    many = [file(number, 1) for number in range(COMPACTED_FILES_MAX + 1)]
    assert [COMPACTED_FILES_MAX] == [len(each) for each in groups(many)]


@given(
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=200),
    files_min=st.integers(2, 12),
    empty=st.booleans(),
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


def compaction(*of):
    """Return a compaction of these files."""
    return FileCompaction(into=FileHandle("bronze/rows/new", 1, 1, 0), of=of)


def test_a_compaction_needs_all_its_files():
    """It is left out if a file is gone or has a deletion vector, or if it was carried out before."""
    wanted = compaction("a", "b")
    assert (wanted,) == still_possible([wanted], {"a", "b", "c"})
    assert () == still_possible([wanted], {"a", "c"})
    assert () == still_possible([wanted], {"a", "b"}, marked={"b"})
    assert () == still_possible([wanted], {"a", "b", wanted.into.path})
