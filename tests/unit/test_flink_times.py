"""Flink's own cases of watermarks and idleness, through the functions and doors that a run uses (N1).

`docs/FLINK_MAP.md` says which kinds do not apply, and why. Where Flink has changed a rule, its current rule holds.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.channel_items import Barrier, SourceSlice
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME, EventTime, VertexTime, Watermark, combined, least
from checkpointing.gate import GateConfig, GatePolicy, InputGate, ItemArrived, Polled
from checkpointing.gate.messages import BarrierReceived, Deliver, TriggerCheckpoint
from checkpointing.graph import Vertex, VertexKind
from checkpointing.identifiers import ChannelId, EdgeId, SplitId
from checkpointing.job.operator_run import LiveFiles
from checkpointing.job.polling import Pacing, SourceReaders
from checkpointing.messages import SubtaskOutput

CASES = json.loads((Path(__file__).parents[1] / "vectors/time/watermarks.json").read_text())["cases"]


def ms(time):
    return {"MIN": BEFORE_TIME, "MAX": END_OF_TIME}.get(time, time)


def told(last, now):
    """Return what is sent downstream when a watermark changes."""
    active = [["status", "active"]] if last.idle and not now.idle else []
    watermark = [["watermark", now.ms]] if now.ms > last.ms else []
    return active + watermark + ([["status", "idle"]] if now.idle and not last.idle else [])


class Valve:
    """Runs the cases of Flink's valve on `combined`, with the watermarks of channels."""

    def __init__(self, channels):
        parts = [[0]] * channels if isinstance(channels, int) else channels
        self.channels = {(channel, part): Watermark() for channel, own in enumerate(parts) for part in own}
        self.last = Watermark()

    def watermark(self, channel, time, part=0):
        was = self.channels[channel, part]
        return self._goes_on((channel, part), was if was.idle else Watermark(max(was.ms, ms(time))))

    def status(self, channel, status):
        return self._goes_on((channel, 0), replace(self.channels[channel, 0], idle=status == "idle"))

    def _goes_on(self, at, now):
        self.channels[at] = now
        last, self.last = self.last, combined(self.channels.values(), self.last)
        firsts = {channel: mark for (channel, part), mark in self.channels.items() if part == 0}
        return {
            "out": told(last, self.last),
            "channel_watermark": {str(channel): mark.ms for channel, mark in firsts.items()},
            "aligned": {str(channel): not m.idle and m.ms >= self.last.ms for channel, m in firsts.items()},
        }


class Emitter(Valve):
    """Runs the cases of a source's output, which is one channel."""

    def __init__(self):
        super().__init__(1)

    def watermark(self, time):
        self.channels[0, 0] = replace(self.channels[0, 0], idle=False)
        return super().watermark(0, time)

    def idle(self):
        return super().status(0, "idle")


class Multiplexer:
    """Runs the cases of a multiplexer on `least`. Each output of the source is a split."""

    def __init__(self):
        self.outputs, self.last = {}, Watermark()
        self.reported = {"watermarks": [], "idle": 0, "active": 0}

    def register(self, output):
        self.outputs[output] = Watermark()
        return self._facts()

    def unregister(self, output):
        return {**self._facts(), "returned": self.outputs.pop(output, None) is not None}

    def deferred(self, output, what, time=BEFORE_TIME):
        was = self.outputs[output]
        self.outputs[output] = Watermark(max(was.ms, ms(time)), idle=what == "idle")
        return self._facts()

    def immediate(self, output, what, time=BEFORE_TIME):
        self.deferred(output, what, time)
        return self.periodic()

    def periodic(self):
        last, self.last = self.last, least(self.outputs.values(), self.last)
        for kind, value in told(last, self.last):
            if kind == "watermark":
                self.reported["watermarks"].append(value)
            else:
                self.reported[value] += 1
        return self._facts()

    def _facts(self):
        watermark = None if self.last.ms == BEFORE_TIME else self.last.ms
        return {"last_watermark": watermark, "idle": self.last.idle, "reported": self.reported}


class Generator:
    """Runs the cases of a watermark generator on `EventTime`."""

    def __init__(self, kind, delay_ms=0):
        assert kind in {"bounded_out_of_orderness", "ascending"}
        self.declared, self.times, self.said = EventTime(delay_ms), [], None

    def event(self, time):
        self.times.append(ms(time))
        return {"last_watermark": self.said}

    def periodic(self):
        self.said = self.declared.watermark(max(self.times)) if self.times else BEFORE_TIME
        return {"last_watermark": self.said}


class IdleTimer:
    """Runs the cases of an idleness timer on a split of `VertexTime`. Each check is a barrier."""

    split = ChannelId(EdgeId("clicks", "hourly"), 0)

    def __init__(self, idle_timeout_ms):
        self.timeout_ms, self.now_ms, self.barriers = idle_timeout_ms, 0, 0

    def create(self):
        try:
            self.time = VertexTime({self.split: EventTime(0, self.timeout_ms)})
        except ValueError:
            return {"error": "illegal_argument"}
        return {}

    def check(self):
        self.barriers += 1
        barrier = Barrier(self.barriers, self.now_ms, idle=True)
        self.time.received(self.split, barrier)
        self.time.pass_barrier(barrier)
        return {"idle": self.time.channels[self.split].mark.idle}

    def activity(self):
        self.time.came(self.split)
        return {}

    def advance_ms(self, time):
        self.now_ms += time
        return {}


class Task:
    """Runs the cases of a task on a vertex with its gate.

    Each watermark or status arrives as a barrier on all channels.
    """

    def __init__(self, channels, chain=("forward",)):
        assert chain == ("forward",)
        edges = [EdgeId(f"upstream{place}", "task", place) for place in range(len(channels))]
        self.senders = {
            ChannelId(edge, own): Watermark()
            for edge, count in zip(edges, channels, strict=True)
            for own in range(count)
        }
        self.edges = edges
        self.gate = InputGate(GateConfig(GatePolicy.ALIGNED_BLOCKING), tuple(self.senders))
        self.time = VertexTime(dict.fromkeys(self.senders))
        self.barriers, self.values = 0, []

    def watermark(self, place, channel, time):
        at = ChannelId(self.edges[place], channel)
        was = self.senders[at]
        self.senders[at] = was if was.idle else Watermark(max(was.ms, ms(time)))
        return self._barrier()

    def status(self, place, channel, status):
        at = ChannelId(self.edges[place], channel)
        self.senders[at] = replace(self.senders[at], idle=status == "idle")
        return self._barrier()

    def element(self, place, channel, value, time=None):
        self.values.append(["element", value, time])
        piece = SourceSlice("upstream", SplitId("0"), None, str(len(self.values) - 1), "", 1, 1)
        self.gate.step(ItemArrived(ChannelId(self.edges[place], channel), piece))
        return {"out": self._polled()}

    def _barrier(self):
        self.barriers += 1
        for channel, mark in self.senders.items():
            barrier = Barrier(self.barriers, watermark_ms=mark.ms, idle=mark.idle)
            self.gate.step(ItemArrived(channel, barrier))
        return {"out": self._polled()}

    def _polled(self):
        out = []
        while self.gate.has_deliverable():
            for effect in self.gate.step(Polled()):
                match effect:
                    case Deliver():
                        out.append(self.values[int(effect.segment.end)])
                    case BarrierReceived():
                        self.time.received(effect.channel, effect.barrier)
                    case TriggerCheckpoint():
                        last = self.time.watermark
                        sent = self.time.pass_barrier(effect.barrier)
                        assert (sent.watermark_ms, sent.idle) == (self.time.watermark.ms, self.time.watermark.idle)
                        out += self._told(last)
                    case _:
                        pass
        return out

    def _told(self, last):
        return told(last, self.time.watermark)


class Operator(Task):
    """Runs an operator's cases on a vertex. Each input has one channel.

    The vertex fires what is due before it sends its barrier on.
    """

    def __init__(self, inputs):
        super().__init__([1] * inputs)
        self.live, self.due = LiveFiles(), []

    def watermark(self, place, time):
        self.senders[ChannelId(self.edges[place], 0)] = replace(
            self.senders[ChannelId(self.edges[place], 0)], idle=False
        )
        return super().watermark(place, 0, time)

    def status(self, place, status):
        return super().status(place, 0, status)

    def element(self, place, value):
        super().element(place, 0, value)
        self.due.append(value)
        self.live.take_due(SubtaskOutput(due_ms=value), None)
        return {"out": []}

    def _told(self, last):
        now_ms, fired = self.time.watermark.ms, []
        if self.live.is_due(now_ms):
            fired = [["element", value] for value in sorted(self.due) if value <= now_ms]
            self.due = [value for value in self.due if value > now_ms]
            self.live.take_due(SubtaskOutput(due_ms=min(self.due, default=None)), now_ms)
        return fired + super()._told(last)


class Reader:
    """Runs the cases of a source's splits at the vertex that reads them. Each emission of a watermark is a barrier.

    A split that the case creates is missing in the cut, and a split that it releases is missing in the pipeline.
    """

    def __init__(self, progressive, generator, idle_timeout_ms=None):
        assert progressive
        self.each = generator == "each_event"
        self.declared = EventTime(0 if generator == "ascending" else -1, idle_timeout_ms)
        self.time, self.now_ms, self.barriers = VertexTime({}), 0, 0
        self.watermarks, self.idle_updates = [], []

    def create(self, split):
        self._splits({*self._known(), split})
        return self._facts([])

    def release(self, split):
        self._splits(self._known() - {split})
        return self._facts([])

    def collect(self, split, value, time):
        if split not in self._known():
            self.create(split)
        self.time.came(self._channel(split))
        self.time.read(self._channel(split), time)
        return self._facts([["element", value, time], *(self._barrier() if self.each else [])])

    def tick(self):
        self.now_ms += 100
        return self.periodic()

    def periodic(self):
        return self._facts(self._barrier())

    def advance_ms(self, time):
        self.now_ms += time
        return self._facts([])

    def _known(self):
        return {channel.edge.upstream for channel in self.time.channels}

    def _channel(self, split):
        return ChannelId(EdgeId(split, "vertex"), 0)

    def _splits(self, splits):
        before, self.time = self.time, VertexTime({self._channel(split): self.declared for split in splits})
        known = {channel: then for channel, then in before.channels.items() if channel in self.time.channels}
        self.time.restore(before.watermark, before.rows.ms, known)

    def _barrier(self):
        self.barriers += 1
        barrier, last = Barrier(self.barriers, self.now_ms, idle=True), self.time.watermark
        for channel in self.time.channels:
            self.time.received(channel, barrier)
        self.time.pass_barrier(barrier)
        out = told(last, self.time.watermark)
        self.watermarks += [value for kind, value in out if kind == "watermark"]
        self.idle_updates += [value == "idle" for kind, value in out if kind == "status"]
        return out

    def _facts(self, out):
        return {
            "out": out,
            "watermarks": self.watermarks,
            "watermarks_contain": self.watermarks,
            "idle_updates": self.idle_updates,
        }


class Coordinator:
    """Runs the cases of watermark alignment on `SourceReaders`. A group is a job, which knows only its own splits."""

    def __init__(self, groups, max_drift_ms):
        self.groups, self.drift_ms, self.reports, self.allowed = groups, max_drift_ms, {}, {}

    def report(self, source, subtask, time):
        self.reports[source, subtask] = ms(time)
        group = {each: at for each, at in self.reports.items() if self.groups[each[0]] == self.groups[source]}
        for each in group:
            if each[0] == source:
                self.allowed["/".join(map(str, each))] = self._limit(group, each)
        return {"allowed": self.allowed}

    def _limit(self, group, split):
        """Return the greatest watermark at which the split is still read."""
        least = min(group.values())
        limit = min(least + self.drift_ms, END_OF_TIME)
        assert self._reads(group, split, limit)
        assert limit == END_OF_TIME or not self._reads(group, split, limit + 1)
        return limit

    def _reads(self, group, split, at_ms):
        """Return whether a split at this watermark is read. All splits of the group stay at their last reports."""
        splits = [*group, ("probe", 0)]
        sources = tuple(
            Vertex("-".join(map(str, each)), VertexKind.SOURCE, 1, splits=("0",), bounded=True) for each in splits
        )
        own = SourceReaders(sources, {}, Pacing(1, None, frozenset(), {}, 1, 0))
        for poll in list(own.polls(0, lambda _: True)):
            slice_ = SourceSlice(poll.source, poll.split, None, "1", "", 1, 1)
            own.offered(slice_)
            own.ran(slice_)
        own.reached(
            (ChannelId(EdgeId("-".join(map(str, each)), "vertex"), 0), at, self.drift_ms)
            for each, at in {**group, ("probe", 0): at_ms}.items()
        )
        return "probe-0" in [poll.source for poll in own.polls(0, lambda _: True)]


class Aggregator:
    """Runs the cases of an aggregator on `least`, with the last value of each key."""

    def __init__(self):
        self.values = {}

    def aggregate(self, key, time):
        self.values[key] = Watermark(ms(time))
        return {"combined": least(self.values.values(), Watermark()).ms}


UNITS = {
    "valve": Valve,
    "emitter": Emitter,
    "multiplexer": Multiplexer,
    "generator": Generator,
    "idle_timer": IdleTimer,
    "task": Task,
    "operator": Operator,
    "reader_output": Reader,
    "coordinator": Coordinator,
    "aggregator": Aggregator,
}


def applies(case):
    """Return whether a case is of a kind that Tidemark has. `docs/FLINK_MAP.md` has the reasons."""
    given, shared = case["given"], isinstance(case["given"].get("channels"), list) and case["unit"] == "valve"
    refused = shared and any(kind == "status" for kind, *_ in case["events"])
    without = case["unit"] == "reader_output" and (
        not given["progressive"]
        or given["generator"] == "none"
        or not any(kind in {"collect", "create"} for kind, *_ in case["events"])
    )
    return case["unit"] in UNITS and "current" in case["rules"] and "chain" not in given and not (refused or without)


@pytest.mark.parametrize("case", [case for case in CASES if applies(case)], ids=lambda case: case["name"])
def test_flinks_case(case):
    unit, out = UNITS[case["unit"]](**case["given"]), []
    expected = {entry["after"]: entry for entry in case["expect"]}
    everything = []
    for place, (kind, *said) in enumerate(case["events"]):
        facts = getattr(unit, kind)(*said)
        out += facts.get("out", [])
        everything += facts.get("out", [])
        for name, want in expected.get(place, {}).items():
            if name == "out":
                assert [[*each[:1], *map(ms, each[1:])] for each in want] == out, f"event {place}"
                out = []
            elif name == "out_contains":
                assert all(each in everything for each in want), f"event {place}"
            elif name == "watermarks_contain":
                assert set(want) <= set(facts["watermarks"]), f"event {place}"
            elif isinstance(want, dict):
                assert {each: ms(value) if not isinstance(value, list) else value for each, value in want.items()} == {
                    each: facts[name][each] for each in want
                }, f"event {place}"
            elif name != "after":
                assert (want if isinstance(want, list) else ms(want)) == facts[name], f"event {place}: {name}"
        assert "error" not in facts or "error" in expected.get(place, {})


def test_most_cases_run():
    """Cases may be left out only if they test one of these units."""
    left = Counter(case["unit"] for case in CASES if not applies(case) and "current" in case["rules"])
    assert left.keys() <= {"clock", "assigner", "row_assigner", "reader_output", "source", "task", "valve"}
