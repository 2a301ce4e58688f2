"""The invariants of the processes that hold a job, one after the other."""

from collections.abc import Iterator

from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from spec.history import (
    CheckpointTriggered,
    CutWritten,
    DoorStarted,
    History,
    JobClaimed,
    JobReleased,
    LeftoversGone,
    RowCommitted,
)
from spec.mishap_events import ListsWereStale
from spec.rollback import at_rest, goes_back


def held_wrongly(history: History) -> Iterator[str]:
    """Yield every second release of a holder, every entry after a release, and every used id that a release names."""
    newest, highest = Generation(0), NO_CHECKPOINT
    released = set[Generation]()
    for event in history.without_flow:
        match event:
            case JobClaimed(claim):
                newest = claim.generation
                if newest in released:
                    yield f"generation {newest} claimed the job, and had released it"
            case JobReleased(release):
                if release.generation != newest:
                    yield f"generation {release.generation} released the job, {newest} holds it"
                if release.generation in released:
                    yield f"generation {release.generation} released the job twice"
                if release.next_id <= highest:
                    yield f"generation {release.generation} releases id {release.next_id}, and {highest} was given out"
                released.add(release.generation)
            case RowCommitted(record):
                if record.generation == newest and newest in released:
                    yield f"row {record.checkpoint} came after generation {record.generation} had released the job"
                highest = max(highest, record.checkpoint)
            case CheckpointTriggered(generation, checkpoint) if generation == newest:
                highest = max(highest, checkpoint)
            case _:
                pass


def recovered_out_of_order(history: History) -> Iterator[str]:
    """Yield leftovers that were deleted before a committed entry had a cut, and entries that came before the deletion.

    Also yield leftovers that a process deleted although its claim is not in.

    If nobody was seen to delete leftovers, as in a trace, the second part is not judged. If a rollback leaves an entry
    behind that it could not publish, it deletes none. In two cases it wrongly believes so, and deletes none either: it
    has recorded that entry's cut and the reply was lost, or a stale list lacked that cut. A zombie knows only entries
    of older generations.
    """
    watched = bool(history.of(LeftoversGone))
    recorded = {NO_CHECKPOINT, *history.baseline}
    committed: list[tuple[Generation, CheckpointId]] = []
    gone = set[Generation]()
    started = set[Generation]()
    claimed = set[Generation]()
    found_unsettled = set[Generation]()
    not_shown = set[CheckpointId]()
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                leaves_behind = goes_back(record) and record.generation in found_unsettled
                works = record.generation in started or (at_rest(record) and not leaves_behind)
                if watched and works and record.generation not in gone:
                    yield f"row {record.checkpoint} came before generation {record.generation} had deleted leftovers"
                committed += [(record.generation, record.checkpoint)] * record.commits
            case DoorStarted(generation):
                started.add(generation)
            case JobClaimed(claim):
                claimed.add(claim.generation)
                if committed and committed[-1][1] not in recorded - not_shown:
                    found_unsettled.add(claim.generation)
                not_shown.clear()
            case ListsWereStale(lacks):
                not_shown.update(lacks)
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case LeftoversGone(generation):
                gone.add(generation)
                if claimed and generation not in claimed:
                    yield f"generation {generation} deleted leftovers, and its claim is not in"
                newest = next((row for by, row in reversed(committed) if by < generation), NO_CHECKPOINT)
                if newest not in recorded:
                    yield f"generation {generation} deleted leftovers before the cut of {newest} was recorded"
            case _:
                pass


def repeated_nonces(history: History) -> Iterator[str]:
    """Yield every entry, claim and release with the nonce of another one.

    A store that is asked again would find the other.
    """
    known: dict[str, str] = {}
    for event in history.without_flow:
        match event:
            case JobClaimed(claim):
                nonce, what = claim.nonce, f"the claim of generation {claim.generation} from id {claim.first_id}"
            case JobReleased(release):
                nonce, what = release.nonce, f"the release of generation {release.generation}"
            case RowCommitted(record):
                nonce, what = record.nonce, f"entry {record.checkpoint}"
            case _:
                continue
        if nonce in known:
            yield f"{what} has the nonce of {known[nonce]}"
        known[nonce] = what
