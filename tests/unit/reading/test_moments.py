"""The words with which a user names a cut, and their meanings."""

from datetime import UTC, datetime, timedelta

import pytest

from jobs.reading import InvalidMomentError
from jobs.reading.moments import AsOf, Newest, Numbered, at_ms_of, is_moment, moment_of, shown

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
    """A time without a zone is local. The user can type what a message shows."""
    assert meant == moment_of(words)
    assert is_moment(words.strip())


def test_a_date_means_its_local_midnight():
    """Delta's `TIMESTAMP AS OF '2025-11-21'` means the same."""
    assert datetime(2025, 11, 21).astimezone().timestamp() * 1000 == at_ms_of("2025-11-21")
    assert at_ms_of(NOON) == at_ms_of(NOON.isoformat()) == NOON_MS
    assert timedelta(days=1).total_seconds() * 1000 == at_ms_of("2025-11-22T00:00Z") - at_ms_of("2025-11-21T00:00Z")


@pytest.mark.parametrize("words", ["", "x", "newest", "-3", "2025-13-45", "7th", "25:00", "0001-01-01T00:00+23:59"])
def test_another_word_is_refused_with_the_valid_forms(words):
    """The message shows each form."""
    with pytest.raises(
        InvalidMomentError, match="names no cut: write a checkpoint id like 7, 'latest', or a time like"
    ):
        moment_of(words)


@pytest.mark.parametrize("word", ["flights", "offsets_100_105", "latest_flights"])
def test_a_pipelines_name_is_no_moment(word):
    """So the user may leave the pipeline out on the command line."""
    assert not is_moment(word)
