"""Plants bugs in the end of a tick that must stop, or cannot go on."""

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import VertexId
from checkpointing.job import finishing
from checkpointing.job.ending import Ending, TickPhase
from checkpointing.job.readers import SourceReaders, Split
from checkpointing.messages import AppendRow, Fact, MicroBatchFailed, PollSource, StopKind, StopRequested, TimeAdvanced
from spec.explore_job import DrivenJob, SmallJob
from spec.invariants import violations
from spec.mutants.judges import directed
from spec.mutants.planting import Patch, mutant
from spec.pipeline import MAX_PARALLELISM, SPLITS, graph

_INTERVAL_MS = 100


def _begins_nothing(ends: Fact) -> bool:
    """Return whether a tick begins nothing after this fact, which comes while an entry is being appended."""
    config = CheckpointConfig(interval_ms=_INTERVAL_MS, max_concurrent=9, max_parallelism=MAX_PARALLELISM)
    rows = dict.fromkeys((split for splits in SPLITS.values() for split in splits), 4)
    driven = DrivenJob(SmallJob(graph=graph(1), config=config, rows=rows))
    driven.start()
    driven.tell(TimeAdvanced(driven.world.now_ms + _INTERVAL_MS))
    while not any(isinstance(effect, AppendRow) for effect in driven.outstanding):
        driven.answer(next(at for at, effect in enumerate(driven.outstanding) if not isinstance(effect, PollSource)))
    driven.tell(ends)
    driven.tell(TimeAdvanced(driven.world.now_ms + 2 * _INTERVAL_MS))
    while driven.outstanding and driven.end is None:
        driven.answer(0)
    return not any(broken.invariant == "ends-soon" for broken in violations(driven.world.history))


def _a_tick_that_must_stop_begins_nothing() -> bool:
    return _begins_nothing(StopRequested(StopKind.NOW))


def _a_tick_that_cannot_go_on_begins_nothing() -> bool:
    return _begins_nothing(MicroBatchFailed(VertexId("joined"), 1, "a task died"))


STOPS = directed(_a_tick_that_must_stop_begins_nothing, "ends-soon")
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
