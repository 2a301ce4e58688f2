"""Builds what a simulated tick begins with: the graph of its release, and the cut under the names of that release."""

from checkpointing.graph import JobGraph
from checkpointing.identifiers import SplitId
from checkpointing.job.setup import JobSetup
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.tick.messages import Work
from spec.carrying_out import Hands
from spec.faults import Scenario, with_state_of_nobody
from spec.pipeline import JOB, ORDERS, RENAMING, graph, is_renamed, must_audit, with_broadcast, with_counts, with_sinks
from spec.renaming import Names, blocked, link, names_of, taken
from spec.tick_plan import TickPlan
from spec.world import World

LEAVES_STATE_EVERY = 4
"""One tick in this many restores a cut with state of no vertex of its graph, and may leave that state behind."""


def setup_of(world: World, scenario: Scenario, plan: TickPlan, hands: Hands, work: Work) -> JobSetup:
    """Return the setup of the tick's job. The files of renamed tables have their new names then."""
    built, names = _graph_and_names(world, scenario, plan, work.plan.restore)
    restored, renamed = link(world, built, names, work.claim.generation)
    leaves_state = plan.number % LEAVES_STATE_EVERY == 0
    return JobSetup(
        graph=built,
        config=scenario.checkpoint_config(patient=plan.patient),
        job=JOB,
        claim=work.claim,
        at_version=work.at_version,
        restored=with_state_of_nobody(restored) if restored and leaves_state else restored,
        allow_non_restored_state=leaves_state or not plan.audited,
        retained=tuple(row for row in work.seen.rows if isinstance(row, CheckpointRecord)),
        versions=world.cuts.get(restored.checkpoint, {}) if restored else {},
        renamed=renamed,
        rows_per_epoch=scenario.rows_per_epoch,
        cut_groups=hands.cut_groups(built),
        limits=work.limits,
        seed=plan.number,
        idle_poll_ms=scenario.idle_poll_ms,
        linger_ms=scenario.linger_ms,
        credit_bytes=scenario.credit_bytes,
    )


def _graph_and_names(
    world: World, scenario: Scenario, plan: TickPlan, restored: CheckpointRecord | None
) -> tuple[JobGraph, Names]:
    """Return the graph, and what is renamed in it. If a neighbour is in the way, the user keeps the cut's names."""
    built = _graph(world, scenario, plan, restored, plan.release)
    names = names_of(built, restored)
    if restored is not None and blocked(world, built, names):
        built = _graph(world, scenario, plan, restored, RENAMING if is_renamed(restored) else 0)
        return built, names_of(built, restored)
    return built, names


def _graph(
    world: World, scenario: Scenario, plan: TickPlan, restored: CheckpointRecord | None, release: int
) -> JobGraph:
    """Return the pipeline of this release. A source never loses a split in which a cut has a position."""
    stood = (each.splits for each in restored.vertices if each.vertex == ORDERS) if restored else ()
    missing = (SplitId(split) for splits in stood for split in splits if split not in plan.orders)
    known, bounded = (*plan.orders, *missing), scenario.bounded
    audits = (plan.audited and not taken(world, restored)) or must_audit(restored)
    built = graph(
        plan.parallelism,
        release,
        scenario.hooks,
        known,
        audited=audits,
        bounded=bounded,
        parted=scenario.parted,
        overwrites=scenario.overwrites,
    )
    built = with_broadcast(built) if scenario.broadcasts else built
    built = with_counts(built) if scenario.counts else built
    return with_sinks(built, voters=scenario.voters) if scenario.outside else built
