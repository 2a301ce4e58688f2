"""Claiming a job: observe, decide, append the claim as a compare-and-swap; look again whenever it was not the first."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, assert_never
from uuid import uuid4

import structlog

from checkpointing.commit.fencing import Refused, newest_claim
from checkpointing.commit.recovery import Observed, RecoveryPlan, decide_recovery
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import Generation
from checkpointing.messages import EndTick, TickOutcome
from checkpointing.metadata.record import Claim, Holder
from jobs.holding.boundaries import CLAIM, Boundary, around
from jobs.holding.failures import ClaimUnsettledError, JobHeldError
from jobs.holding.job_stores import JobStores
from jobs.stores.checkpoints import Appended, AppendResult, Unknown
from jobs.stores.checkpoints import Refused as AppendRefused
from jobs.stores.lease import LeaseStore
from jobs.stores.warehouse import Warehouse

_log = structlog.get_logger(__name__)

TRIES: Final = 5
"""Claims tried against others who take the version first; asked again while the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The job is ours: `seen` is what was observed just before, `at_version` where the claim lies."""

    claim: Claim
    at_version: int
    plan: RecoveryPlan
    seen: Observed


def decide(seen: Observed, warehouse: Warehouse, *, take_over: bool) -> RecoveryPlan:
    """Return what recovery will do; raise JobHeldError naming who holds the job.

    A holder without a lease is given one, from now on, if the warehouse can be written.
    """
    decision = decide_recovery(seen, take_over=take_over)
    if isinstance(decision, Refused):
        if decision.give_lease_ms is not None:
            with suppress(OSError):  # then the next start is refused in the same words, and --take-over is the way
                LeaseStore(warehouse).renew(decision.generation, decision.holder, decision.give_lease_ms)
        raise JobHeldError(warehouse.paths.job, decision.holder, decision.generation, decision.why)
    return decision


def append_claim(
    stores: JobStores, seen: Observed, plan: RecoveryPlan, holder: Holder, boundary: Boundary
) -> Claimed | None:
    """Append the claim; None: somebody's row came first, look again. Raises ClaimUnsettledError."""
    claim = plan.claim.claim(holder, stores.warehouse.now_ms(), uuid4().hex)
    with around(boundary, CLAIM):
        result = _settled(stores, claim, seen.version)
    match result:
        case Appended():
            return Claimed(claim, result.version, plan, seen)
        case AppendRefused():
            return None
        case Unknown():
            raise ClaimUnsettledError(stores.warehouse.paths.job, result.error)
        case _ as unreachable:
            assert_never(unreachable)


def end_with_cause(stores: JobStores, claim: Claim, end: EndTick) -> EndTick:
    """Return how an attempt ended, as fenced off if it failed and the job is another's by now.

    Whoever took it deleted what this attempt had staged, which fails micro-batches before a refused row tells. An end
    whose rows cannot be read stays what it was.
    """
    if end.outcome is not TickOutcome.FAILED or end.reason is CheckpointFailureReason.FENCED:
        return end
    try:
        rival = stores.rival(claim.generation)
    except Exception as error:  # noqa: BLE001 - the tick has failed already, and of something else
        _log.warning("rows not read", error=str(error))
        return end
    if rival is None:
        return end
    said = f"the job was claimed by {rival.holder}, generation {rival.generation}; before this tick knew: {end.message}"
    return replace(end, reason=CheckpointFailureReason.FENCED, message=said)


def newest_generation(seen: Observed) -> Generation:
    """Return the generation of the newest claim, 0 if there is none."""
    newest = newest_claim(seen.rows)
    return newest.generation if newest is not None else Generation(0)


def _settled(stores: JobStores, claim: Claim, at_version: int) -> AppendResult:
    """Append until the outcome is known: asking again finds a nonce that is in."""
    result = stores.append(claim, at_version)
    for _ in range(TRIES - 1):
        if not isinstance(result, Unknown):
            return result
        result = stores.append(claim, at_version)
    return result
