"""Calls the coordinators of sources: restores what a source knows besides its positions, and asks for it (A7)."""

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

import structlog
from pydantic import JsonValue

from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CloseHook,
    HookAnswered,
    HookFailed,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.identifiers import CheckpointId, Generation, SplitId, TableName, VertexId
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    CheckTables,
    CompactFiles,
    CoordinatorReset,
    CoordinatorResetFailed,
    CutRecorded,
    DiscardFiles,
    Fact,
    FilesCompacted,
    HookRestored,
    HookRestoreFailed,
    JudgementFailed,
    JudgeSuites,
    LookForRival,
    MicroBatchFailed,
    MicroBatchNotStaged,
    NotifyAborted,
    NotifyComplete,
    PollFailed,
    PollSource,
    PublishTable,
    RecordCut,
    RivalSeen,
    RunMicroBatch,
    SliceOffered,
    SourceEnded,
    SourceIdle,
    SuitesJudged,
    TableCheckFailed,
    TablesChecked,
)
from checkpointing.metadata.record import CheckpointRecord, RowKind
from jobs.disk_errors import explained
from jobs.operators.execute import MicroBatchError
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.pipeline import CheckpointListener, MasterHook
from jobs.quality.expectation import Suite
from jobs.quality.judge import Judge, JudgementCancelledError
from jobs.quality.verdict import NO_ROWS, VERDICTS, Verdict, not_judged, not_looked, verdicts_in
from jobs.sources.delta.upstream_job import UpstreamHolds
from jobs.sources.port import (
    CommitsPositions,
    HearsAborts,
    OwnState,
    Source,
    SourceError,
    every_layer,
    has_ended,
    layers,
)
from jobs.sources.position_words import PositionWords
from jobs.storage.folder import Folder
from jobs.tick.engine import Engine
from jobs.tick.listener import NoticeFailed, TickListener
from jobs.user_code import message_of
from jobs.warehouse.boundaries import Boundary, CarriedOut, CoordinatorEffect, HookEffect, around, boundary_of
from jobs.warehouse.cleanup import LogKeeping, delete_unfinished, staging_folders
from jobs.warehouse.compaction import CompactionEndedError, Compactor
from jobs.warehouse.cuts_table import deletable
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.output_tables import TableNotCheckedError


class CoordinatorCalls:
    """Calls the coordinators of one tick's sources, from any thread."""

    def __init__(self, sources: Mapping[VertexId, Source]) -> None:
        """Call the coordinators of these sources."""
        self._states = {str(name): OwnState(source) for name, source in sources.items()}

    def carry_out(self, effect: CoordinatorEffect) -> Fact:
        """Return the fact that answers the effect. If the source raises an error, the fact has it."""
        state = self._states[effect.coordinator]
        match effect:
            case AskOperatorCoordinator():
                try:
                    return OperatorCoordinatorAnswered(effect.coordinator, effect.checkpoint, state.snapshot())
                except Exception as error:  # noqa: BLE001 - a source is a user's code
                    return OperatorCoordinatorFailed(effect.coordinator, effect.checkpoint, _said(effect, error))
            case ResetOperatorCoordinator():
                try:
                    state.restore(effect.checkpoint, effect.state)
                except Exception as error:  # noqa: BLE001 - a source is a user's code
                    return CoordinatorResetFailed(effect.coordinator, _said(effect, error))
                return CoordinatorReset(effect.coordinator)
            case _ as unreachable:
                assert_never(unreachable)


def _said(effect: CoordinatorEffect, error: Exception) -> str:
    what = "give its own state" if isinstance(effect, AskOperatorCoordinator) else "take its own state back"
    why = str(error) if isinstance(error, SourceError) else message_of(error)
    return f"source {effect.coordinator} could not {what}: {why}"


# ------------------------------------------------------------------
# Calls a pipeline's master hooks. Each effect becomes one call of a user's code, and one fact (A8).


_WAY_OUT: Final = ": correct it and run again"

_log = structlog.get_logger(__name__)


class UnfitStateError(ValueError):
    """A hook returned a state that JSON cannot hold unchanged. The message says what a hook may return."""


class HookCalls:
    """Calls the hooks of one tick, from any thread. The caller keeps the calls of each hook in order."""

    def __init__(self, hooks: Mapping[str, MasterHook]) -> None:
        """Call these hooks. `hooks` maps their names to them."""
        self._hooks = hooks

    def carry_out(self, effect: HookEffect) -> Fact | None:
        """Return the fact that answers the effect. If the hook raises an error, the fact has it."""
        hook = self._hooks[effect.hook]
        match effect:
            case AskHook():
                return _asked(hook, effect)
            case RestoreHook():
                state = None if effect.state is None else json.loads(effect.state)
                return _restored(effect.hook, lambda: hook.restore_checkpoint(effect.checkpoint, state))
            case ResetHook():
                return _restored(effect.hook, hook.reset)
            case CloseHook():
                _close(effect.hook, hook)
                return None


def _asked(hook: MasterHook, effect: AskHook) -> Fact:
    try:
        state = as_json(hook.trigger_checkpoint(effect.checkpoint, effect.triggered_ms))
    except Exception as error:  # noqa: BLE001 - a user's code
        said = f"master hook {effect.hook!r} failed at checkpoint {effect.checkpoint}: {message_of(error, _WAY_OUT)}"
        return HookFailed(effect.hook, effect.checkpoint, said)
    return HookAnswered(effect.hook, effect.checkpoint, state)


def _restored(name: str, call: Callable[[], None]) -> Fact:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - a user's code
        return HookRestoreFailed(name, f"master hook {name!r} could not be restored: {message_of(error, _WAY_OUT)}")
    return HookRestored(name)


def _close(name: str, hook: MasterHook) -> None:
    """Close the hook. An error is only logged, because the attempt has ended anyway."""
    try:
        hook.close()
    except Exception as error:  # noqa: BLE001 - a user's code
        _log.warning("master hook not closed", hook=name, exc_info=error)


def as_json(state: JsonValue) -> str | None:
    """Return a hook's state as JSON text, or None for no state.

    Raise UnfitStateError if JSON would change the state.
    """
    if state is None:
        return None
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnfitStateError(f"its state is no JSON: {error}; {_MAY_BE}") from error
    if json.loads(text) != state:
        raise UnfitStateError(f"its state would come back from JSON as another one; {_MAY_BE}")
    return text


_MAY_BE: Final = "return None, texts, finite numbers, bools, lists, and dicts with text keys"


# ------------------------------------------------------------------
# Judges all suites of a vertex's tables, and reports which suites could not be judged.


def judge_suites(
    judge: Judge, suites: Mapping[TableName, Suite], effect: JudgeSuites, is_cancelled: Callable[[], bool]
) -> SuitesJudged | JudgementFailed:
    """Judge every table of the vertex. The report is a JSON array of the verdicts.

    If a suite rejects rows, its rejection is the result even if other suites could not be judged. Raises
    JudgementCancelledError soon after `is_cancelled` returns True.
    """
    verdicts: list[Verdict] = []
    failures: list[str] = []
    for table, files in effect.files:
        if table in suites:
            try:
                verdicts.append(judge.judge(suites[table], files, is_cancelled))
            except JudgementCancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - an unreadable file, or Great Expectations itself
                cause = explained(f"{type(error).__name__}: {error}")
                failures.append(not_judged(suites[table].name, table, cause))
    report = VERDICTS.dump_json(tuple(verdicts)).decode()
    rejections = [verdict.report() for verdict in verdicts if verdict.rejects]
    if rejections:
        return SuitesJudged(
            effect.vertex, effect.checkpoint, passed=False, report=report, message="\n".join(rejections)
        )
    failures += [verdict.failure() for verdict in verdicts if not verdict.passed]
    if failures:
        return JudgementFailed(effect.vertex, effect.checkpoint, ". ".join(failures), report)
    return SuitesJudged(effect.vertex, effect.checkpoint, passed=True, report=report)


def verdicts_of(record: CheckpointRecord, suites: Iterable[Suite] = ()) -> tuple[Verdict, ...]:
    """Return the verdicts in a checkpoint, and for every other suite a verdict that says why it was not judged.

    Raises ValidationError for a report of another format.
    """
    kept = verdicts_in(record.statistics.verdicts)
    told = {verdict.table for verdict in kept}
    is_of_tick = record.kind in (RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.HELD)
    why = NO_ROWS if is_of_tick else f"a {record.kind.value} reads no rows"
    return (*kept, *(not_looked(suite, why) for suite in suites if suite.table not in told))


# ------------------------------------------------------------------
# Notifies a pipeline's own listeners and sources that a checkpoint is complete or was aborted (F1, F2).
#
# If one of them raises an error, the error is logged and shown, and the others and the tick go on. One thread makes all
# notices, in the order of the checkpoints, so a slow listener delays only later notices.


class Notices:
    """Notifies the sources, then the listeners in the order of their declaration."""

    def __init__(
        self,
        sources: Mapping[VertexId, Source],
        listeners: tuple[CheckpointListener, ...],
        shown_to: TickListener,
        upstream: UpstreamHolds,
    ) -> None:
        """Notify the sources that take notices, and these listeners. Report errors to `shown_to`."""
        self._upstream = upstream
        self._sources = [
            (name, layer)
            for name, source in sources.items()
            for layer in layers(source)
            if isinstance(layer, CommitsPositions)
        ]
        self._hear_aborts = [
            (name, layer)
            for name, source in sources.items()
            for layer in every_layer(source)
            if isinstance(layer, HearsAborts)
        ]
        self._listeners = listeners
        self._shown_to = shown_to

    def complete(self, effect: NotifyComplete) -> None:
        """Notify that a checkpoint is complete and published. Each source gets the positions of its splits."""
        checkpoint = effect.checkpoint
        self.stands(checkpoint, [position for _, _, position in effect.positions])
        for name, source in self._sources:
            call = partial(source.notify_checkpoint_complete, checkpoint, _of_source(effect, name))
            self._guarded(f"source {name}", checkpoint, call)
        for listener in self._listeners:
            self._guarded(_name(listener), checkpoint, partial(listener.notify_checkpoint_complete, checkpoint))

    def stands(self, checkpoint: CheckpointId, positions: Collection[str | None]) -> None:
        """Hold the cuts of other jobs at the positions of a checkpoint (A10)."""
        self._guarded("the upstream job", checkpoint, partial(self._upstream.rest_on, positions))

    def aborted(self, effect: NotifyAborted) -> None:
        """Notify the sources and the listeners that a checkpoint failed."""
        why = effect.message or effect.reason.message
        for name, source in self._hear_aborts:
            heard = partial(source.notify_checkpoint_aborted, effect.checkpoint, why)
            self._guarded(f"source {name}", effect.checkpoint, heard)
        for listener in self._listeners:
            call = partial(listener.notify_checkpoint_aborted, effect.checkpoint, why)
            self._guarded(_name(listener), effect.checkpoint, call)

    def _guarded(self, told: str, checkpoint: CheckpointId, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a user's code, which changes nothing of the checkpoint
            _log.info("not notified", told=told, checkpoint=checkpoint, exc_info=error)
            self._shown_to.progress(NoticeFailed(told, checkpoint, message_of(error)))


def _of_source(effect: NotifyComplete, source: VertexId) -> dict[SplitId, str]:
    return {split: position for vertex, split, position in effect.positions if vertex == source}


def _name(listener: CheckpointListener) -> str:
    return f"listener {type(listener).__name__}"


# ------------------------------------------------------------------
# Carries out slow effects: each becomes one call of a store, source, operator or judge, and one fact.
#
# These handlers decide nothing. An error becomes the effect's failure fact. If the effect has no failure fact, the
# error is raised.


MAINTAIN_EVERY: Final = 25
"""Old log entries of tables are dropped after the attempt's first completed checkpoint, then every 25 checkpoints."""


class EffectHandlers:
    """Carries out the effects of one attempt, from any thread."""

    def __init__(
        self,
        plan: JobPlan,
        stores: JobStores,
        engine: Engine,
        boundary: Boundary,
        notices: Notices,
        *,
        generation: Generation,
        keeping: LogKeeping | None,
    ) -> None:
        """Store what the effects need. `keeping` says how long log entries stay. None means for ever."""
        self._plan = plan
        self._generation = generation
        self._stores = stores
        self._engine = engine
        self._boundary = boundary
        self._notices = notices
        self._keeping = keeping
        self._root = stores.warehouse.root
        self._judge = Judge(self._root)
        self._hooks = HookCalls(plan.hooks)
        self._coordinators = CoordinatorCalls(plan.sources)
        self._words = PositionWords(plan.sources)
        self._over = threading.Event()
        self._compactor = Compactor(stores.warehouse, generation, self._over.is_set)
        self._cancelled: set[tuple[VertexId, CheckpointId]] = set()
        in_folder = isinstance(stores.warehouse.storage, Folder)
        self._unopened = () if in_folder else tuple(table.name for table in plan.graph.tables())
        self._opening = threading.Lock()
        self._completed = 0
        """The number of completed checkpoints. Only the thread of the notices changes it."""
        if plan.suites:
            self._judge.warm_up()

    def carry_out(self, effect: CarriedOut) -> Fact | None:
        """Return the fact that answers the effect, or None if it has no answer.

        Raises CutsNotRecordedError, for which there is no fact.
        """
        with around(self._boundary, boundary_of(effect)):
            return self._answer(effect)

    def _answer(self, effect: CarriedOut) -> Fact | None:  # noqa: C901, PLR0911, PLR0912 - a line for each effect
        match effect:
            case PollSource():
                return self._poll(effect)
            case RunMicroBatch():
                return self._run(effect)
            case JudgeSuites():
                return self._judged(effect)
            case CheckTables():
                return self._check(effect)
            case AppendRow():
                return self._stores.entries.append(effect.row, effect.at_version, subsumed=effect.subsumed)
            case PublishTable():
                return self._stores.publish(effect.publication, effect.checkpoint, by=self._generation)
            case RecordCut():
                self._stores.cuts.record(effect.checkpoint, effect.versions)
                return CutRecorded(effect.checkpoint)
            case CompactFiles():
                return self._compact(effect)
            case LookForRival():
                return self._look_for_rival(effect)
            case DiscardFiles():
                self._discard(effect)
            case AskHook() | RestoreHook() | ResetHook() | CloseHook():
                return self._hooks.carry_out(effect)
            case AskOperatorCoordinator() | ResetOperatorCoordinator():
                return self._coordinators.carry_out(effect)
            case NotifyComplete():
                self._notices.complete(effect)
                self._maintain(effect.checkpoint)
            case NotifyAborted():
                self._notices.aborted(effect)
            case _ as unreachable:
                assert_never(unreachable)
        return None

    def _poll(self, effect: PollSource) -> Fact:
        source = self._plan.sources[effect.source]
        try:
            found = source.poll(effect)
            ended = found is None and has_ended(source, effect.split, effect.position)
        except SourceError as error:
            return PollFailed(effect.source, effect.split, f"source {effect.source}: {error}")
        except Exception as error:  # noqa: BLE001 - a source is a user's code
            at = self._words.named(effect.source, effect.split, effect.position)
            text = f"source {effect.source}, split {effect.split}, after {at}: {message_of(error)}"
            return PollFailed(effect.source, effect.split, text)
        if found is not None:
            return SliceOffered(replace(found, offered_ms=self._stores.warehouse.now_ms()))
        return SourceEnded(effect.source, effect.split) if ended else SourceIdle(effect.source, effect.split)

    def _run(self, effect: RunMicroBatch) -> Fact:
        self._open_logs()
        vertex, number = effect.vertex, effect.micro_batch
        try:
            return self._engine.run(self._plan.vertices[vertex], effect, self._root, self._plan.job)
        except Exception as error:  # noqa: BLE001 - MicroBatchError, or an engine that did not start
            failed = error if isinstance(error, MicroBatchError) else MicroBatchError.of(vertex, number, error)
        if not failed.not_staged:
            return MicroBatchFailed(vertex, number, str(failed))
        folders = staging_folders(self._plan.graph, self._stores.warehouse.paths)
        delete_unfinished(self._stores.warehouse, folders, effect)
        return MicroBatchNotStaged(vertex, number, str(failed))

    def _open_logs(self) -> None:
        """Open an object store's tables during the first micro-batch, so that the first checkpoint need not do so."""
        with self._opening:
            tables, self._unopened = self._unopened, ()
        if tables:
            threading.Thread(target=self._look_again, args=(tables,), name="log-opener", daemon=True).start()

    def _look_again(self, tables: Collection[TableName]) -> None:
        with suppress(Exception):  # the check before the commit says what is wrong
            self._stores.look_again(tables)

    def cancel(self, effect: CancelJudgement) -> None:
        """Make a running judgement end at its next step, without an answer."""
        self._cancelled.add((effect.vertex, effect.checkpoint))

    def _judged(self, effect: JudgeSuites) -> Fact | None:
        key = (effect.vertex, effect.checkpoint)
        try:
            return judge_suites(self._judge, self._plan.suites, effect, lambda: key in self._cancelled)
        except JudgementCancelledError:
            return None

    def _check(self, effect: CheckTables) -> Fact:
        try:
            problems = self._stores.tables.check(effect.tables, effect.leaving)
        except Exception as error:  # noqa: BLE001 - after any error it is not known what the tables are like
            cause = explained(str(error) if isinstance(error, TableNotCheckedError) else message_of(error))
            text = f"the output tables could not be checked, so nothing is committed: {cause}"
            return TableCheckFailed(effect.checkpoint, text)
        votes = bool(effect.pre_commits) and not problems
        refused = self._stores.outside.pre_commit(effect, self._generation, self._boundary) if votes else None
        if refused is not None:
            return TableCheckFailed(effect.checkpoint, refused)
        return TablesChecked(effect.checkpoint, problems)

    def _compact(self, effect: CompactFiles) -> FilesCompacted:
        """Compact tables. After an error the tables keep their small files for now."""
        try:
            return self._compactor.compact(effect)
        except CompactionEndedError:
            return FilesCompacted()
        except Exception as error:  # noqa: BLE001 - logged; the table shows the same rows without it
            text = explained(message_of(error))
            _log.warning("small files were not compacted", tables=list(effect.tables), error=text)
            return FilesCompacted(error=text)

    def end(self) -> None:
        """Make a running compaction end soon, because nobody waits for it any more."""
        self._over.set()

    def _look_for_rival(self, effect: LookForRival) -> RivalSeen:
        """Read the newest claim. If it cannot be read, the tick looks again after its next failed checkpoint."""
        try:
            return RivalSeen(self._stores.entries.rival(effect.generation))
        except Exception as error:  # noqa: BLE001 - logged; safety does not depend on this look
            _log.warning("the newest claim could not be read", error=f"{type(error).__name__}: {error}")
            return RivalSeen(None)

    def _discard(self, effect: DiscardFiles) -> None:
        """Delete the files. A file that cannot be deleted costs only its space."""
        for path in deletable(self._stores.warehouse, effect.paths):
            with suppress(OSError):
                self._stores.warehouse.delete(path)

    def _maintain(self, checkpoint: CheckpointId) -> None:
        """Maintain the logs once a checkpoint is published. An error is only logged."""
        tables = [table.name for table in self._plan.graph.tables()]
        try:
            self._stores.look_again(tables)
            self._stores.maintain(tables, self._keeping if self._completed % MAINTAIN_EVERY == 0 else None)
            self._completed += 1
        except Exception as error:  # noqa: BLE001 - logged; the next look may succeed
            _log.warning("maintenance failed", checkpoint=checkpoint, error=f"{type(error).__name__}: {error}")
