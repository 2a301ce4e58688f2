"""Tests which splits are held back because they are ahead in event time, and which answers are refused (A11, N1)."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import SourceSlice
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator.messages import TriggerTask
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.graph import JobGraph, Vertex, VertexKind
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, SubtaskId
from checkpointing.job.operator_run import source_barrier
from checkpointing.job.polling import Pacing, SourceReaders, UnknownSplitError
from checkpointing.job.restoring import CutDoesNotFitError

FLIGHTS = Vertex("flights", VertexKind.SOURCE, 3, splits=("e", "j", "l"))
WEATHER = Vertex("weather", VertexKind.SOURCE, 1, splits=("w",))
ALL = frozenset(
    SubtaskId(source.id, index) for source in (FLIGHTS, WEATHER) for index in range(source.parallelism)
).__contains__


def readers(positions=None, **pacing):
    parts = {"slice_rows_max": 100, "every_rows": None, "counted": frozenset(), "caps": {}, "idle_poll_ms": 500}
    return SourceReaders((FLIGHTS, WEATHER), positions or {}, Pacing(**{**parts, "failures_max": 0, **pacing}))


def answer(to, poll, rows):
    start = int(poll.position or 0)
    offered = SourceSlice(poll.source, poll.split, str(start), str(start + rows), "", rows, rows)
    to.offered(offered)
    return offered


def test_an_answer_without_a_poll_is_refused():
    own = readers()
    with pytest.raises(UnknownSplitError, match="split e of source flights"):
        own.found_idle("flights", "e", 0)
    with pytest.raises(UnknownSplitError, match="split x"):
        own.found_idle("flights", "x", 0)


# ------------------------------------------------------------------
# Splits that run ahead in event time are held back, but never for ever (N1).


def reached(own, **times):
    """Report how far the splits have been read, in ms. Each split may be 10 ms ahead of the others."""
    places = {"e": ("flights", 0), "j": ("flights", 1), "l": ("flights", 2), "w": ("weather", 0)}
    own.reached(
        (ChannelId(EdgeId(places[split][0], "bronze"), places[split][1]), ms, 10) for split, ms in times.items()
    )


def polled(own, now_ms=0):
    return [poll.split for poll in own.polls(now_ms, ALL)]


def at_rest(own):
    """Let each poll bring a row, so that no split is known to have nothing to read."""
    for poll in list(own.polls(0, ALL)):
        own.ran(answer(own, poll, 1))


def test_a_split_that_is_ahead_is_not_read_until_the_others_have_caught_up():
    """A split may be as far ahead as declared. All streams that declare a limit wait for each other."""
    own = readers()
    at_rest(own)
    reached(own, e=100, j=110, l=111, w=100)
    first = list(own.polls(0, ALL))
    assert ["e", "j", "w"] == [poll.split for poll in first]
    assert not own.all_idle, "l may have rows"
    for poll in first:
        own.ran(answer(own, poll, 1))
    reached(own, e=101)
    assert "l" not in polled(own), "the weather is behind"
    reached(own, w=101)
    assert ["l"] == polled(own)


def test_a_split_is_read_on_once_it_is_known_how_far_its_rows_are():
    """A poll may bring a whole backlog. Rows that no vertex has run yet may be far ahead."""
    own = readers()
    reached(own, e=0, j=0, l=0, w=0)
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    first = answer(own, polls["w"], 1)
    assert "w" not in polled(own)
    answer(own, polls["e"], 1)
    own.ran(first)
    assert ["w"] == polled(own), "e has not run yet"


def test_without_hold_back_a_split_is_read_on_before_its_rows_have_run():
    own = readers()
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    answer(own, polls["w"], 1)
    assert ["w"] == polled(own)


def test_what_has_nothing_to_read_holds_nobody_back():
    """A split without rows, an idle split and an ended split hold no other split back (FLINK-32414, -32496, -37670)."""
    own = readers()
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    for split in ("e", "l"):
        own.found_idle("flights", split, 0)
    own.ran(answer(own, polls["j"], 1))
    own.ran(answer(own, polls["w"], 1))
    reached(own, e=-(2**63), l=5, j=100, w=50)
    assert ["w"] == polled(own), "e has never had rows, and l has none now"
    own.found_ended("weather", "w")
    assert ["j"] == polled(own)


def test_a_split_that_cannot_be_read_holds_nobody_back():
    own = readers(failures_max=3)
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    own.failed("weather", "w", 0)
    for split in ("e", "j", "l"):
        own.ran(answer(own, polls[split], 1))
    reached(own, w=0, e=100, j=100, l=100)
    assert ["e", "j", "l"] == polled(own)


def test_a_split_that_is_held_back_is_not_idle_at_a_barrier():
    """The split could not be read, so its idle time does not run.

    Flink stops a paused split's clock, too (FLINK-35886).
    """
    own = readers()
    polls = {poll.split: poll for poll in own.polls(0, ALL)}
    for split in ("e", "j", "w"):
        own.ran(answer(own, polls[split], 1))
    own.found_idle("flights", "l", 0)
    reached(own, e=100, j=100, w=100, l=500)
    assert "l" not in polled(own, 1_000)
    held = SubtaskId("flights", 2)
    trigger = TriggerTask(held, CheckpointId(1), CHECKPOINT)
    sent = source_barrier(trigger, CheckpointConfig(), 1_000, own.split(held))
    assert not sent.idle
    reached(own, e=490, j=490, w=490)
    assert "l" in polled(own, 1_000)
    own.found_idle("flights", "l", 1_000)
    assert source_barrier(trigger, CheckpointConfig(), 1_000, own.split(held)).idle


def test_splits_with_nothing_to_read_may_have_rows_again_once_a_cut_of_their_job_is_known():
    """These splits are then read up to that cut (A10)."""
    own = readers(cut_groups={"flights": "shop"})
    (first,) = (poll for poll in own.polls(0, ALL) if poll.source == "flights")
    own.found_idle("weather", "w", 0)
    own.found_idle("flights", first.split, 0)
    for split in ("j", "l"):
        assert [split] == polled(own)
        own.found_idle("flights", split, 0)
    assert own.all_idle
    (asked,) = (poll for poll in own.polls(500, ALL) if poll.source == "flights")
    own.found_idle("weather", "w", 500)
    own.offered(SourceSlice("flights", asked.split, "0", "1", "", 1, 1, cut="7", at_cut=True))
    assert {"e", "j", "l"} - {asked.split} == set(polled(own, 501)), "without a pause"
    assert own.polling, "the tick waits for their answers"


# ------------------------------------------------------------------
# A source that is read in parts, one after the other (B4).


HISTORY, MORE, LIVE = "1.a", "1.b", "2.all"


def parted(job, *splits, bounded=False, parts=("1.", "2.")):
    left, *others = job.two_sources().vertices
    left = replace(left, splits=splits, parallelism=len(splits), parts=parts, bounded=bounded)
    return JobGraph((left, *others), job.two_sources().edges)


def test_a_cut_of_the_source_alone_is_refused_by_name(job):
    """The position of a split without a part could belong to any part."""
    alone = JobGraph(job.two_sources().vertices, job.two_sources().edges)
    with pytest.raises(CutDoesNotFitError, match=r"stands in split 'l' of source 'left', which reads several sources"):
        job.story(parted(job, "l", HISTORY, LIVE), restored=job.record(alone, 3, {}))
