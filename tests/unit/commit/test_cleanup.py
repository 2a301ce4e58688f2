"""Decides what a clean-up deletes: never a file that somebody needs or may be reading, and in the end all others."""

from dataclasses import dataclass, field
from math import log

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkpointing.commit.cleanup import (
    JOB_RESERVATION_MS_MAX,
    RESERVATION_MS_MAX,
    CleanupDecision,
    CleanupFacts,
    CleanUpLook,
    ListedFile,
    Reason,
    Reservation,
    Shown,
    TableSeen,
    decide_cleanup,
    log_floor,
    noted,
    readable_cuts,
    standing,
)
from checkpointing.commit.compaction import ActiveFile, groups_to_compact, still_possible
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.record import (
    COMPACTED_FILES_MAX,
    CheckpointRecord,
    FileCompaction,
    RowKind,
    Statistics,
    TableRecord,
)

GRACE_MS = 48
"""All looks within 2 ms are noted as one."""

TABLE = TableName("gold/by_key")


def _row(number: int, files: frozenset[str]) -> CheckpointRecord:
    handles = tuple(FileHandle(path, 1, 1, 1) for path in sorted(files))
    return CheckpointRecord(
        job="numbers",
        checkpoint=CheckpointId(number),
        parent=CheckpointId(number - 1),
        generation=Generation(1),
        nonce=str(number),
        max_parallelism=8,
        vertices=(),
        tables=(TableRecord(table=TABLE, mode=TableMode.UPSERT, files=handles, parent_version=0),),
        statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
    )


@dataclass
class World:
    """A table, its cuts and a clock. It knows until when each file could be read, and no clean-up is told that."""

    now_ms: int = 1_000
    generation: int = 1
    staged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Every existing file, with the generation that staged it, and the time."""
    versions: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    removed_ms: dict[int, int] = field(default_factory=dict)
    cuts: dict[int, int] = field(default_factory=dict)
    rows: dict[int, frozenset[str]] = field(default_factory=dict)
    looks: tuple[CleanUpLook, ...] = ()
    looked: list[int] = field(default_factory=list)
    readable_until: dict[str, int] = field(default_factory=dict)
    version_until: dict[int, int] = field(default_factory=dict)
    files: int = 0
    checkpoints: int = 0

    def stage(self) -> str:
        self.files += 1
        path = f"{TABLE}/_data/{self.generation}/{self.files}"
        self.staged[path] = (self.generation, self.now_ms)
        return path

    def publish(self, kept: int, new: int) -> None:
        """Complete a checkpoint: some of the table's files stay, and others are added.

        Its entry names the added ones.
        """
        active = sorted(self.versions[-1])
        came = frozenset(self.stage() for _ in range(new))
        self.versions.append(came.union(active[:kept]))
        self.removed_ms[len(self.versions) - 1] = self.now_ms
        self.checkpoints += 1
        self.cuts[self.checkpoints] = len(self.versions) - 1
        self.rows[self.checkpoints] = came
        self.note_readable()

    def disturb(self, kept: int) -> None:
        """Commit a version that belongs to no cut, as other writers do. Some files stay, and one is added."""
        self.versions.append(frozenset([*sorted(self.versions[-1])[:kept], self.stage()]))
        self.removed_ms[len(self.versions) - 1] = self.now_ms
        self.note_readable()

    def subsume(self, which: int) -> None:
        if len(self.cuts) > 1:
            cut = sorted(self.cuts)[:-1][which % (len(self.cuts) - 1)]
            del self.cuts[cut], self.rows[cut]

    def readable(self) -> frozenset[str]:
        return self.versions[-1].union(*(self.versions[version] for version in self.cuts.values()))

    def note_readable(self) -> None:
        for path in self.readable():
            self.readable_until[path] = self.now_ms
        for version in (len(self.versions) - 1, *self.cuts.values()):
            self.version_until[version] = self.now_ms

    def pass_time(self, ms: int) -> None:
        self.note_readable()
        self.now_ms += ms
        self.note_readable()

    def times_in_log(self, path: str) -> tuple[Shown, ...]:
        inside = [version for version, shown in enumerate(self.versions) if path in shown]
        if not inside or inside[-1] == len(self.versions) - 1:
            return ()
        return (Shown(inside[0], inside[-1] + 1, self.removed_ms[inside[-1] + 1]),)

    def decide(self) -> CleanupDecision:
        facts = CleanupFacts(
            current=Generation(self.generation),
            others_hold=False,
            now_ms=self.now_ms,
            grace_ms=GRACE_MS,
            rows=tuple(_row(number, files) for number, files in self.rows.items()),
            recorded=frozenset(CheckpointId(each) for each in self.cuts),
            found=tuple(
                ListedFile(path, TABLE, Generation(generation), 1, at_ms, self.times_in_log(path))
                for path, (generation, at_ms) in self.staged.items()
            ),
            active=self.readable(),
            looks=self.looks,
        )
        return decide_cleanup(facts)

    def clean_up(self) -> None:
        """Delete the files that the clean-up decides to delete, judge them, and note the look."""
        decision = self.decide()
        self.judge({each.file.path for each in decision.delete})
        seen = TableSeen(len(self.versions) - 1, frozenset(self.cuts.values()), in_every_cut=True)
        look = CleanUpLook(self.now_ms, {TABLE: seen})
        self.looks = noted(self.looks, look, GRACE_MS)
        self.looked.append(self.now_ms)
        for each in decision.delete:
            del self.staged[each.file.path]
        read = [version for version, until in self.version_until.items() if self.now_ms - until < GRACE_MS]
        assert self.log_floor() <= min(read, default=0)

    def log_floor(self) -> int:
        return log_floor(self.looks, TABLE, self.now_ms, GRACE_MS)

    def judge(self, deleted: set[str]) -> None:
        """Compare each deleted file with the needs of readers and entries."""
        named = frozenset().union(*self.rows.values())
        for path, (generation, staged_ms) in self.staged.items():
            needed = path in self.readable() or path in named or generation >= self.generation
            ended_ms = self.readable_until.get(path)
            if path in deleted:
                assert not needed
                assert self.now_ms - (staged_ms if ended_ms is None else ended_ms) >= GRACE_MS
            elif not needed and ended_ms is None:
                assert self.now_ms - staged_ms < GRACE_MS
            elif not needed:
                assert not [at for at in self.looked if ended_ms < at <= self.now_ms - GRACE_MS - 2]


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("disturb"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("subsume"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("pass_time"), st.sampled_from([1, 10, 46, 60]), st.just(0)),
    st.tuples(st.just("stage"), st.just(0), st.just(0)),
    st.tuples(st.just("claim"), st.just(0), st.just(0)),
    st.tuples(st.just("clean_up"), st.just(0), st.just(0)),
)


def _steps(text: str) -> list[tuple[str, int, int]]:
    words = ([*step.split(), "0", "0"] for step in text.split(";"))
    return [(what, int(first), int(second)) for what, first, second, *_ in words]


@example(_steps("publish 0 1; publish 0 0; claim; pass_time 60; subsume; claim"))
@example(_steps("disturb 0; claim; publish 1 0; publish 0 0; pass_time 60; subsume; claim"))
@example(_steps("publish 0 1; publish 0 0; subsume; pass_time 1; clean_up; pass_time 60; clean_up; claim"))
@given(st.lists(STEPS, max_size=60))
def test_needed_files_stay_and_all_others_are_deleted_in_the_end(steps):
    """Files are published, subsumed and orphaned in any order. The world knows who could read which file."""
    world = World()
    for what, first, second in steps:
        match what:
            case "publish":
                world.publish(first, second)
            case "disturb":
                world.disturb(first)
            case "subsume":
                world.subsume(first)
            case "pass_time":
                world.pass_time(first)
            case "stage":
                world.stage()
            case "claim":
                world.generation += 1
                world.clean_up()
            case _:
                world.clean_up()
    world.generation += 1
    for _ in range(3):
        world.pass_time(GRACE_MS + 2)
        world.clean_up()
    named = frozenset().union(*world.rows.values())
    assert world.readable() | named == set(world.staged)
    assert min(world.cuts.values(), default=0) == world.log_floor()


def test_a_log_stays_whole_while_a_cut_does_not_name_its_table():
    """A rollback to a cut from before the table's first rows must see everything that the table has had since."""
    named, unnamed = TableSeen(9, frozenset({7, 8}), in_every_cut=True), TableSeen(9, frozenset({8}))
    looks = (CleanUpLook(0, {TABLE: named}), CleanUpLook(50, {TABLE: unnamed}), CleanUpLook(100, {TABLE: named}))
    assert 0 == log_floor(looks, TABLE, 100, 60)
    assert 7 == log_floor(looks, TABLE, 100, 0)


def test_a_log_stays_whole_while_a_look_does_not_know_its_table():
    """The table could not be read, so nobody has noted its versions."""
    seen = TableSeen(9, frozenset({7}), in_every_cut=True)
    assert 0 == log_floor((CleanUpLook(0, {TABLE: seen}), CleanUpLook(50, {})), TABLE, 100, 60)
    assert 0 == log_floor((CleanUpLook(50, {TABLE: seen}),), TABLE, 100, 60)


def test_a_cut_stays_while_an_entry_builds_on_it():
    """This holds for an entry's own cut, a savepoint's parent, and the parent of an entry without a cut yet."""
    plain, pending = _row(5, frozenset()), _row(8, frozenset())
    saved = _row(4, frozenset()).model_copy(update={"kind": RowKind.SAVEPOINT, "pinned": True})
    recorded = {CheckpointId(number) for number in (2, 3, 4, 5, 6, 7)}
    assert {3, 4, 5, 7} == readable_cuts((plain, saved, pending), recorded)
    assert {5} == readable_cuts((plain,), recorded)
    assert {5} == readable_cuts((plain,), {CheckpointId(4), CheckpointId(5)})


def _facts(*found: ListedFile, **changes: object) -> CleanupFacts:
    plain = {
        "current": Generation(3),
        "others_hold": False,
        "now_ms": 1_000,
        "grace_ms": 100,
        "rows": (),
        "recorded": frozenset(),
    }
    return CleanupFacts(**(plain | {"active": frozenset(), "found": found} | changes))


def _deleted(facts: CleanupFacts) -> list[str]:
    return [each.file.path for each in decide_cleanup(facts).delete]


@pytest.mark.parametrize(("modified_ms", "expected"), [(900, ["a"]), (901, [])])
def test_a_file_that_was_never_published_is_deleted_by_its_age(modified_ms, expected):
    """Nobody can be reading it, so only its age counts, to the millisecond."""
    facts = _facts(ListedFile("a", TABLE, Generation(1), 1, modified_ms))
    assert expected == _deleted(facts)
    assert [Reason.UNNAMED] == [each.reason for each in (*decide_cleanup(facts).delete, *decide_cleanup(facts).waiting)]


def test_a_foreign_file_is_deleted_only_if_our_log_has_removed_it():
    shown = (Shown(1, 2, 10),)
    look = CleanUpLook(20, {TABLE: TableSeen(5, frozenset({4}))})
    removed, unknown = ListedFile("a", TABLE, None, 1, 0, shown), ListedFile("b", TABLE, None, 1, 0)
    assert ["a"] == _deleted(_facts(removed, unknown, looks=(look,)))


def test_no_file_is_judged_during_an_import():
    """An import holds a job without any entry. Its files have old names, and must stay until their entry comes."""
    copied = ListedFile("a", TABLE, Generation(1), 1, 0)
    assert [] == _deleted(_facts(copied, others_hold=True))
    assert ["a"] == _deleted(_facts(copied))
    assert ["a"] == _deleted(_facts(copied, others_hold=True, rows=(_row(1, frozenset({"b"})),)))


def test_files_of_a_rename_stay_until_its_cut_is_recorded():
    """The process that publishes the entry writes them, and the entry does not name them. Files of other tables go."""
    shown = _row(2, frozenset())
    (table,) = shown.tables
    entry = shown.model_copy(update={"tables": (table.model_copy(update={"renamed": (("new", "old"),)}),)})
    again = ListedFile(f"{TABLE}/_data/1/again", TABLE, Generation(1), 1, 0)
    newer = ListedFile(f"{TABLE}/_data/2/left", TABLE, Generation(2), 1, 0)
    other = ListedFile("gold/other/_data/1/left", TableName("gold/other"), Generation(1), 1, 0)
    facts = _facts(again, newer, other, rows=(entry,))
    assert {newer, other} == {each.file for each in decide_cleanup(facts).delete}
    recorded = _facts(again, rows=(entry,), recorded=frozenset({CheckpointId(2)}))
    assert [again] == [each.file for each in decide_cleanup(recorded).delete]
    assert [again] == [each.file for each in decide_cleanup(_facts(again, rows=(shown,))).delete]


# ------------------------------------------------------------------
# A reader's reservation counts while it is renewed. A killed reader's reservation ends.


VERSIONS = {TableName("gold/by_key"): 3}


def counts(given_ms, lapses_ms, now_ms, *, by_job=False):
    return bool(standing([Reservation(VERSIONS, given_ms, lapses_ms, by_job=by_job)], now_ms))


def test_a_job_that_reads_cuts_may_stand_still_for_30_days():
    """After that, its reservation ends, whatever it says."""
    for_ever = 10**15
    assert counts(0, for_ever, JOB_RESERVATION_MS_MAX - 1, by_job=True)
    assert not counts(0, for_ever, JOB_RESERVATION_MS_MAX, by_job=True)
    assert not counts(0, for_ever, RESERVATION_MS_MAX)


# ------------------------------------------------------------------
# Which small files become one, and when a table allows it. No store and no Spark.


UNIQUE = "11111111-2222-3333-4444-{:012}"
BYTES_MAX = 1_000_000


def file(number, size, partition=""):
    folder = f"{partition}/" if partition else ""
    return ActiveFile(f"bronze/rows/_data/1/{folder}rows-{number}-{UNIQUE.format(number)}.parquet", size)


def paths(files):
    return tuple(each.path for each in files)


def groups(files, files_min=4, bytes_max=BYTES_MAX):
    return [{*each} for each in groups_to_compact(files, files_min, bytes_max)]


def test_enough_small_files_become_one():
    """Three are too few, and four are enough. A file that is much larger than all of them stays."""
    small = [file(number, 100) for number in range(4)]
    assert [] == groups(small[:3])
    assert [{*paths(small)}] == groups(small)
    assert [{*paths(small)}] == groups([*small, file(9, 801)])
    assert [{*paths([*small, file(9, 800)])}] == groups([*small, file(9, 800)])


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


def compaction(*of):
    return FileCompaction(into=FileHandle("bronze/rows/new", 1, 1, 0), of=of)


def test_a_compaction_needs_all_its_files():
    """It is left out if a file is gone or has a deletion vector, or if it was carried out before."""
    wanted = compaction("a", "b")
    assert (wanted,) == still_possible([wanted], {"a", "b", "c"})
    assert () == still_possible([wanted], {"a", "c"})
    assert () == still_possible([wanted], {"a", "b"}, marked={"b"})
    assert () == still_possible([wanted], {"a", "b", wanted.into.path})
