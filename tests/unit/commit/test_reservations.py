"""A reader's reservation counts while it is renewed, and a reader that was killed keeps nothing for ever."""

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.commit.cleanup import JOB_RESERVATION_MS_MAX, RESERVATION_MS_MAX, Reservation, is_forgotten, standing
from checkpointing.identifiers import TableName

VERSIONS = {TableName("gold/by_key"): 3}
TIMES = st.integers(min_value=-(10**15), max_value=10**15)


def counts(given_ms, lapses_ms, now_ms, *, by_job=False):
    """Say whether such a reservation counts."""
    return bool(standing([Reservation(VERSIONS, given_ms, lapses_ms, by_job=by_job)], now_ms))


def test_a_reservation_counts_until_it_lapses():
    """It counts up to the moment that it names, and not at that moment."""
    assert counts(0, 100, 0)
    assert counts(0, 100, 99)
    assert not counts(0, 100, 100)


def test_a_reader_with_another_clock_is_believed_up_to_a_day():
    """A clock that is an hour ahead still reserves; one that is a day ahead does not."""
    hour_ms = 3_600_000
    assert counts(hour_ms, 2 * hour_ms, 0)
    assert not counts(RESERVATION_MS_MAX, RESERVATION_MS_MAX + 1, 0)


def test_a_job_that_reads_on_from_a_cut_may_stand_still_for_30_days():
    """And not for ever, whatever its reservation says."""
    for_ever = 10**15
    assert counts(0, for_ever, JOB_RESERVATION_MS_MAX - 1, by_job=True)
    assert not counts(0, for_ever, JOB_RESERVATION_MS_MAX, by_job=True)
    assert not counts(0, for_ever, RESERVATION_MS_MAX)


@given(TIMES, TIMES, TIMES)
def test_no_reservation_lasts_for_ever(given_ms, lapses_ms, now_ms):
    """Whatever a file says, it counts for two days at most after it was first seen to count, and is then forgotten."""
    assert not (counts(given_ms, lapses_ms, now_ms) and counts(given_ms, lapses_ms, now_ms + 2 * RESERVATION_MS_MAX))
    reservation = Reservation(VERSIONS, given_ms, lapses_ms)
    if standing([reservation], now_ms):
        assert not is_forgotten(reservation, now_ms)
        assert is_forgotten(reservation, now_ms + 3 * RESERVATION_MS_MAX)
