"""Tests large entries and their manifests. A stored entry is read back unchanged, and a small change writes little."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.manifests import Manifest, Sizes, Stored, counted_by, handles_in, path_of, stored, whole
from checkpointing.handles import KeyedFile
from checkpointing.metadata.codec import UnreadableRowError, decode_stored, encode
from checkpointing.metadata.files import files_of, handles_of
from checkpointing.metadata.record import CheckpointRecord
from tests.unit.commit.large_rows import keyed, large_record, numbered
from tests.unit.stores.valid_rows import checkpoints

LOW = Sizes(inline=2, recent=1, manifest=3, few=2)


def _read(form: Stored, contents: dict[str, bytes]) -> CheckpointRecord:
    entry = decode_stored(encode(form.entry, writer="tidemark 0.6.0"))
    assert isinstance(entry, CheckpointRecord)
    return whole(entry, _manifests(entry, contents))


def _manifests(entry: CheckpointRecord, contents: dict[str, bytes]) -> tuple[Manifest, ...]:
    found = ((each, handles_in(entry, each, contents[path_of(entry, each)])) for each in entry.manifests)
    return tuple(counted_by(entry, each, files) for each, files in found)


@given(record=checkpoints())
def test_any_entry_is_read_back_as_it_was(record: CheckpointRecord) -> None:
    """The text and the manifests hold everything that the entry holds."""
    form = stored(record, None, LOW)
    assert record == _read(form, dict(form.new)).model_copy(update={"held_in": ()})


_changes = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["append", "drop", "compact", "insert"])), max_size=25)


@given(changes=_changes, seed=st.integers(0, 99))
def test_entries_that_keep_manifests_of_the_ones_before_are_read_back(
    changes: list[tuple[int, str]], seed: int
) -> None:
    """Files come, go, are compacted, or come out of order. The order of each subtask's files is kept."""
    draw, numbers = random.Random(seed), iter(range(1, 10_000))  # noqa: S311 - a failure must be repeatable
    lists = [[next(numbers) for _ in range(4)] for _ in range(3)]
    contents: dict[str, bytes] = {}
    before: Stored | None = None
    for number, (subtask, change) in enumerate(changes, start=1):
        own = lists[subtask]
        match change:
            case "append":
                own.append(next(numbers))
            case "drop" if own:
                own.pop(draw.randrange(len(own)))
            case "compact":
                own[:] = [next(numbers)]
            case _:
                own.insert(draw.randint(0, len(own)), next(numbers))
        record = large_record(lists, lists[::-1], number)
        form = stored(record, before, LOW)
        assert set(form.new) <= set(form.held_in)
        contents |= form.new
        read = _read(form, contents)
        assert (record, form.held_in) == (read.model_copy(update={"held_in": ()}), read.held_in)
        assert {file.path for file in handles_of(record)}.union(form.held_in) == files_of(read)
        before = form


def test_an_entry_without_a_change_writes_no_manifest() -> None:
    """A manifest is written once, and several entries name it."""
    lists = numbered(100, 30)
    first = stored(large_record(lists, lists))
    again = stored(large_record(lists, lists, 2), first)
    assert (first.held_in, {}) == (again.held_in, again.new)


def test_an_entry_writes_only_the_changed_handles() -> None:
    """With 300 new files in 100 subtasks, an entry writes about as much beside 30,000 files as beside 600."""
    sizes: list[int] = []
    for files in (6, 300):
        lists, none = numbered(100, files), [[] for _ in range(100)]
        before = stored(large_record(lists, none))
        now = [[*own[3:], *new] for own, new in zip(lists, numbered(100, 3, 50_000), strict=True)]
        form = stored(large_record(now, none, 2), before)
        sizes.append(sum(map(len, form.new.values())) + len(encode(form.entry, writer="x")))
    few, many = sizes
    assert many < 1.5 * few


def test_a_manifest_is_written_anew_when_less_than_a_quarter_of_it_counts() -> None:
    """The other manifests stay. So the manifests of an entry never hold many more handles than the entry counts."""
    lists, none = numbered(100, 40), [[] for _ in range(100)]
    before = stored(large_record(lists, none))
    assert [4_000] == [each.size for each in before.manifests]
    half = stored(large_record([own[20:] for own in lists], none, 2), before)
    assert (before.held_in, {}) == (half.held_in, half.new)
    tail = stored(large_record([own[20:] for own in lists[:40]] + [own[:0] for own in lists[40:]], none, 3), half)
    assert [] == [*tail.entry.manifests]  # few handles are left, so the entry names them itself
    more = [own[20:] for own in lists[:40]] + [*numbered(60, 20, 70_000)]
    third = stored(large_record(more, none, 4), half)
    assert [800, 1_200] == [each.size for each in third.manifests]
    assert set(third.held_in) == set(third.new)


def test_the_newest_manifests_are_merged_if_they_are_the_smallest() -> None:
    """The larger manifests are not written again."""
    sizes = Sizes(inline=10, recent=30, manifest=100, few=1)
    files = list(range(60))
    before = stored(large_record([files], [[]]), None, sizes)
    for number in range(2, 6):
        files = [*files, *range(number * 1_000, number * 1_000 + 31)]
        before = stored(large_record([files], [[]], number), before, sizes)
    assert [60, 31, 31, 31, 31] == [each.size for each in before.manifests]
    left = [file for place, file in enumerate(files) if place < 40 or (place >= 60 and (place - 60) % 31 < 10)]
    now = stored(large_record([left], [[]], 6), before, sizes)
    assert [40, 20, 20] == [each.counts for each in now.manifests]
    assert before.manifests[0].digest == now.manifests[0].digest


class _Counted(tuple[KeyedFile, ...]):  # noqa: SLOT001 - it counts
    """The files of a subtask, and how often code has read them."""

    times = 0

    def __iter__(self) -> Iterator[KeyedFile]:
        self.times += 1
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        self.times += 1
        return super().__getitem__(at)


def test_nobody_looks_at_the_files_of_a_subtask_that_did_not_change() -> None:
    """The next entry has the same snapshot of the subtask. All files of the subtask are in a manifest."""
    record = large_record(numbered(3, 30), [[], [], []])
    (vertex,) = record.vertices
    files = _Counted(vertex.subtasks[0].state)
    same = replace(vertex.subtasks[0], state=files)

    def entry(number: int, last: list[int]) -> CheckpointRecord:
        changed = replace(vertex.subtasks[1], state=tuple(map(keyed, last)))
        subtasks = (same, changed, vertex.subtasks[2])
        return record.model_copy(
            update={"checkpoint": number, "vertices": (vertex.model_copy(update={"subtasks": subtasks}),), "tables": ()}
        )

    sizes = Sizes(inline=10, recent=5, manifest=100, few=4)
    before = stored(entry(1, [500]), None, sizes)
    assert files.times
    files.times = 0
    assert before.manifests == stored(entry(2, [500, 501]), before, sizes).manifests
    assert 0 == files.times


@pytest.mark.parametrize("change", ["content", "bits", "place"])
def test_a_manifest_that_does_not_fit_is_refused(change: str) -> None:
    """The message names the entry, and the manifest or the subtask."""
    record = large_record([[1, 2, 3, 4]], [[]])
    form = stored(record, None, LOW)
    contents = dict(form.new)
    match change:
        case "content":
            path = form.held_in[0]
            contents[path] += b" "
            why = f"{path} was changed"
        case "bits":
            reference = form.entry.manifests[0].model_copy(update={"left_out": "ff"})
            form = replace(form, entry=form.entry.model_copy(update={"manifests": (reference,)}))
            why = "handles, not"
        case _:
            vertex = form.entry.vertices[0].model_copy(update={"subtasks": ()})
            form = replace(form, entry=form.entry.model_copy(update={"vertices": (vertex,)}))
            why = "which the entry does not have"
    with pytest.raises(UnreadableRowError, match=f"checkpoint 1 of job flights.*{why}"):
        _read(form, contents)


def test_a_file_in_a_manifest_must_lie_in_the_jobs_folders() -> None:
    """Another program may have written the manifest, so its handles are checked like those of the entry."""
    bad = keyed(1)
    bad = replace(bad, file=replace(bad.file, path="../victim.txt"))
    record = large_record([[2, 3, 4]], [[]])
    vertex = record.vertices[0].model_copy(update={"subtasks": (SubtaskSnapshot(state=(bad, *map(keyed, (2, 3)))),)})
    form = stored(record.model_copy(update={"vertices": (vertex,), "tables": ()}), None, LOW)
    with pytest.raises(UnreadableRowError, match="victim"):
        _read(form, dict(form.new))
