"""Observes tables of the simulator that show less than their cuts. The core decides on repairs."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.cleanup import (
    CleanupFacts,
    CleanUpLook,
    ListedFile,
    Shown,
    TableSeen,
    decide_cleanup,
    noted,
    readable_cuts,
)
from checkpointing.commit.fencing import (
    HolderObserved,
    Lease,
    Refused,
    newest_checkpoint,
    newest_claim,
    release_of,
    rival_of,
)
from checkpointing.commit.lost_publications import (
    Doubt,
    Entry,
    LogSeen,
    Rebuilt,
    Standing,
    decide_repairs,
    lacks_cuts,
    rebuilt,
)
from checkpointing.commit.outside_sinks import to_roll_back
from checkpointing.commit.recovery import Observed
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from checkpointing.messages import (
    CutRecorded,
    EndTick,
    LookForRival,
    PublishFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RowUnknown,
    TickOutcome,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Row
from checkpointing.tick.attempts import CLEANUP, TICK, Errand, Terms
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import (
    AppendClaim,
    AppendEntry,
    AppendRelease,
    CleanUp,
    CorrectCuts,
    CutRead,
    DiscardLeftovers,
    Done,
    EnsureTables,
    Examine,
    Failed,
    Finish,
    GiveLease,
    LeftoversDiscarded,
    LogsSeen,
    LookAtLogs,
    LookAtTables,
    Objected,
    Observe,
    PublishAgain,
    Question,
    ReadCut,
    RollBackPreCommitted,
    TablesSeen,
    TakeHold,
    TickEffect,
    TickFact,
    Work,
    Worked,
)
from spec.history import EntryAtRest, FoundFinished, ListsWereStale, UnseenLeft, UnseenRefused
from spec.reference.pipeline import JOB
from spec.world.stores import NO_ANSWER, Harm, TableLog, World


def standing(world: World) -> Standing:
    """Return what the tables' logs show of the readable entries and cuts."""
    readable = readable_cuts(world.rows(), frozenset(world.cuts))
    cuts = {checkpoint: cut for checkpoint, cut in world.cuts.items() if checkpoint in readable}
    names = {table for cut in cuts.values() for table in cut}
    names |= {table.table for row in world.checkpoints() for table in row.tables}
    logs = {name: _seen(world.table(name)) for name in sorted(names)}
    return Standing(JOB, tuple(world.checkpoints()), cuts, logs)


def doubt(world: World) -> Doubt:
    """Return which tables are in doubt, and how to repair them. Lost cuts are rebuilt first."""
    seen = standing(world)
    found = _rebuilt(world, seen)
    seen = replace(seen, cuts={**seen.cuts, **found.cuts})
    return Doubt(seen, decide_repairs(seen), found.cuts)


def rebuilt_cuts(world: World) -> Rebuilt:
    """Return the lost cuts that can be rebuilt from entries and logs."""
    return _rebuilt(world, standing(world))


def _rebuilt(world: World, seen: Standing) -> Rebuilt:
    if not lacks_cuts(seen):
        return Rebuilt({})
    logs = {name: _seen(log) for name, log in sorted(world.tables.items())}
    return rebuilt(replace(seen, logs={**logs, **seen.logs}), tuple(logs))


def found_finished(world: World) -> FoundFinished:
    """Return what the stores hold of a job that a tick has not claimed, because the job has finished."""
    return FoundFinished(newest_checkpoint(world.rows()), frozenset(world.cuts), doubt(world).repairs.tables)


def published(world: World, tables: frozenset[TableName]) -> dict[TableName, dict[CheckpointId, int]]:
    """Return, for each table, a dict from each checkpoint to the version that first showed it."""
    return {
        name: {entry.checkpoint: version for version, entry in _seen(world.table(name)).published.items()}
        for name in tables
    }


def restore_what_is_lost(world: World) -> None:
    """Restore from a backup the tables that cannot be repaired, as the error of a refused start asks the user to."""
    for lost in doubt(world).repairs.lost:
        world.restore(lost.table)


def _seen(log: TableLog) -> LogSeen:
    published = {
        version: Entry(CheckpointId(log.shown[version]), version in log.again)
        for version in range(max(1, log.oldest), log.version + 1)
        if log.shown[version] != log.shown[version - 1]
    }
    return LogSeen(log.version, CheckpointId(log.shown[-1]), published, log.oldest)


# ------------------------------------------------------------------
# Carries out the effects of the real tick door on the simulator's stores, for a start and for work at rest.
#
# The door decides the order. At each effect that changes the stores, the process may die.


CHANGES: Final = (
    AppendClaim,
    AppendEntry,
    PublishAgain,
    CorrectCuts,
    PublishTable,
    RecordCut,
    DiscardLeftovers,
)
"""Effects that change the stores before the release."""

Alive = Callable[[Claim | None], bool | None]
DoWork = Callable[[Work], TickFact | None]
NOBODY: Final = Generation(0)
LAGS: Final = 0.3
"""The probability that a list lags behind, in runs where lists may."""
LEASE_MS: Final = 500
"""How long a lease lasts. Nobody renews one, as if every holder were paused."""
PAUSED: Final = 3
"""Every third holder is paused before it writes its first lease.

So other processes find no lease, or the lease of an older holder.
"""
TAKEN: Final = ("has run out", "has died", "taken over")
"""Texts in the reason of a claim whose process took over a job that was not released."""
SOMEBODY: Final = Holder(host="here", pid=1_000, started="")


@dataclass(slots=True)
class Eyes:
    """How a process sees the world: its clock's error, whether it sees if holders live, and whether its lists lag."""

    skew_ms: int = 0
    sees_holders: bool = True
    lags: Random | None = None
    """Decides whether a list of entries lags behind. If None, no list does."""

    def at(self, now_ms: int) -> int:
        """Return the time that the process's clock shows."""
        return max(0, now_ms + self.skew_ms)


GOOD_EYES: Final = Eyes()


class Carrier:
    """Carries out at once the effects that a door asks of the stores."""

    def __init__(
        self, world: World, alive: Alive, name: str, eyes: Eyes = GOOD_EYES, *, ignores_lost: bool = False
    ) -> None:
        """Act on this world. `alive` returns whether a holder lives. `name` makes the nonces unique.

        With `ignores_lost`, tables that cannot be repaired are left as they are, and not restored from a backup.
        """
        self._ignores_lost = ignores_lost
        self._eyes = eyes
        self._world = world
        self._alive = alive
        self._name = name
        self._retained: frozenset[CheckpointId] | None = None
        self._lease: Lease | None = None
        """The lease that the process found when it last looked."""
        self._has_written = False
        """True once the process has written. Lists show a process at least its own writes."""

    def begin(self, effect: TickEffect) -> None:
        """Read what the effect will need, before other processes have their turns."""
        if isinstance(effect, RecordCut):
            self._retained = self._world.retained(effect.checkpoint)

    def moment(self) -> Stamp:
        """Return a stamp. Two entries at one version have the same nonce only if the same process appends them."""
        return Stamp(self._eyes.at(self._world.now_ms), f"{self._name}-{self._world.version}")

    def carry_out(self, effect: TickEffect) -> TickFact | None:
        """Carry out one effect.

        Return the answer, or None if this class does not answer the effect. A write or its reply may be lost.
        """
        harm = self._world.harm() if isinstance(effect, (*CHANGES, AppendRelease)) else None
        self._has_written |= isinstance(effect, CHANGES)
        fact = self._carried_out(effect) if harm is not Harm.WRITE_LOST else None
        return fact if harm is None else _unheard(effect)

    def _carried_out(self, effect: TickEffect) -> TickFact | None:  # noqa: C901, PLR0911, PLR0912 - an alphabet
        world = self._world
        match effect:
            case Observe():
                return self._observed()
            case Examine():
                if effect.question is Question.WHOLE and not doubt(world).is_none:
                    return Objected(RuntimeError("a table shows less than its cut"))
                if effect.question is Question.REPAIRABLE and world.struck and not self._ignores_lost:
                    restore_what_is_lost(world)
                return Done()
            case AppendClaim():
                self._note_claim(effect)
                return world.append(effect.row, effect.at_version)
            case AppendEntry():
                return world.append(effect.row, effect.at_version, effect.turn.dropped, effect.turn.marks)
            case AppendRelease():
                return world.release(effect.row, effect.at_version, effect.dropped)
            case LookAtTables():
                seen = doubt(world)
                return TablesSeen(None if self._ignores_lost and seen.repairs.lost else seen)
            case PublishAgain():
                return world.publish(effect.again.checkpoint, effect.again.publication, again=True)
            case LookAtLogs():
                return LogsSeen(published(world, effect.doubt.repairs.tables))
            case CorrectCuts():
                world.correct_cuts(effect.doubt.seen.cuts, effect.correction)
                return Done()
            case ReadCut():
                return CutRead(world.cuts.get(effect.checkpoint, {}))
            case PublishTable():
                return world.publish(effect.checkpoint, effect.publication)
            case RecordCut():
                begun_with, self._retained = self._retained, None
                retained = world.retained(effect.checkpoint) if begun_with is None else begun_with
                world.record_cut(effect.checkpoint, effect.versions, retained)
                return CutRecorded(effect.checkpoint)
            case DiscardLeftovers():
                world.history.events.extend(world.outside.settle(effect.current, effect.first_id))
                return LeftoversDiscarded(world.discard_leftovers(effect.current, effect.by))
            case LookForRival():
                _, rows = world.before if world.is_stale() else (0, world.rows())
                return RivalSeen(rival_of(rows, effect.generation))
            case RollBackPreCommitted():
                world.history.events.extend(world.outside.roll_back(to_roll_back(world.outside.left(), effect.before)))
                return Done()
            case EnsureTables() | CleanUp():
                return Done()
            case TakeHold():
                world.met.update(name for name in TAKEN if name in effect.plan.claim.why)
                if effect.claim.generation % PAUSED:
                    world.lease = Lease(effect.claim.generation, world.now_ms + LEASE_MS)
            case GiveLease():
                world.lease = Lease(effect.to.generation, world.now_ms + LEASE_MS)
            case Finish(Refused() as refused) if not self._eyes.sees_holders:
                world.history.add(UnseenRefused(refused.generation, world.lease))
            case _:
                """The effect has no answer, or the code that drives the door gives the answer."""
        return None

    def _note_claim(self, effect: AppendClaim) -> None:
        """Record a claim that will be appended, if the process cannot see whether the holder before it lives."""
        world, before = self._world, self._world.holder()
        refused = effect.at_version != world.version
        if refused or self._eyes.sees_holders or before is None or release_of(world.rows(), before.generation):
            return
        row, now_ms = effect.row, self._eyes.at(world.now_ms)
        seen = UnseenLeft(row.generation, row.holder, before.generation, before.holder, self._lease, now_ms)
        world.history.add(seen)

    def _lags(self) -> bool:
        return (self._eyes.lags is not None and self._eyes.lags.random() < LAGS) or self._is_stale()

    def _is_stale(self) -> bool:
        return not self._has_written and self._world.is_stale()

    def _observed(self) -> Observed:
        world = self._world
        lags, cuts_lag = self._lags(), self._is_stale()
        cuts = world.cuts_before if cuts_lag else frozenset(world.cuts)
        if lags or cuts_lag:
            world.history.add(ListsWereStale(tuple(sorted(world.cuts.keys() - cuts))))
        version, rows = world.before if lags else (world.version, world.rows())
        alive, self._lease = self._alive(newest_claim(rows)), world.lease
        holder = HolderObserved(alive, None) if self._eyes.sees_holders else HolderObserved(None, world.lease)
        rows = tuple(map(world.as_read, rows))
        return Observed(version, rows, cuts, holder, self._eyes.at(world.now_ms))


def _unheard(effect: TickEffect) -> TickFact:
    """Return the fact that a process gets if a write has no reply."""
    match effect:
        case AppendClaim() | AppendEntry() | AppendRelease():
            return RowUnknown(effect.row.nonce, NO_ANSWER)
        case PublishTable():
            return PublishFailed(effect.checkpoint, effect.publication.table, NO_ANSWER)
        case PublishAgain():
            return PublishFailed(effect.again.checkpoint, effect.again.publication.table, NO_ANSWER)
        case _:
            reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
            return Failed(EndTick(TickOutcome.FAILED, reason, NO_ANSWER))


def carried_out(door: TickDoor, carrier: Carrier, do_work: DoWork) -> Iterator[TickEffect]:
    """Drive a door to its end, or to its work if `do_work` returns None. Yield every effect that was carried out."""
    waiting = deque(door.start(carrier.moment()))
    while waiting:
        effect = waiting.popleft()
        fact = do_work(effect) if isinstance(effect, Work) else carrier.carry_out(effect)
        yield effect
        if fact is not None:
            waiting.extend(door.step(fact, carrier.moment()))


def _is_dead(claim: Claim | None) -> bool | None:
    return False if claim is not None else None


@dataclass(slots=True)
class Visitor:
    """A process that works on a job at rest. `generation` is the generation of its claim."""

    name: str = "rest"
    alive: Alive = _is_dead
    generation: Generation = NOBODY
    ignores_lost: bool = False
    """True if it goes on although tables cannot be repaired, as a rollback may."""


SOMEONE: Final = Visitor()
"""A visitor that meets no living holder."""


def at_rest(
    world: World,
    errand: Errand,
    do_work: DoWork,
    visitor: Visitor = SOMEONE,
    before: Callable[[Work], Iterator[None]] = lambda _: iter(()),
    *,
    leaves_behind: CheckpointId | None = None,
    above: tuple[Generation, CheckpointId] = (NOBODY, NO_CHECKPOINT),
) -> Iterator[None]:
    """Run an errand on a job that nobody holds, to its end: `before` step by step, then `do_work`.

    It yields wherever other processes may have a turn, and wherever this process may die.
    """
    carrier = Carrier(world, visitor.alive, visitor.name, ignores_lost=visitor.ignores_lost)
    door = TickDoor(errand, Terms(holder=SOMEBODY, leaves_behind=leaves_behind, above=above))
    waiting = deque(door.start(carrier.moment()))
    while waiting:
        effect = waiting.popleft()
        if isinstance(effect, Work):
            yield from before(effect)
        if isinstance(effect, TakeHold):
            visitor.generation = effect.claim.generation
        if isinstance(effect, Finish) and isinstance(effect.outcome, CheckpointRecord):
            world.history.add(EntryAtRest(effect.outcome))
        fact = do_work(effect) if isinstance(effect, Work) else carrier.carry_out(effect)
        if isinstance(effect, CHANGES) and world.faults and world.faults.late_ms():
            yield
        if fact is not None:
            waiting.extend(door.step(fact, carrier.moment()))
            carrier.begin(waiting[0])
        if isinstance(effect, CHANGES):
            yield


def begun(world: World) -> Work:
    """Let a tick claim a job that nobody holds, and recover, without a pause. Return the data for the tick's work."""
    terms = Terms(holder=SOMEBODY, take_over=True)
    effects = carried_out(TickDoor(TICK, terms), Carrier(world, _is_dead, "claim"), lambda _: None)
    return next(effect for effect in effects if isinstance(effect, Work))


# ------------------------------------------------------------------
# Cleans up in the simulator's stores: it reads in the product's order, and the core decides.
#
# Other processes have their turns between any two steps. So a clean-up may act on what was true before. If stores fail,
# it may also read the entries or the recorded cuts without their newest change. It looks for the newest entries of a
# table's log by their file names, without a list, so a stale list cannot mislead it there. If a table's log lacks the
# version of a cut, the clean-up leaves the table alone.


Cuts = list[Mapping[TableName, int]]


def cleaning(world: World, grace_ms: int, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Clean up a job that nobody holds, by claiming it."""

    def cleaned(work: Work) -> Iterator[None]:
        return cleaning_while_held(world, work.claim.generation, grace_ms)

    yield from at_rest(world, CLEANUP, lambda _: Worked(), visitor, cleaned)


def cleaning_while_held(world: World, current: Generation, grace_ms: int) -> Iterator[None]:
    """Clean up as the process that holds the job, or that does not know yet that its job was taken over."""
    recorded = frozenset(world.cuts)
    yield
    readable = readable_cuts(world.rows(), recorded)
    yield
    world.drop_cuts(recorded - readable)
    yield from cleaning_beside(world, current, grace_ms, others_hold=False)


def cleaning_beside(world: World, current: Generation, grace_ms: int, *, others_hold: bool = True) -> Iterator[None]:
    """Delete unneeded files. `current` is the newest generation seen, which may still be at work."""
    there = world.listed()
    yield
    rows, recorded = _rows(world, others_hold=others_hold), _cuts(world, others_hold=others_hold)
    yield
    kept: Cuts = [recorded[each] for each in (recorded if others_hold else readable_cuts(rows, recorded.keys()))]
    kept += world.readers.cuts(world.now_ms)
    logs = {name: log.copy() for name, log in world.tables.items()}
    alone = {name for name, log in logs.items() if any(cut.get(name, 0) > log.version for cut in kept)}
    tables = {name: log for name, log in logs.items() if name not in alone}
    seen = {name: _seen_of_cleaning(name, log, kept) for name, log in tables.items()}
    active = (log.versions[at] for name, log in tables.items() for at in {log.version, *seen[name].cuts})
    facts = CleanupFacts(
        current=current,
        others_hold=others_hold,
        now_ms=world.now_ms,
        grace_ms=grace_ms,
        rows=rows,
        recorded=frozenset(recorded),
        found=tuple(file for path in there if (file := _listed(world, path, tables)).table not in alone),
        active=frozenset[str]().union(*active),
        looks=world.looks,
        reservations=world.readers.all(),
    )
    yield
    if facts.pending is None:
        world.looks = noted(world.looks, CleanUpLook(facts.now_ms, seen), grace_ms)
    for unneeded in decide_cleanup(facts).delete:
        world.discard([unneeded.file.path])
    yield


def _rows(world: World, *, others_hold: bool) -> tuple[Row, ...]:
    """Return the entries. A process that does not hold the job may miss the newest change."""
    _, before = world.before
    return before if others_hold and _is_stale(world) else world.rows()


def _cuts(world: World, *, others_hold: bool) -> dict[CheckpointId, Mapping[TableName, int]]:
    """Return the recorded cuts. A process that does not hold the job may miss the newest change."""
    lags = others_hold and _is_stale(world)
    return {each: cut for each, cut in world.cuts.items() if not lags or each in world.cuts_before}


def _is_stale(world: World) -> bool:
    return world.faults is not None and world.faults.is_stale_for_clean_ups()


def _seen_of_cleaning(name: TableName, log: TableLog, cuts: Cuts) -> TableSeen:
    versions = frozenset(cut[name] for cut in cuts if name in cut)
    return TableSeen(log.version, versions, in_every_cut=all(name in cut for cut in cuts))


def _listed(world: World, path: str, tables: dict[TableName, TableLog]) -> ListedFile:
    written = world.files[path]
    table = TableName(path.rpartition("/_data/")[0] or path.rpartition("/")[0])
    shown = tables[table].times_of(path) if table in tables else ()
    over = tuple(Shown(first, until, at_ms) for first, until, at_ms in shown)
    return ListedFile(path, table, written.generation or None, 1, written.at_ms, over)


# ------------------------------------------------------------------
# The clock of a simulated process. It may be ahead of the world's clock or behind it, and it may jump.


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump of a clock: how long after the start it comes, and by how much."""

    after_ms: int
    by_ms: int


@dataclass(slots=True)
class Clock:
    """The time that an attempt sees. As with the product's driver, it never goes back."""

    world: World
    eyes: Eyes
    _shown_ms: int = 0

    def now_ms(self) -> int:
        """Return the time."""
        self._shown_ms = max(self._shown_ms, self.eyes.at(self.world.now_ms))
        return self._shown_ms

    def jump(self, jump: Jump) -> str:
        """Move the clock, and return a line of text about it."""
        self.eyes.skew_ms += jump.by_ms
        return f"its clock jumps by {jump.by_ms} ms"
