"""Draws the plan of each tick: its limits, requests, release, splits, clock, and which processes it can see."""

from dataclasses import replace
from random import Random

from checkpointing.identifiers import SplitId
from checkpointing.job.setup import TickLimits
from checkpointing.messages import SavepointKind, SavepointRequested, StopKind, StopRequested
from checkpointing.tick.attempts import FixedDelay, NoRestart, RestartStrategy
from spec.at_the_door import Eyes
from spec.clocks import Jump
from spec.faults import EVENLY, NONE, Scenario
from spec.moves import Moves
from spec.pipeline import LATER, ORDERS, RELEASES, SPLITS
from spec.tick_plan import TickPlan

SKEWS_MS = (0, 0, 200, -200, -900, 3_000, 90_000_000)
"""By how much a clock is fast (or slow, if negative)."""
RESTART_DELAY_MS = 100


class Plans:
    """Draws the plans of a run's ticks. A new move has random numbers of its own, so known seeds stay."""

    def __init__(
        self, seed: int, moves: Moves, scenario: Scenario, *, random: Random, shapes: Random, visiting: Random
    ) -> None:
        """Prepare the random numbers of this seed. The run itself draws from the given ones too."""
        self._moves = moves
        self._scenario = scenario
        self._random = random
        self._shapes = shapes
        self._visiting = visiting
        self._releases = Random(f"releases of {seed}")  # noqa: S311 - a run must be repeatable
        self._restarts = Random(f"restarts of {seed}")  # noqa: S311 - as above
        self._holds = Random(f"ticks of {seed} that hold")  # noqa: S311 - as above

    def drawn(self, number: int) -> TickPlan:
        """Return the plan of a tick with faults."""
        random, faults = self._random, self._scenario.faults
        limits = random.choice(
            [TickLimits(), TickLimits(), TickLimits(checkpoints=2), TickLimits(duration_ms=random.choice([50, 700]))]
        )
        stop = StopRequested(random.choice(list(StopKind))) if random.random() < faults.stop else None
        return TickPlan(
            number=number,
            faults=faults,
            parallelism=random.choice(self._scenario.parallelisms),
            limits=replace(limits, hold=self._moves.holds and self._holds.random() < EVENLY),
            patient=False,
            take_over=False,
            stop=stop,
            stop_after_ms=random.randint(0, 1_000),
            savepoints=self._drawn_savepoints(),
            release=self._release(),
            strategy=self._strategy(),
            grace_ms=self._grace_ms(),
            orders=self._orders(),
            audited=self._audited(),
            eyes=self._eyes(),
            clock_jump=self._clock_jump(),
        )

    def _drawn_savepoints(self) -> tuple[tuple[int, SavepointRequested], ...]:
        """Draw requests for savepoints. Some come at the same moment. After a stop, most later ones come too late."""
        most = self._moves.savepoints_max
        if not most:
            return ()
        times = sorted(self._random.choice([0, 100, 1_000]) * self._random.randint(0, 3) for _ in range(most))
        kinds = self._random.choices(
            list(SavepointKind), [2, 1, 1] if self._moves.stops else [6, 1, 1], k=self._random.randint(0, most)
        )
        return tuple(
            (after_ms, SavepointRequested(f"savepoint {number}", kind))
            for number, (after_ms, kind) in enumerate(zip(times, kinds, strict=False))
        )

    def healing(self, number: int) -> TickPlan:
        """Return the plan of the last tick. It has no faults, and no other process holds it up."""
        parallelism = self._random.choice(self._scenario.parallelisms)
        return TickPlan(
            number=number,
            faults=NONE,
            parallelism=parallelism,
            limits=TickLimits(),
            patient=True,
            take_over=True,
            release=self._release(),
            grace_ms=self._grace_ms(),
            orders=self._orders(),
            audited=self._audited(),
            eyes=Eyes(self._skew_ms()),
        )

    def _orders(self) -> tuple[SplitId, ...]:
        """Return the splits that a tick finds, in random order."""
        if not self._moves.splits:
            return SPLITS[ORDERS]
        known = [*SPLITS[ORDERS], LATER]
        if self._moves.parts:  # each part has a split
            known = known[: self._shapes.randint(2, len(known))]
            return tuple(self._shapes.sample(known, len(known)))
        return tuple(self._shapes.sample(known, self._shapes.randint(1, len(known))))

    def _eyes(self) -> Eyes:
        unseen = self._moves.leases and self._shapes.random() < EVENLY
        return Eyes(self._skew_ms(), not unseen, self._shapes if self._moves.lists_lag else None)

    def _skew_ms(self) -> int:
        return self._shapes.choice(SKEWS_MS) if self._moves.clocks_jump else 0

    def _clock_jump(self) -> Jump | None:
        jumps = self._moves.clocks_jump and self._shapes.random() < EVENLY
        after_ms, by_ms = self._shapes.randint(0, 1_000), self._shapes.choice(SKEWS_MS)
        # the rule on intervals would count a leap forward as time in which no checkpoint was triggered
        by_ms = min(by_ms, 0) if "interval_ms" in self._scenario.config else by_ms
        return Jump(after_ms, by_ms) if jumps else None

    def _audited(self) -> bool:
        return self._moves.vertices and self._shapes.random() < EVENLY

    def _grace_ms(self) -> int | None:
        return self._visiting.choice([0, 300]) if self._moves.clean_ups_max else None

    def _release(self) -> int:
        """Return the release of the pipeline that a tick runs.

        It is drawn from random numbers of its own, so a seed's other choices stay the same.
        """
        return self._releases.randrange(len(RELEASES)) if self._moves.releases else 0

    def _strategy(self) -> RestartStrategy:
        """Return how often a tick restarts a failed job. It is drawn from random numbers of its own."""
        attempts = self._restarts.randrange(4)
        return FixedDelay(attempts, RESTART_DELAY_MS) if self._moves.restarts and attempts else NoRestart()
