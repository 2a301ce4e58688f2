"""Mutants of sources that end, and of jobs that finish."""

from collections.abc import Iterable
from dataclasses import replace

from checkpointing.channel_items import EndOfData
from checkpointing.commit import recovery, reset
from checkpointing.commit.reset import Move
from checkpointing.config import CheckpointConfig
from checkpointing.graph import Vertex
from checkpointing.identifiers import SplitId, SubtaskId, VertexId
from checkpointing.job import finishing, restoring
from checkpointing.job.operator_run import InputEnd, OperatorRun
from checkpointing.job.readers import SourceReaders
from checkpointing.job.setup import JobSetup
from checkpointing.job.wiring import Wiring
from checkpointing.messages import PollSource, SourceEnded
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.task.messages import SubtaskFinished
from checkpointing.tick import claiming
from checkpointing.tick.claiming import Claiming
from checkpointing.tick.messages import Question
from spec.explore_job import DrivenJob, SmallJob
from spec.invariants import violations
from spec.mutants.judges import ENDS, ENDS_WITH_MISHAPS, ONE_ENDS, REOPENED, directed
from spec.mutants.planting import Patch, mutant
from spec.pipeline import MAX_PARALLELISM, ORDERS, PAYMENTS, SPLITS, graph


@mutant("inputs-end", ENDS)
def a_split_that_has_ended_counts_as_idle(patch: Patch) -> None:
    def found_ended(self: SourceReaders, source: VertexId, name: SplitId) -> SubtaskId:
        self.found_idle(source, name, 0)
        return self._splits[source, name].subtask

    patch.put(SourceReaders, "found_ended", found_ended)


@mutant("inputs-end", ENDS)
def a_restore_forgets_which_splits_have_ended(patch: Patch) -> None:
    patch.function(restoring, "ended_splits", lambda _graph, _record: frozenset())


def _one_source_may_end_alone() -> bool:
    """Return whether vertices keep their keys open when one split of several has ended."""
    config = CheckpointConfig(interval_ms=None, max_parallelism=MAX_PARALLELISM)
    rows = dict.fromkeys((split for splits in SPLITS.values() for split in splits), 0)
    driven = DrivenJob(SmallJob(graph=graph(1, bounded=(ORDERS, PAYMENTS)), config=config, rows=rows))
    driven.start()
    poll = next(effect for effect in driven.outstanding if isinstance(effect, PollSource))
    driven.outstanding.remove(poll)
    driven.tell(SourceEnded(poll.source, poll.split))
    return not any(broken.invariant == "inputs-end" for broken in violations(driven.world.history))


@mutant("inputs-end", directed(_one_source_may_end_alone, "inputs-end"))
def the_first_source_that_ends_ends_the_job(patch: Patch) -> None:
    patch.put(SourceReaders, "all_ended", property(lambda self: any(split.ended for split in self._splits.values())))


@mutant("inputs-end", ENDS)
def a_job_finishes_without_its_last_checkpoint(patch: Patch) -> None:
    real = finishing.end_inputs

    def end_inputs(job: Wiring) -> None:
        before = job.ending.uncommitted
        real(job)
        job.ending.uncommitted = before

    patch.function(finishing, "end_inputs", end_inputs)


@mutant("inputs-end", ENDS)
def a_vertex_is_finished_before_it_has_put_out_its_rows(patch: Patch) -> None:
    real = Wiring.end_data

    def end_data(self: Wiring) -> None:
        real(self)
        for subtask in self.setup.graph.subtasks():
            self.subtasks.step(subtask, SubtaskFinished())

    patch.put(Wiring, "end_data", end_data)


@mutant("inputs-end", ENDS)
def a_vertex_without_state_runs_once_more_at_its_end(patch: Patch) -> None:
    patch.put(OperatorRun, "ends_without_work", property(lambda _: False))


@mutant("no-deadlock", ENDS)
def no_vertex_says_that_it_has_finished(patch: Patch) -> None:
    def hand_end_on(job: Wiring, run: OperatorRun) -> None:
        run.input_end = InputEnd.HANDED_ON
        for subtask in run.vertex.subtasks():
            job.broadcast(subtask, EndOfData())

    patch.function(finishing, "hand_end_on", hand_end_on)


@mutant("only-positions-move", ENDS)
def a_reset_leaves_its_splits_at_their_end(patch: Patch) -> None:
    def moved(source: VertexRecord, move: Move) -> VertexRecord:
        there = zip(source.splits, source.subtasks, strict=True)
        subtasks = (replace(each, position=move.positions.get(SplitId(split), each.position)) for split, each in there)
        return source.model_copy(update={"subtasks": tuple(subtasks)})

    patch.put(reset, "_moved", moved)


@mutant("finished-is-final", ENDS)
def a_tick_begins_although_the_job_has_finished(patch: Patch) -> None:
    patch.function(recovery, "has_finished", lambda _restore, _sources: False)


@mutant("finished-is-final", ONE_ENDS)
def a_job_is_finished_while_a_source_goes_on(patch: Patch) -> None:
    def has_finished(restore: CheckpointRecord | None, sources: Iterable[Vertex]) -> bool:
        ended = (
            {vertex.vertex for vertex in restore.vertices if all(e.finished for e in vertex.subtasks)}
            if restore
            else ()
        )
        return any(source.bounded and source.id in ended for source in sources)

    patch.function(recovery, "has_finished", has_finished)


@mutant("finished-is-final", ENDS)
def a_finished_job_is_left_with_an_entry_that_is_not_published(patch: Patch) -> None:
    def may_be_over(self, seen, plan) -> bool:  # type: ignore[no-untyped-def] # noqa: ANN001 - as the real one
        return self._errand.runs and recovery.has_finished(plan.restore, self._terms.sources)

    patch.put(Claiming, "_may_be_over", may_be_over)


@mutant("finished-is-final", ENDS_WITH_MISHAPS)
def a_finished_job_is_left_with_tables_that_have_lost_entries(patch: Patch) -> None:
    real = claiming.examined

    def examined(questions, seen, plan):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - as the real one
        asked = () if questions == (Question.WHOLE,) else questions
        return (yield from real(asked, seen, plan))

    patch.function(claiming, "examined", examined)


@mutant("cut-is-exact", REOPENED)
def a_job_that_has_finished_stays_finished_although_its_sources_go_on(patch: Patch) -> None:
    real = Wiring.__init__

    def begin(self: Wiring, setup: JobSetup) -> None:
        now = SourceReaders.all_ended
        SourceReaders.all_ended = property(lambda readers: True)  # type: ignore[method-assign,assignment]
        try:
            real(self, setup)
        finally:
            SourceReaders.all_ended = now  # type: ignore[method-assign]

    patch.put(Wiring, "__init__", begin)
