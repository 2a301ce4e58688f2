"""What a simulated tick waits for: the effects that are being carried out, and answers that come late."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random

from checkpointing.messages import CancelJudgement, CompactFiles, Effect, Fact, JudgeSuites, PollSource, RunMicroBatch
from spec.faults import Scenario


@dataclass(slots=True)
class UnderWay:
    """Effects and answers, each with the time at which it is due."""

    effects: list[tuple[int, int, Effect]] = field(default_factory=list)
    answers: list[tuple[int, int, Fact]] = field(default_factory=list)
    _queued: int = 0

    @property
    def due_ms(self) -> int | None:
        """When the next of them is due, or None."""
        effect_ms = self.effects[0][0] if self.effects else None
        answer_ms = self.answers[0][0] if self.answers else None
        if effect_ms is None or answer_ms is None:
            return effect_ms if answer_ms is None else answer_ms
        return min(effect_ms, answer_ms)

    def begin(self, effect: Effect, due_ms: int) -> None:
        """Begin to carry out an effect."""
        self._queued += 1
        heappush(self.effects, (due_ms, self._queued, effect))

    def answer_later(self, fact: Fact, due_ms: int) -> None:
        """Hold an answer back."""
        self._queued += 1
        heappush(self.answers, (due_ms, self._queued, fact))

    def next_due(self, now_ms: int) -> Effect | None:
        """Remove and return an effect that is due, or None."""
        return heappop(self.effects)[2] if self.effects and self.effects[0][0] <= now_ms else None

    def next_answer(self, now_ms: int) -> Fact | None:
        """Remove and return an answer that is due, or None."""
        return heappop(self.answers)[2] if self.answers and self.answers[0][0] <= now_ms else None

    def cancel(self, cancelled: CancelJudgement) -> None:
        """Drop a judgement that still waits for a thread. One that has begun answers late."""
        if cancelled.checkpoint % 2 == 0:
            asked = cancelled.vertex, cancelled.checkpoint
            self.effects[:] = [each for each in self.effects if not _judges(each[2], asked)]
            heapify(self.effects)

    def clear(self) -> None:
        """Forget everything."""
        self.effects.clear()
        self.answers.clear()


def latency_ms(effect: Effect, scenario: Scenario, random: Random) -> int:
    """Draw how long an effect takes."""
    longest = scenario.latency_ms
    if isinstance(effect, PollSource):
        slow = effect.split == scenario.slow_split
        return random.randint(100, 400) if slow else random.randint(1, longest["poll"])
    return random.randint(1, longest["run" if isinstance(effect, RunMicroBatch | CompactFiles) else "store"])


def _judges(effect: Effect, asked: tuple[object, object]) -> bool:
    return isinstance(effect, JudgeSuites) and (effect.vertex, effect.checkpoint) == asked
