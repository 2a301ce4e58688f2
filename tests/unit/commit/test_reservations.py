"""A reader's reservation counts while it is renewed. A killed reader's reservation ends."""

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.commit.cleanup import JOB_RESERVATION_MS_MAX, RESERVATION_MS_MAX, Reservation, is_forgotten, standing
from checkpointing.identifiers import TableName

VERSIONS = {TableName("gold/by_key"): 3}
TIMES = st.integers(min_value=-(10**15), max_value=10**15)


def counts(given_ms, lapses_ms, now_ms, *, by_job=False):
    """Return whether such a reservation counts."""
    return bool(standing([Reservation(VERSIONS, given_ms, lapses_ms, by_job=by_job)], now_ms))


def test_a_reservation_counts_until_it_expires():
    """It counts before the moment that it names, and no longer at that moment."""
    assert counts(0, 100, 0)
    assert counts(0, 100, 99)
    assert not counts(0, 100, 100)


def test_a_reservation_of_a_reader_with_a_fast_clock_counts_up_to_a_day():
    """A clock that is an hour fast still reserves. One that is a day fast does not."""
    hour_ms = 3_600_000
    assert counts(hour_ms, 2 * hour_ms, 0)
    assert not counts(RESERVATION_MS_MAX, RESERVATION_MS_MAX + 1, 0)


def test_a_job_that_reads_cuts_may_stand_still_for_30_days():
    """After that, its reservation ends, whatever it says."""
    for_ever = 10**15
    assert counts(0, for_ever, JOB_RESERVATION_MS_MAX - 1, by_job=True)
    assert not counts(0, for_ever, JOB_RESERVATION_MS_MAX, by_job=True)
    assert not counts(0, for_ever, RESERVATION_MS_MAX)


@given(TIMES, TIMES, TIMES)
def test_every_reservation_ends(given_ms, lapses_ms, now_ms):
    """Whatever a file says, it counts for at most two days after it was first seen. Then it is forgotten."""
    assert not (counts(given_ms, lapses_ms, now_ms) and counts(given_ms, lapses_ms, now_ms + 2 * RESERVATION_MS_MAX))
    reservation = Reservation(VERSIONS, given_ms, lapses_ms)
    if standing([reservation], now_ms):
        assert not is_forgotten(reservation, now_ms)
        assert is_forgotten(reservation, now_ms + 3 * RESERVATION_MS_MAX)
