"""Tests how readers name moments, and which files hold a slice of state."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation
from checkpointing.key_groups import KeyGroupRange
from jobs.reading import InvalidMomentError
from jobs.reading.moments import AsOf, Newest, Numbered, at_ms_of, is_moment, moment_of, shown
from jobs.reading.state_slices import files_of, slices_of, without

NOON_MS = 1_763_726_400_123
NOON = datetime.fromtimestamp(NOON_MS / 1000, UTC)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("latest", Newest()),
        (" 7 ", Numbered(7)),
        ("2025-11-21T12:00:00.123Z", AsOf(NOON_MS)),
        ("2025-11-21 14:00:00.123+02:00", AsOf(NOON_MS)),
        (shown(NOON_MS), AsOf(NOON_MS)),
        (NOON.astimezone().replace(tzinfo=None).isoformat(), AsOf(NOON_MS)),
    ],
)
def test_a_word_means_a_number_the_newest_cut_or_a_time(words, meant):
    """A time without a zone is local time. A user can type a moment as messages show it."""
    assert meant == moment_of(words)
    assert is_moment(words.strip())


def test_a_date_means_its_local_midnight():
    """Delta's `TIMESTAMP AS OF '2025-11-21'` means the same moment."""
    assert datetime(2025, 11, 21).astimezone().timestamp() * 1000 == at_ms_of("2025-11-21")
    assert at_ms_of(NOON) == at_ms_of(NOON.isoformat()) == NOON_MS
    assert timedelta(days=1).total_seconds() * 1000 == at_ms_of("2025-11-22T00:00Z") - at_ms_of("2025-11-21T00:00Z")


@pytest.mark.parametrize("words", ["", "x", "newest", "-3", "2025-13-45", "7th", "25:00", "0001-01-01T00:00+23:59"])
def test_another_word_is_refused_with_the_valid_forms(words):
    """The message shows each valid form."""
    with pytest.raises(
        InvalidMomentError, match="names no cut: write a checkpoint id like 7, 'latest', or a time like"
    ):
        moment_of(words)


@pytest.mark.parametrize("word", ["flights", "offsets_100_105", "latest_flights"])
def test_a_pipelines_name_is_no_moment(word):
    """So the user may leave the pipeline out on the command line."""
    assert not is_moment(word)


# ------------------------------------------------------------------
# Compares which state files are live with a plain rule, key group by key group.


GROUPS = 16


def files(chance: Random) -> list[KeyedFile]:
    """Return files of random ranges and kinds, oldest first."""
    found = []
    for number in range(chance.randrange(8)):
        first, last = sorted((chance.randrange(GROUPS), chance.randrange(GROUPS)))
        kind = chance.choice(list(KeyedFileKind))
        found.append(KeyedFile(FileHandle(f"{number}", 1, 1, 1), kind, first, last, Version(Generation(1), number)))
    return found


def counts(every: list[KeyedFile], place: int, group: int) -> bool:
    """Return True if a file counts for a key group: it holds the group, and no later base holds the group."""

    def wrote(file: KeyedFile) -> bool:
        return file.first_key_group <= group <= file.last_key_group

    return wrote(every[place]) and not any(
        wrote(later) and later.kind is KeyedFileKind.BASE for later in every[place + 1 :]
    )


@pytest.mark.parametrize("seed", range(200))
def test_a_file_counts_until_a_later_base_replaces_it(seed):
    """This holds within the subtask's range, whatever ranges the files have.

    Each key group of a file is in at most one slice.
    """
    chance = Random(seed)  # noqa: S311 - the same files each time
    every = files(chance)
    first, last = sorted((chance.randrange(GROUPS), chance.randrange(GROUPS)))
    slices = list(slices_of(KeyGroupRange(first=first, last=last), every))
    covered = [(each.age_rank, group) for each in slices for group in range(each.first, each.last + 1)]
    expected = [
        (place, group) for place in range(len(every)) for group in range(first, last + 1) if counts(every, place, group)
    ]
    assert expected == sorted(covered)
    for each in slices:
        keyed = every[each.age_rank]
        assert (keyed.file, keyed.kind) == (each.file, each.kind)
        assert each.whole == (KeyGroupRange(first=each.first, last=each.last) == keyed.key_groups)
    assert len({each.file for each in slices}) == len(files_of(slices))


@pytest.mark.parametrize(
    ("taken", "left"),
    [((0, 3), [(4, 9)]), ((10, 12), [(4, 9)]), ((5, 9), [(4, 4)]), ((6, 7), [(4, 5), (8, 9)]), ((4, 9), [])],
)
def test_subtracting_a_range_leaves_both_sides(taken, left):
    """If the ranges have nothing in common, everything is left."""

    def ranged(first, last):
        return KeyGroupRange(first=first, last=last)

    assert [ranged(*each) for each in left] == list(without(ranged(4, 9), ranged(*taken)))
