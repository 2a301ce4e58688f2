"""Leads a panel of judges through the steps of one door. A judge is asked only what it looks at."""

from collections.abc import Iterable

from checkpointing.messages import TimeAdvanced, WakeAt
from spec.channel_bytes import ChannelBytes
from spec.entries_say import ended_before, splits_before
from spec.steps import Begun, Step
from spec.watching import DoorJudge, Watched


def watch(steps: Iterable[Step], judges: Iterable[type[DoorJudge]]) -> list[DoorJudge]:
    """Follow a door from its beginning to its end. Return its judges, with what they found."""
    door: Watched | None = None
    asked = Panel(())
    for step in steps:
        if door is None:
            if not isinstance(step.told, Begun):
                break
            door = _begun(step.told)
            asked = Panel([judge(door) for judge in judges])
        elif door.is_over:
            break
        _follow(door, asked, step)
    return asked.judges


class Panel:
    """The judges of one door. A judge is asked only what it looks at."""

    def __init__(self, judges: Iterable[DoorJudge]) -> None:
        """Find out what each judge looks at."""
        self.judges = list(judges)
        busy = [judge for judge in self.judges if judge.applies]
        self.told = [judge.told for judge in busy if type(judge).told is not DoorJudge.told]
        self.asked = [judge.asked for judge in busy if type(judge).asked is not DoorJudge.asked]
        self.rested = [judge.rested for judge in busy if type(judge).rested is not DoorJudge.rested]
        self.passed = [judge.time_passed for judge in busy if type(judge).time_passed is not DoorJudge.time_passed]


def _begun(begun: Begun) -> Watched:
    setup, claim = begun.setup, begun.setup.claim
    channels = ChannelBytes(setup.graph, setup.credit_bytes)
    ended, before = set(ended_before(setup.graph, setup.restored)), splits_before(setup.graph)
    first, last = claim.first_id, claim.last_id
    return Watched(setup, begun.now_ms, begun.now_ms, first, last, channels, ended=ended, before=before)


def _follow(door: Watched, judges: Panel, step: Step) -> None:
    if not step.effects and isinstance(step.told, TimeAdvanced) and step.next_id == door.next_id:
        door.now_ms = max(door.now_ms, step.told.now_ms)
        if door.wake_ms is not None and door.wake_ms <= door.now_ms:
            door.wake_ms = None
        for pass_time in judges.passed:
            pass_time()
        return
    door.told(step.told)
    for tell in judges.told:
        tell(step.told)
    for effect in step.effects:
        if type(effect) is WakeAt:  # there are many timers, and judges look only at the last one
            door.wake_ms = effect.at_ms
            continue
        for ask in judges.asked:
            ask(effect)
        door.asked(effect)
    given = door.given(step)
    for rest in judges.rested:
        rest(given)
