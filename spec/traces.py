"""Judges traces of real runs: `python -m spec.traces FILE...`, each the NDJSON of one tick.

It answers two questions. Does the core answer the same facts with the same effects, in the same order? Does the run
fulfil the invariants that need no content of files? It ends with `N passed, N failed`, and with exit code 1 if any
failed.
"""

import gzip
import sys
from argparse import ArgumentParser
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CutRecorded,
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    NotifyComplete,
    PublishTable,
    RecordCut,
    RowAppended,
    TableCheckFailed,
    TablePublished,
    TablesChecked,
)
from checkpointing.trace import TickBroken, TickStarted, TraceEntry, UnreadableTraceError, read
from spec.history import (
    Begun,
    CheckpointTriggered,
    DoorStarted,
    History,
    TickOver,
)
from spec.rules.invariants import violations
from spec.world.carrier import events_of_effect, events_of_fact
from spec.world.stores import World

PROBLEMS_MAX = 10


@dataclass(slots=True)
class Verdict:
    """The verdict on a trace: how much was replayed, whether its tick ended, and what is wrong."""

    facts: int = 0
    effects: int = 0
    checkpoints: int = 0
    ended: bool = False
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        end = "" if self.ended else ", the tick was cut off"
        return f"{self.facts} facts, {self.effects} effects, {self.checkpoints} checkpoints{end}"


def judge(lines: Iterable[bytes]) -> Verdict:
    """Replay a trace's lines on the core, and judge the run by the invariants. Raises nothing."""
    verdict = Verdict()
    try:
        entries = read(lines)
        first = next(entries, None)
        if first is None or not isinstance(first.body, TickStarted):
            verdict.problems.append("line 1: a trace begins with TickStarted")
            return verdict
        replay = Replay(first.body, verdict)
        for entry in entries:
            if not replay.follow(entry):
                return verdict
        replay.finish()
    except UnreadableTraceError as error:
        verdict.problems.append(str(error))
    return verdict


@dataclass(slots=True)
class Asked:
    """The outstanding effects whose answers only name them."""

    rows: dict[str, AppendRow] = field(default_factory=dict)
    checks: dict[CheckpointId, CheckTables] = field(default_factory=dict)
    publications: dict[tuple[CheckpointId, TableName], PublishTable] = field(default_factory=dict)
    cuts: dict[CheckpointId, RecordCut] = field(default_factory=dict)


class Replay:
    """Replays the trace on a door of its own. The stores' answers make the history that is judged."""

    def __init__(self, started: TickStarted, verdict: Verdict) -> None:
        self._verdict = verdict
        self._setup = started.setup
        self._generation = started.setup.claim.generation
        self._door = JobDoor(started.setup)
        self._due: deque[Effect] = deque(self._door.start(started.now_ms))
        self._next_id = started.setup.claim.first_id
        self._asked = Asked()
        self._world = _world(started.setup)
        self._history.add(
            DoorStarted(self._generation, started.setup.graph, started.setup.restored, started.setup.cut_groups)
        )
        begun = Begun(started.setup, started.now_ms)
        self._history.stepped(self._generation, begun, tuple(self._due), self._door.next_id)

    @property
    def _history(self) -> History:
        return self._world.history

    def due(self) -> tuple[Effect, ...]:
        """Return the effects that the door has asked for and that no line of the trace has named yet."""
        return tuple(self._due)

    def follow(self, entry: TraceEntry) -> bool:
        """Process a line. Return whether it makes sense to go on."""
        body = entry.body
        if isinstance(body, TickBroken):
            return self._wrong(entry, f"the tick broke: {body.error}")
        if isinstance(body, TickStarted):
            return self._wrong(entry, "a second TickStarted")
        return self._answered(entry, body) if isinstance(body, Effect) else self._told(entry, body)

    def finish(self) -> None:
        """Judge the run at the end of the trace. The trace of a killed tick may lack its last lines."""
        if self._due and self._verdict.ended:
            self._verdict.problems.append(f"the trace lacks {self._due[0]}, which the core answered")
        self._verdict.problems += [str(broken) for broken in violations(self._history, contents=False)]

    def _told(self, entry: TraceEntry, fact: Fact) -> bool:
        if self._due:
            return self._wrong(entry, f"the core answered {self._due[0]} before, which the trace lacks")
        self._verdict.facts += 1
        self._happened(fact)
        try:
            effects = self._door.step(fact)
        except Exception as error:  # noqa: BLE001 - a door that raises is what is looked for
            return self._wrong(entry, f"the core raises {type(error).__name__}: {error}")
        self._due.extend(effects)
        self._history.stepped(self._generation, fact, effects, self._door.next_id)
        for triggered in range(self._next_id, self._door.next_id):
            self._history.add(CheckpointTriggered(self._generation, CheckpointId(triggered)))
        self._next_id = self._door.next_id
        return True

    def _answered(self, entry: TraceEntry, effect: Effect) -> bool:
        expected = self._due.popleft() if self._due else None
        if effect != expected:
            return self._wrong(entry, f"the trace says {effect}, the core {expected or 'nothing'}")
        self._verdict.effects += 1
        self._begun(effect)
        return True

    def _wrong(self, entry: TraceEntry, what: str) -> bool:
        self._verdict.problems.append(f"line {entry.number}: {what}")
        return False

    def _begun(self, effect: Effect) -> None:
        """Record an effect: keep it for its answer, or add its event if it needs no answer."""
        self._history.events.extend(events_of_effect(self._generation, effect))
        match effect:
            case AppendRow():
                self._asked.rows[effect.row.nonce] = effect
            case CheckTables():
                self._asked.checks[effect.checkpoint] = effect
            case PublishTable():
                self._asked.publications[effect.checkpoint, effect.publication.table] = effect
            case RecordCut():
                self._asked.cuts[effect.checkpoint] = effect
            case DiscardFiles():
                self._world.discard(effect.paths)
            case NotifyComplete():
                self._verdict.checkpoints += 1
            case EndTick():
                self._verdict.ended = True
                self._history.add(TickOver(self._generation, effect, (), newest_checkpoint(self._world.rows())))
            case _:
                pass

    def _happened(self, fact: Fact) -> None:
        """Record an answer of a store or source, and change the judged world in the same way."""
        self._history.events.extend(events_of_fact(self._generation, fact))
        match fact:
            case TablesChecked() if not fact.problems:
                self._vote(self._asked.checks[fact.checkpoint], refuses=False)
            case TableCheckFailed():
                self._vote(self._asked.checks[fact.checkpoint], refuses=True)
            case RowAppended():
                asked = self._asked.rows[fact.nonce]
                self._world.append(asked.row, self._world.version, asked.subsumed)
            case TablePublished():
                _reach(self._world, fact.table, fact.version - 1)
                self._world.publish(fact.checkpoint, self._asked.publications[fact.checkpoint, fact.table].publication)
            case CutRecorded():
                named = tuple(table for table, _ in self._asked.cuts[fact.checkpoint].versions)
                versions = tuple((table, self._world.table(table).version) for table in named)
                self._world.record_cut(fact.checkpoint, versions, self._world.retained(fact.checkpoint))
            case _:
                pass

    def _vote(self, effect: CheckTables, *, refuses: bool) -> None:
        """Let the outside sinks vote. A trace does not show which sink refuses."""
        number = 0 if refuses else len(effect.pre_commits)
        self._history.events.extend(self._world.outside.vote(effect, self._generation, refuses=number))


def _world(setup: JobSetup) -> World:
    """Return the stores as the tick found them: the existing entries, and its own claim."""
    retained = tuple(sorted(setup.retained, key=lambda record: record.checkpoint))

    def new_history(world: World) -> History:
        pinned = tuple(record.checkpoint for record in retained if record.is_savepoint or record.abandoned)
        baseline = tuple(record.checkpoint for record in retained if record.checkpoint not in pinned)
        config = setup.config
        return History(
            config.mode,
            config.kept,
            config.max_parallelism,
            world.rows_of,
            world.state_of,
            baseline=baseline,
            pinned=pinned,
            stood_upon=tuple(record.parent for record in retained if not record.commits),
            tolerable=config.tolerable_failures,
        )

    world = World(new_history)
    world.log = [(version, record) for version, record in enumerate(retained, start=1)]
    world.append(setup.claim, world.version)
    said = {each.table: each.columns for each in setup.restored.columns} if setup.restored is not None else {}
    for table, version in setup.versions.items():
        _reach(world, table, version)
        world.table(table).columns[-1] = frozenset(column.name for column in said.get(table, ()))
    return world


def _reach(world: World, table: TableName, version: int) -> None:
    """Bring a table to a version by commits that the trace lacks: older ones, and those of other writers."""
    log = world.table(table)
    while log.version < version:
        log.commit(log.active, log.shown[-1], world.now_ms)


def main(arguments: list[str] | None = None) -> int:
    """Judge the traces that the command line names. Return 0 if nothing is wrong with any of them, else 1."""
    parser = ArgumentParser(prog="python -m spec.traces", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="traces of ticks, NDJSON")
    failed = 0
    files: list[Path] = parser.parse_args(arguments).files
    for file in files:
        verdict = _of_file(file)
        failed += bool(verdict.problems)
        _say(f"{file}: {verdict}")
        for problem in verdict.problems[:PROBLEMS_MAX]:
            _say(f"  {problem}")
    _say(f"{len(files) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _of_file(file: Path) -> Verdict:
    try:
        return judge(lines_of(file))
    except (OSError, EOFError) as error:
        return Verdict(problems=[f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"])


def lines_of(file: Path) -> list[bytes]:
    """Return the lines of a trace.

    A trace that was compressed at the end of its attempt begins with gzip's two bytes.
    """
    content = file.read_bytes()
    return (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).splitlines(keepends=True)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
