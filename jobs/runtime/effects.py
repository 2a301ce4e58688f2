"""Carries out slow effects: each becomes one call of a store, source, operator or judge, and one fact.

Nothing is decided here. An error becomes the effect's failure fact. An effect without one raises it.
"""

import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Final, assert_never

import structlog

from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    CloseHook,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    CheckTables,
    CompactFiles,
    CutRecorded,
    DiscardFiles,
    Fact,
    FilesCompacted,
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
    TableCheckFailed,
    TablesChecked,
)
from jobs.accidents import explained
from jobs.cleanup.log_keeping import LogKeeping
from jobs.holding.boundaries import Boundary, CarriedOut, around, boundary_of
from jobs.holding.job_stores import JobStores
from jobs.operators.failures import MicroBatchError
from jobs.planner import JobPlan
from jobs.quality.judge import Judge, JudgementCancelledError
from jobs.runtime.coordinator_calls import CoordinatorCalls
from jobs.runtime.engine import Engine
from jobs.runtime.hook_calls import HookCalls
from jobs.runtime.notices import Notices
from jobs.runtime.suite_verdicts import judge_suites
from jobs.sources.port import SourceError, has_ended
from jobs.sources.position_words import PositionWords
from jobs.storage.folder import Folder
from jobs.stores.compacting import CompactionEndedError, Compactor
from jobs.stores.leftovers import delete_unfinished, staging_folders
from jobs.stores.output_tables import TableNotCheckedError
from jobs.stores.reservations import deletable
from jobs.user_code import message_of

_log = structlog.get_logger(__name__)

MAINTAIN_EVERY: Final = 25
"""Log entries of tables are dropped after the attempt's first completed checkpoint, and after so many more."""


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
        """Take what the effects need. `keeping` says how long log entries stay; None means for ever."""
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
        """Only the thread of the notices counts."""
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
                return self._stores.append(effect.row, effect.at_version, subsumed=effect.subsumed)
            case PublishTable():
                return self._stores.publish(effect.publication, effect.checkpoint, by=self._generation)
            case RecordCut():
                self._stores.record_cut(effect.checkpoint, effect.versions)
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
            return SliceOffered(found)
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
        """Open the tables of a store during the first micro-batch, so that the first checkpoint need not."""
        with self._opening:
            tables, self._unopened = self._unopened, ()
        if tables:
            threading.Thread(target=self._look_again, args=(tables,), name="log-opener", daemon=True).start()

    def _look_again(self, tables: Collection[TableName]) -> None:
        with suppress(Exception):  # the check before the commit says what is wrong
            self._stores.look_again(tables)

    def cancel(self, effect: CancelJudgement) -> None:
        """Let a running judgement end at its next step, without an answer."""
        self._cancelled.add((effect.vertex, effect.checkpoint))

    def _judged(self, effect: JudgeSuites) -> Fact | None:
        key = (effect.vertex, effect.checkpoint)
        try:
            return judge_suites(self._judge, self._plan.suites, effect, lambda: key in self._cancelled)
        except JudgementCancelledError:
            return None

    def _check(self, effect: CheckTables) -> Fact:
        try:
            problems = self._stores.check(effect.tables, effect.leaving)
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
        """Compact tables. After an error they keep their small files for now."""
        try:
            return self._compactor.compact(effect)
        except CompactionEndedError:
            return FilesCompacted()
        except Exception as error:  # noqa: BLE001 - logged; the table shows the same rows without it
            text = explained(message_of(error))
            _log.warning("small files were not compacted", tables=list(effect.tables), error=text)
            return FilesCompacted(error=text)

    def end(self) -> None:
        """Let a running compaction end soon. Nobody waits for it any more."""
        self._over.set()

    def _look_for_rival(self, effect: LookForRival) -> RivalSeen:
        """Read the newest claim. If it cannot be read, the tick looks again after its next failed checkpoint."""
        try:
            return RivalSeen(self._stores.rival(effect.generation))
        except Exception as error:  # noqa: BLE001 - logged; safety does not depend on this look
            _log.warning("the newest claim could not be read", error=f"{type(error).__name__}: {error}")
            return RivalSeen(None)

    def _discard(self, effect: DiscardFiles) -> None:
        """Delete the files. One that cannot be deleted costs only its space."""
        for path in deletable(self._stores.warehouse, effect.paths):
            with suppress(OSError):
                self._stores.warehouse.delete(path)

    def _maintain(self, checkpoint: CheckpointId) -> None:
        """Look after the logs once a checkpoint is published. An error is only logged."""
        tables = [table.name for table in self._plan.graph.tables()]
        try:
            self._stores.look_again(tables)
            self._stores.maintain(tables, self._keeping if self._completed % MAINTAIN_EVERY == 0 else None)
            self._completed += 1
        except Exception as error:  # noqa: BLE001 - logged; the next look may succeed
            _log.warning("maintenance failed", checkpoint=checkpoint, error=f"{type(error).__name__}: {error}")
