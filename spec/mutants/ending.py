"""Plants bugs in the end of a tick that must stop, or cannot go on."""

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import VertexId
from checkpointing.job import finishing
from checkpointing.job.ending import Ending, Next, TickPhase
from checkpointing.job.readers import SourceReaders, Split
from checkpointing.messages import (
    AppendRow,
    EndTick,
    Fact,
    MicroBatchFailed,
    PollSource,
    StopKind,
    StopRequested,
    TimeAdvanced,
)
from spec.explore_job import DrivenJob, SmallJob
from spec.invariants import violations
from spec.mutants.judges import directed
from spec.mutants.planting import Patch, mutant
from spec.pipeline import MAX_PARALLELISM, SPLITS, graph

_INTERVAL_MS = 100


def _in_doubt() -> DrivenJob:
    """Return a job whose entry is being appended."""
    config = CheckpointConfig(interval_ms=_INTERVAL_MS, max_concurrent=9, max_parallelism=MAX_PARALLELISM)
    rows = dict.fromkeys((split for splits in SPLITS.values() for split in splits), 4)
    driven = DrivenJob(SmallJob(graph=graph(1), config=config, rows=rows))
    driven.start()
    driven.tell(TimeAdvanced(driven.world.now_ms + _INTERVAL_MS))
    while not any(isinstance(effect, AppendRow) for effect in driven.outstanding):
        driven.answer(next(at for at, effect in enumerate(driven.outstanding) if not isinstance(effect, PollSource)))
    return driven


def _keeps(driven: DrivenJob, invariant: str) -> bool:
    """Answer all that is outstanding. Return whether the invariant held."""
    while driven.outstanding and driven.end is None:
        driven.answer(0)
    return not any(broken.invariant == invariant for broken in violations(driven.world.history))


def _begins_nothing(ends: Fact) -> bool:
    """Return whether a tick begins nothing after this fact."""
    driven = _in_doubt()
    driven.tell(ends)
    driven.tell(TimeAdvanced(driven.world.now_ms + 2 * _INTERVAL_MS))
    return _keeps(driven, "ends-soon")


def _a_tick_that_must_stop_publishes_first() -> bool:
    driven = _in_doubt()
    driven.answer(next(at for at, effect in enumerate(driven.outstanding) if isinstance(effect, AppendRow)))
    driven.tell(StopRequested(StopKind.NOW))
    return _keeps(driven, "ends-settled")


def _a_tick_that_must_stop_begins_nothing() -> bool:
    return _begins_nothing(StopRequested(StopKind.NOW))


def _a_tick_that_cannot_go_on_begins_nothing() -> bool:
    return _begins_nothing(MicroBatchFailed(VertexId("joined"), 1, "a task died"))


STOPS = directed(_a_tick_that_must_stop_begins_nothing, "ends-soon")
SETTLES = directed(_a_tick_that_must_stop_publishes_first, "ends-settled")
FAILS = directed(_a_tick_that_cannot_go_on_begins_nothing, "ends-soon")


@mutant("ends-soon", STOPS)
def a_tick_that_must_stop_reads_on(patch: Patch) -> None:
    reads = property(lambda self: self.phase not in (TickPhase.FINISHING, TickPhase.FAILING))
    patch.put(Ending, "reads", reads)


@mutant("ends-soon", FAILS)
def a_tick_that_cannot_go_on_reads_on(patch: Patch) -> None:
    reads = property(lambda self: self.phase not in (TickPhase.FINISHING, TickPhase.STOPPING))
    patch.put(Ending, "reads", reads)


@mutant("ends-soon", STOPS)
def checkpoints_are_triggered_until_the_tick_has_ended(patch: Patch) -> None:
    patch.function(finishing, "stop_scheduler", lambda _: None)


@mutant("ends-soon")
def an_idle_split_is_asked_although_the_tick_stops(patch: Patch) -> None:
    real = SourceReaders._may_read

    def may_read(self: SourceReaders, split: Split) -> bool:
        stopped, self.stopped = self.stopped, self.stopped and not split.idle
        try:
            return real(self, split)
        finally:
            self.stopped = stopped

    patch.put(SourceReaders, "_may_read", may_read)


@mutant("ends-settled", SETTLES)
def a_tick_that_is_stopped_leaves_its_commit_in_doubt(patch: Patch) -> None:
    real = Ending.next

    def hasty(self: Ending, now_ms: int, **seen: bool) -> Next | EndTick:
        return real(self, now_ms, **{**seen, "in_doubt": False})

    patch.put(Ending, "next", hasty)
