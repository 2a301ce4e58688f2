"""Plants bugs in the votes of outside sinks: who is asked, what a vote means, and what becomes of a transaction."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from checkpointing.commit import outside, pre_committed, two_phase
from checkpointing.commit.pre_committed import SinkTransaction
from checkpointing.commit.recovery import Observed
from checkpointing.commit.two_phase import CommitEffect, CommitFact, TwoPhaseCommit
from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from checkpointing.messages import CheckTables, Publication, TableCheckFailed, TablesChecked
from checkpointing.metadata.record import CheckpointRecord, Claim
from checkpointing.tick import recovering
from checkpointing.tick.asking import Steps
from checkpointing.tick.claiming import Held
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.holding import Holding
from checkpointing.tick.messages import Outcome, Recovered, WorkEnded
from spec.mutants.judges import VOTES
from spec.mutants.planting import Patch, mutant

Asked = tuple[Publication, ...]
Left = Iterable[SinkTransaction]
Chosen = tuple[SinkTransaction, ...]


def _asks(patch: Patch, otherwise: Callable[[Asked], Asked]) -> None:
    real = outside.pre_commits

    def pre_commits(graph: JobGraph, compose: Callable[[], CheckpointRecord], parent: CheckpointRecord | None) -> Asked:
        return otherwise(real(graph, compose, parent))

    patch.put(two_phase, "pre_commits", pre_commits)


@mutant("votes-count", VOTES)
def nobody_is_asked_to_vote(patch: Patch) -> None:
    _asks(patch, lambda _: ())


@mutant("votes-count", VOTES)
def sinks_without_a_vote_are_asked_too(patch: Patch) -> None:
    real = outside.pre_commits

    def pre_commits(graph: JobGraph, compose: Callable[[], CheckpointRecord], parent: CheckpointRecord | None) -> Asked:
        asked = real(graph, compose, parent)
        return outside.outside_publications(compose(), parent) if asked else asked

    patch.put(two_phase, "pre_commits", pre_commits)


@mutant("votes-count", VOTES)
def only_the_first_sink_votes(patch: Patch) -> None:
    _asks(patch, lambda asked: asked[:1])


@mutant("votes-count", VOTES)
def a_sink_votes_on_fewer_rows_than_it_gets(patch: Patch) -> None:
    _asks(patch, lambda asked: tuple(replace(each, adds=each.adds[1:]) for each in asked))


@mutant("votes-count", VOTES)
def the_sinks_of_upsert_tables_do_not_vote(patch: Patch) -> None:
    _asks(patch, lambda asked: tuple(each for each in asked if each.mode is TableMode.APPEND))


@mutant("votes-count", VOTES)
def a_sink_that_refuses_is_overruled(patch: Patch) -> None:
    real = TwoPhaseCommit.step

    def step(self: TwoPhaseCommit, fact: CommitFact, now_ms: int) -> tuple[CommitEffect, ...]:
        overruled = TablesChecked(fact.checkpoint, ()) if isinstance(fact, TableCheckFailed) else fact
        return real(self, overruled, now_ms)

    patch.put(TwoPhaseCommit, "step", step)


def _rolls_back(patch: Patch, otherwise: Callable[[Left, CheckpointId], Chosen]) -> None:
    patch.function(pre_committed, "to_roll_back", otherwise)


@mutant("pre-committed-stays", VOTES)
def a_publication_rolls_back_its_own_transaction(patch: Patch) -> None:
    _rolls_back(patch, lambda left, before: tuple(each for each in left if each.checkpoint <= before))
    patch.function(pre_committed, "to_commit", lambda left, checkpoint: ())


@mutant("pre-committed-stays", VOTES)
def a_late_publication_rolls_back_newer_transactions(patch: Patch) -> None:
    _rolls_back(patch, lambda left, before: tuple(each for each in left if each.checkpoint != before))


@mutant("pre-committed-stays", VOTES)
def a_start_rolls_back_before_it_rolls_forward(patch: Patch) -> None:
    real = recovering.recovered

    def recovered(errand: Errand, terms: Terms, held: Held) -> Steps[Recovered]:
        if errand.discards:
            yield from recovering.discarded(held.claim, held.seen)
        return (yield from real(errand, terms, held))

    patch.function(recovering, "recovered", recovered)


@mutant("pre-committed-goes", VOTES)
def a_start_leaves_the_transactions_of_dead_ticks(patch: Patch) -> None:
    real = recovering.discarded

    def discarded(claim: Claim, seen: Observed) -> Steps[int]:
        return (yield from real(claim.model_copy(update={"first_id": NO_CHECKPOINT}), seen))

    patch.function(recovering, "discarded", discarded)


@mutant("pre-committed-goes", VOTES)
def a_held_cut_keeps_its_transactions(patch: Patch) -> None:
    real = TwoPhaseCommit._start

    def start(self: TwoPhaseCommit) -> tuple[CommitEffect, ...]:
        effects = real(self)
        return tuple(replace(each, keeps=True) if isinstance(each, CheckTables) else each for each in effects)

    patch.put(TwoPhaseCommit, "_start", start)


@mutant("pre-committed-goes", VOTES)
def a_tick_ends_while_its_sinks_vote(patch: Patch) -> None:
    real = Holding._job_ended

    def job_ended(self: Holding, work: WorkEnded) -> Steps[Outcome]:
        return (yield from real(self, replace(work, votes=False)))

    patch.put(Holding, "_job_ended", job_ended)


@mutant("pre-committed-goes", VOTES)
def nothing_is_rolled_back(patch: Patch) -> None:
    _rolls_back(patch, lambda left, before: ())


@mutant("pre-committed-goes", VOTES)
def only_one_transaction_is_rolled_back(patch: Patch) -> None:
    _rolls_back(patch, lambda left, before: tuple(each for each in left if each.checkpoint < before)[:1])
