"""The simulator: the real job door and the real recovery, in virtual time and on in-memory stores.

One whole number reproduces a run with all its faults: ticks that crash anywhere, coordinators that race, late effects
of dead ticks, lost replies. The last tick has no faults, and must catch up.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from random import Random

from checkpointing.config import CheckpointConfig, CheckpointingMode
from checkpointing.identifiers import Generation
from checkpointing.messages import Effect, TickOutcome
from checkpointing.metadata.record import Claim
from spec.history import DoorBroke, History
from spec.reference.pipeline import LATER, MAX_PARALLELISM, drawn_upstreams, ending_splits, graph
from spec.rules.invariants import Violation, violations
from spec.world.carrier import Hands
from spec.world.draw import Chance, Moves, Plans, TickPlan, drawn, scenario_of
from spec.world.entry_texts import store_entries
from spec.world.faults import NONE, Scenario
from spec.world.stores import StoreBrokeError, StoreFaults, World, optimize
from spec.world.tick import Narrate, Tick
from spec.world.tick_door import LEASE_MS
from spec.world.visits import DIES, Visit, Visits, waits

MORE_ROWS = 3
"""How many rows each split gets when a finished job is opened again."""
RACES_VISIT = 0.3
"""The probability that another tick begins during a visit to the job at rest."""
LAG_MS = 100
"""How late a list shows new files."""
VISIT_STEP_MS = 60
"""The longest time for a step of a visit."""
ZOMBIE_MS = 2_000
"""How late an effect of a dead coordinator may still be carried out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a seed."""

    seed: int
    scenario: Scenario
    moves: Moves
    history: History
    violations: tuple[Violation, ...]


def simulate(seed: int, narrate: Narrate | None = None, moves: Moves | None = None) -> Outcome:
    """Run one seed and judge it. `moves` replaces what the seed draws."""
    run = Simulation(seed, narrate, moves)
    run.run()
    return judged(seed, run)


def judged(seed: int, run: "Simulation") -> Outcome:
    """Judge a seed that was run, and return its result."""
    return Outcome(seed, run.scenario, run.moves, run.world.history, violations(run.world.history))


class Simulation:
    """One run: ticks, some of them at the same time, visits and mishaps between them, and the last tick."""

    def __init__(self, seed: int, narrate: Narrate | None = None, moves: Moves | None = None) -> None:
        self.moves = drawn(seed) if moves is None else moves
        self._seed = seed
        self._chance = Chance(seed, self.moves.mishaps)
        self._random = Random(seed)  # noqa: S311 - a run must be repeatable
        self._shapes = Random(f"shapes of {seed}")  # noqa: S311 - as above
        self._rests = Random(f"rests of {seed}")  # noqa: S311 - as above
        self._arrivals = Random(f"arrivals of {seed}")  # noqa: S311 - as above
        self.scenario = scenario_of(seed, self.moves, self._random, self._shapes)
        self.world = World(self._new_history)
        store_entries(self.world, self.moves, Random(f"formats of {seed}"))  # noqa: S311 - as above
        self.world.lag_ms = LAG_MS if self.moves.lists_lag else 0
        self.world.faults = StoreFaults(seed, self.world.met) if self.moves.stores_fail else None
        self._narrate = narrate
        self._hands = Hands(self.world, self._random, in_order=self.scenario.mode is CheckpointingMode.EXACTLY_ONCE)
        self._hands.transaction_rows = self.moves.transaction_rows
        self._hands.ending = ending_splits(self.scenario.bounded, parted=self.scenario.parted)
        self._rows = {**self.scenario.rows, LATER: self._shapes.choice([0, 2, 4])}
        self._hands.readable = dict.fromkeys(self._rows, 0)
        self._share = 0.0
        if self.moves.cuts:
            self._hands.upstreams = drawn_upstreams(seed, self._rows, self._hands.readable)
        self._visiting = Random(f"visits of {seed}")  # noqa: S311 - as above
        self._plans = Plans(
            seed, self.moves, self.scenario, random=self._random, shapes=self._shapes, visiting=self._visiting
        )
        self._settling = Random(f"settling of {seed}")  # noqa: S311 - as above
        erasing = Random(f"erasures of {seed}")  # noqa: S311 - as above
        self._visits = Visits(self.world, self.moves, self._visiting, self._hands.readable, self._settling, erasing)
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._noted = 0
        self._alive: dict[int, Tick | Visit] = {}
        self._started = 0
        self._healing = False

    def run(self) -> None:
        """Run the ticks with their faults, then one without faults, which must catch up."""
        if self.moves.imports:
            self._import()
        self._run_ticks()
        self._heal()
        self._more_rows(self._share_at_last())
        last = self._last()
        if self.moves.reopens and last.end is not None and last.end.outcome is TickOutcome.FINISHED:
            last = self._reopened()
        if last.end is None or last.end.outcome not in (TickOutcome.CAUGHT_UP, TickOutcome.FINISHED):
            self.world.history.add(DoorBroke(last.generation, f"a tick without faults did not catch up: {last.end}"))
        if self.moves.clean_ups_max:
            self._begin(self._visits.last_clean_up(self._is_held))
        self._play(until_quiet=True)
        # at this time, all files are in the lists, and every reservation has expired
        self.world.now_ms = max(self.world.now_ms + self.world.lag_ms, self.world.readers.ends_ms())
        if self.moves.clean_ups_max:
            self._begin(self._visits.last_clean_up(self._is_held))
            self._play(until_quiet=True)
            self.world.come_to_rest()

    def _import(self) -> None:
        """Run one tick in another warehouse. Then import one of its entries here. The importing process may die."""
        before = Simulation(self._seed, self._narrate, replace(self.moves, imports=False))
        before.scenario = replace(before.scenario, ticks=1)
        before._random.seed(f"another warehouse of {self._seed}")
        before._run_ticks()
        self._hands.readable |= before._hands.readable
        self.world.now_ms = before.world.now_ms
        visit = self._visits.imported(before.world, self._is_held)
        if visit is not None:
            self._begin(visit)
            self._may_be_cleaned()
            self._play()

    def _run_ticks(self) -> None:
        """Run the ticks with their faults, and let visitors come in between."""
        for _ in range(self.scenario.ticks):
            self._more_rows(self._random.random())
            self._start(self._plans.drawn(self._number()))
            self._may_lose_power()
            self._may_be_cleaned()
            self._may_be_read()
            self._may_get_rows()
            self._play()
            self._may_lose_entries()
            self._visited()
            self._rest()

    def _last(self) -> Tick:
        """Run a tick without faults, and return it.

        The tick is repeated if it could not run because a dead tick's held cut came late.
        """
        self._settle(dies=0)
        self._play()
        last = self._start(self._plans.healing(self._number()))
        self._play()
        return last if last.end is not None or not waits(self.world) else self._last()

    def _reopened(self) -> Tick:
        """Let the pipeline declare that no source ever ends. Splits that had ended get more rows. Run another tick."""
        self.scenario = replace(self.scenario, bounded=())
        self._hands.ending = ending_splits((), parted=self.scenario.parted)
        self._rows = {split: rows + MORE_ROWS for split, rows in self._rows.items()}
        self._more_rows(1.0)
        return self._last()

    def _heal(self) -> None:
        """Switch all faults off."""
        self._healing = True
        if self.world.faults is not None:
            self.world.faults.is_sound = True

    def _rest(self) -> None:
        """Let time pass. Meanwhile, or later, outstanding effects of dead ticks may still be carried out."""
        if self.moves.rests:
            self.world.now_ms += self._rests.choice([0, LEASE_MS, 3 * LEASE_MS])

    def _may_lose_power(self) -> None:
        """Let the power fail at some time, or never.

        Everything that runs is dead then, and none of its outstanding effects is carried out.
        """
        at_ms = self._chance.power_cut_ms()
        if at_ms is not None:
            self._note(at_ms, self._lose_power)

    def _lose_power(self) -> None:
        if self._healing:
            return
        if self._narrate is not None:
            self._narrate(f"{self.world.now_ms:>7} POWER CUT")
        self._alive.clear()
        self._agenda.clear()
        self.world.lose_power(self._chance.survives)

    def _may_lose_entries(self) -> None:
        """Let tables lose log entries while nothing runs, as when a folder is restored from an older backup."""
        for told in self._chance.lose(self.world):
            self._agenda.clear()
            if self._narrate is not None:
                self._narrate(f"{self.world.now_ms:>7} {told}")

    def _new_history(self, world: World) -> History:
        retained, tolerable = int(self.scenario.config["retained"]), int(self.scenario.config["tolerable_failures"])
        kept = CheckpointConfig(retained=retained).kept
        return History(self.scenario.mode, kept, MAX_PARALLELISM, world.rows_of, world.state_of, tolerable=tolerable)

    def _share_at_last(self) -> float:
        """Return the share of all rows that the last tick can read.

        A quarter of the missing rows become readable. All do if a source or a part ends, and none if the sources dry
        up.

        The last tick takes a third of a seed's time. Without faults, it finds fewer bugs than the other ticks.
        """
        if self.moves.dries_up:
            return 0.0
        return 1.0 if self.moves.sources_end or self.moves.parts else (1.0 + 3 * self._share) / 4

    def _more_rows(self, share: float) -> None:
        self._share = max(self._share, share)
        for split, rows in self._rows.items():
            committed = int(rows * share) // self.moves.transaction_rows * self.moves.transaction_rows
            self._hands.readable[split] = max(self._hands.readable[split], committed)

    def _may_get_rows(self) -> None:
        """Let more rows become readable while a tick runs."""
        for _ in range(self._arrivals.randint(0, self.moves.arrivals_max) if self.moves.arrivals_max else 0):
            share = self._arrivals.random()
            self._note(self._arrivals.randint(0, 1_500), partial(self._more_rows, share))

    # -------------------------------------------------------------- ticks

    def _number(self) -> int:
        self._started += 1
        return self._started

    def _start(self, plan: TickPlan) -> Tick:
        tick = Tick(
            world=self.world,
            scenario=self.scenario,
            plan=plan,
            hands=self._hands,
            random=self._random,
            is_alive=self._is_alive,
            narrate=self._narrate,
        )
        self._alive[plan.number] = tick
        self._go_on(tick, tick.turns())
        self._may_meet_others(plan)
        return tick

    def _may_meet_others(self, plan: TickPlan) -> None:
        faults = plan.faults
        if self._strikes(faults.optimize):
            table = self._random.choice(graph(1, overwrites=self.moves.overwrites).tables()).name
            self._note(self._random.randint(0, 2_000), lambda: optimize(self.world, table))
        if self._strikes(faults.race):
            self._note(self._random.randint(0, 1_000), self._start_rival)

    def _start_rival(self) -> None:
        plan = self._plans.drawn(self._number())
        rival = replace(plan, take_over=plan.eyes.sees_holders, stop=None)
        if not self._healing and len(self._alive) < 3:  # noqa: PLR2004 - a crowd shows nothing that two do not
            self._start(rival)

    def _is_alive(self, generation: Generation) -> bool:
        return any(tick.generation == generation for tick in self._alive.values())

    # -------------------------------------------------------------- visits

    def _visited(self) -> None:
        """Run the visits to the job, one after the other. Ticks may begin meanwhile."""
        for visit in self._visits.drawn(self._is_held):
            self._begin(visit)
            if self.moves.holds and self._settling.random() < RACES_VISIT:
                self._note(self._settling.randint(0, 2 * VISIT_STEP_MS), self._settle)
            if self._visiting.random() < RACES_VISIT:
                self._note(self._visiting.randint(0, 2 * VISIT_STEP_MS), self._start_rival)
            self._play()

    def _settle(self, dies: float = DIES) -> None:
        """Let a person approve or reject the held cut, if there is one."""
        visit = self._visits.settling(self._is_held, dies=dies)
        if visit is not None:
            self._begin(visit)

    def _may_be_cleaned(self) -> None:
        """Sometimes start a clean-up while a tick runs."""
        if self.moves.clean_ups_max and self._visiting.random() < RACES_VISIT:
            self._note(self._visiting.randint(0, 1_500), self._clean_up_beside)

    def _clean_up_beside(self) -> None:
        if not self._healing:
            self._begin(self._visits.beside(self._is_held))

    def _may_be_read(self) -> None:
        """Start readers while a tick runs, or has just died."""
        for _ in range(self._visiting.randint(0, self.moves.readers_max) if self.moves.readers_max else 0):
            self._note(self._visiting.randint(0, 1_500), self._read)

    def _read(self) -> None:
        reader = None if self._healing else self._visits.reader()
        if reader is not None:
            self._begin(reader)

    def _begin(self, visit: Visit) -> None:
        if self._narrate is not None:
            self._narrate(f"{self.world.now_ms:>7} {visit.told}")
        number = self._number()
        self._alive[number] = visit
        self._visit_on(visit, number)

    def _visit_on(self, visit: Visit, number: int) -> None:
        """Let the visitor take the next step, or die."""
        try:
            is_over = next(visit.turns, self) is self
        except Exception as error:  # noqa: BLE001 - whatever a door raises is a finding
            self.world.history.add(DoorBroke(Generation(visit.generation), f"{type(error).__name__}: {error}"))
            is_over = True
        if is_over or self._visiting.random() < visit.dies:
            self._alive.pop(number, None)
        else:
            self._note(self._visiting.randint(0, VISIT_STEP_MS), lambda: self._visit_on(visit, number))

    def _is_held(self, claim: Claim | None) -> bool | None:
        return claim is not None and self._is_alive(claim.generation)

    # -------------------------------------------------------------- turns

    def _go_on(self, tick: Tick, turns: Iterator[int]) -> None:
        """Give the tick a turn, or let it die. Schedule its next turn."""
        if self._strikes(tick.plan.faults.crash):
            self._crash(tick)
            return
        at_ms = next(turns, None)
        if at_ms is None:
            self._alive.pop(tick.plan.number, None)
            self._leave_behind(tick)
        else:
            self._note(at_ms - self.world.now_ms, lambda: self._go_on(tick, turns))

    def _crash(self, tick: Tick) -> None:
        if self._narrate is not None:
            self._narrate(f"{self.world.now_ms:>7} tick {tick.plan.number} CRASHED")
        self._alive.pop(tick.plan.number, None)
        self._leave_behind(tick)

    def _leave_behind(self, tick: Tick) -> None:
        """Carry out some of the outstanding effects although the tick is dead. Their answers are dropped."""
        for _, _, effect in tick.under_way.effects:
            if self._strikes(tick.plan.faults.zombie):
                self._note(self._random.randint(0, ZOMBIE_MS), self._late(tick, effect))

    def _late(self, tick: Tick, effect: Effect) -> Callable[[], None]:
        def carry_out() -> None:
            if self._narrate is not None:
                self._narrate(f"{self.world.now_ms:>7} tick {tick.plan.number} LATE {effect}")
            with suppress(StoreBrokeError):
                self._hands.carry_out(effect, tick.generation, NONE)

        return carry_out

    def _note(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._noted += 1
        heappush(self._agenda, (self.world.now_ms + max(delay_ms, 0), self._noted, action))

    def _play(self, *, until_quiet: bool = False) -> None:
        """Run the scheduled steps until no tick is alive. Effects of dead ticks may still be scheduled for later."""
        while self._agenda and (self._alive or until_quiet):
            at_ms, _, action = heappop(self._agenda)
            self.world.now_ms = max(self.world.now_ms, at_ms)
            action()

    def _strikes(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability
