"""Decides which split is read when: exact pacing, caps, fairness and positions (A11)."""

from random import Random

import pytest

from checkpointing.channel_items import SourceSlice
from checkpointing.graph import Vertex, VertexKind
from checkpointing.identifiers import SubtaskId
from checkpointing.job.polling import Pacing, SourceReaders, UnknownSplitError

FLIGHTS = Vertex("flights", VertexKind.SOURCE, 3, splits=("e", "j", "l"))
WEATHER = Vertex("weather", VertexKind.SOURCE, 1, splits=("w",))
ALL = frozenset(
    SubtaskId(source.id, index) for source in (FLIGHTS, WEATHER) for index in range(source.parallelism)
).__contains__


def readers(positions=None, **pacing):
    parts = {"slice_rows_max": 100, "every_rows": None, "counted": frozenset(), "caps": {}, "idle_poll_ms": 500}
    return SourceReaders((FLIGHTS, WEATHER), positions or {}, Pacing(**{**parts, "failures_max": 0, **pacing}))


def answer(to, poll, rows):
    """Answer a poll with this many rows."""
    start = int(poll.position or 0)
    to.offered(SourceSlice(poll.source, poll.split, str(start), str(start + rows), "", rows, rows))


@pytest.mark.parametrize("seed", range(20))
def test_an_epoch_has_exactly_its_number_of_rows(seed):
    """`every_rows` N: however many rows each poll finds, the counted sources send exactly N rows, then none (A11)."""
    random = Random(seed)  # noqa: S311
    own = readers(every_rows=50, counted=frozenset({"flights"}), slice_rows_max=random.choice([1, 7, 100]))
    for _ in range(3):
        sent, waiting = 0, []
        while not own.barrier_due:
            waiting += own.polls(0, ALL)
            poll = waiting.pop(random.randrange(len(waiting)))
            rows = random.randint(1, poll.max_rows)
            answer(own, poll, rows)
            sent += rows if poll.source == "flights" else 0
        assert 50 == sent
        assert [] == [poll for poll in own.polls(0, ALL) if poll.source == "flights"]
        own.barrier_sent()
        for poll in waiting:
            own.found_idle(poll.source, poll.split, -1_000)


def test_a_barrier_is_due_once_an_epoch():
    """After the request it is not due again, however long the coordinator waits. The next epoch has its own."""
    own = readers(every_rows=5)
    for epoch in range(2):
        for poll in list(own.polls(epoch, ALL)):
            answer(own, poll, poll.max_rows)
        assert own.barrier_due
        own.barrier_asked()
        assert not own.barrier_due
        own.barrier_sent()


def test_a_cap_holds_for_its_source_alone():
    """A source with a cap sends this many rows between two barriers. The others go on, and `quota_spent` says so."""
    own = readers(caps={"weather": 5})
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    assert 5 == polls["w"].max_rows
    answer(own, polls["w"], 5)
    assert own.quota_spent
    assert [] == list(own.polls(0, ALL))
    own.barrier_sent()
    assert [("w", "5")] == [(poll.split, poll.position) for poll in own.polls(0, ALL)]


def test_splits_share_the_quota():
    """No split takes the whole quota from the others. Three splits and ten rows give 4, 3, 3."""
    own = readers(every_rows=10, counted=frozenset({"flights"}))
    assert [4, 3, 3] == [poll.max_rows for poll in own.polls(0, ALL) if poll.source == "flights"]


def test_a_source_whose_cap_is_spent_leaves_its_share():
    """The other source gets all that is left of the quota, also if it is asked first."""
    own = readers(every_rows=10, caps={"flights": 1})
    first, weather = own.polls(0, ALL)
    answer(own, first, 1)
    own.barrier_sent()
    (second,) = own.polls(0, ALL)
    answer(own, second, 1)
    answer(own, weather, 1)
    assert [("w", 8)] == [(poll.split, poll.max_rows) for poll in own.polls(0, ALL)]


def test_splits_take_turns():
    """If only one row may be read, each split gets it in turn."""
    own = readers(every_rows=1, counted=frozenset({"flights"}))
    met = set()
    for _ in range(8):
        for poll in list(own.polls(0, ALL)):
            answer(own, poll, 1)
            met.add(poll.split)
        own.barrier_sent()
    assert {"e", "j", "l", "w"} == met


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_a_quota_of_one_row_goes_round(calls):
    """However often the splits are asked in an epoch, each of the four has its row after four epochs (A11)."""
    own, read = readers(every_rows=1), []
    for _ in range(8):
        for _ in range(calls):
            for poll in list(own.polls(0, ALL)):
                answer(own, poll, 1)
                read.append(poll.split)
        own.barrier_sent()
    assert ["e", "j", "l", "w"] * 2 == read


def test_an_idle_source_is_polled_again_after_a_pause():
    """It is not polled before the end of the pause. `next_poll_ms` has the time."""
    own = readers()
    for poll in list(own.polls(0, ALL)):
        own.found_idle(poll.source, poll.split, 100)
    assert own.all_idle
    assert [] == list(own.polls(599, ALL))
    assert 600 == own.next_poll_ms(599)
    assert 4 == len(list(own.polls(600, ALL)))


def test_a_poll_of_an_idle_split_keeps_no_tick_running():
    """`polling` counts only splits that may have rows."""
    own = readers()
    for poll in list(own.polls(0, ALL)):
        own.found_idle(poll.source, poll.split, 0)
    assert 4 == len(list(own.polls(500, ALL)))
    assert not own.polling
    assert own.is_polling("weather")


def test_a_poll_that_is_due_sets_no_timer():
    """A split that is due but has no credit waits for credit. The time of the next poll is the other split's."""
    own = readers()
    for place, poll in enumerate(list(own.polls(0, ALL))):
        own.found_idle(poll.source, poll.split, place * 100)
    assert 600 == own.next_poll_ms(500)
    assert own.next_poll_ms(10_000) is None


def test_nothing_is_read_after_the_stop():
    """A tick that is about to end polls nothing more."""
    own = readers()
    own.stopped = True
    assert [] == list(own.polls(0, ALL))
    assert own.next_poll_ms(0) is None


def test_a_reader_begins_at_the_cut():
    """Each split begins at its position, and the position moves with the rows that it sends."""
    own = readers({SubtaskId("flights", 1): "40"})
    poll = next(poll for poll in own.polls(0, ALL) if poll.split == "j")
    assert "40" == poll.position
    answer(own, poll, 3)
    assert ["43", None] == [own.position(SubtaskId("flights", index)) for index in (1, 2)]


def test_rows_sent_counts_across_barriers():
    """`rows` counts since the last barrier, and `rows_sent` since the start."""
    own = readers()
    for rows in (3, 4):
        answer(own, next(iter(own.polls(0, lambda subtask: subtask == SubtaskId("weather", 0)))), rows)
        assert rows == own.rows
        own.barrier_sent()
    assert (0, 7) == (own.rows, own.rows_sent)


def test_an_answer_without_a_poll_is_refused():
    """A split that was not polled cannot answer, and one poll has one answer."""
    own = readers()
    with pytest.raises(UnknownSplitError, match="split e of source flights"):
        own.found_idle("flights", "e", 0)
    with pytest.raises(UnknownSplitError, match="split x"):
        own.found_idle("flights", "x", 0)


def test_a_split_that_cannot_be_read_is_polled_again_and_fails_in_the_end():
    """It is polled again after a pause. Any answer, with rows or without, resets its failures."""
    own = readers(failures_max=2)
    (_, weather) = [polled for polled in list(own.polls(0, ALL)) if polled.split in ("e", "w")]
    said = []
    for now_ms in (0, 500, 1_000):
        said.append(own.failed("weather", "w", now_ms))
        assert (True, now_ms + 500) == (own.failing, own.next_poll_ms(now_ms))
        assert [] == [polled for polled in own.polls(now_ms + 499, ALL) if polled.split == "w"]
        assert [weather] == [polled for polled in own.polls(now_ms + 500, ALL) if polled.split == "w"]
    assert [False, False, True] == said
    own.found_idle("weather", "w", 2_000)
    assert not own.failing
    list(own.polls(2_500, ALL))
    assert not own.failed("weather", "w", 2_500)
    (again,) = [polled for polled in own.polls(3_000, ALL) if polled.split == "w"]
    answer(own, again, 3)
    list(own.polls(3_000, ALL))
    assert not own.failed("weather", "w", 3_000)
