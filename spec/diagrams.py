"""Draws the core's transition tables as Mermaid: `python -m spec.diagrams` writes docs/STATES.md.

It draws the tables in the code. A test watches doors at work, and checks that they make no other transitions.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from checkpointing.commit.two_phase import OFFERS, TRANSITIONS, CommitState
from checkpointing.coordinator.pending import ABORTABLE, PHASES, PendingPhase
from checkpointing.job.tick_end import MOVES as ENDINGS
from checkpointing.job.tick_end import TickPhase
from checkpointing.tick.messages import Broke, Failed, Finish, Observe
from checkpointing.tick.transitions import MOVES

Table = Mapping[tuple[CommitState, type], tuple[CommitState, ...]]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "STATES.md"

_HEAD = """# States
`python -m spec.diagrams` draws this page from the tables in the code. A test fails if the page is stale.
"""
_PENDING = """
## A pending checkpoint
`checkpointing/coordinator/pending.py`. Until it is *finalising*, it can expire, be declined, be subsumed, or fail
with a task or hook that was asked for it. From then on, only its commit decides whether it completes or fails.
"""
_COMMIT = """
## The commit of one checkpoint
`checkpointing/commit/two_phase.py`. The commit point is `RowAppended` in the state *finalising*. If the tick dies
before it, epoch n never happened. If the tick dies after it, epoch n is complete. A plain savepoint goes from *idle* to
*finalising* at once, and back to *idle* when its entry is in. It publishes nothing.
"""
_ENDING = """
## The end of a tick
`checkpointing/job/tick_end.py`. A cause that has no arrow from a phase changes nothing. For example, if the tick is
stopping already, a later request to stop waits for no checkpoint. From *stopping* and *failing*, a tick ends only when
no entry is in doubt. In *finishing*, the tick takes a last checkpoint of its own.
"""
_TICK = """
## Holding a job
`checkpointing/tick/transitions.py`. A tick takes these steps, and so does every command that changes a job at rest. A
state is the effect whose answer the job waits for. The errand decides which steps are taken
(`checkpointing/tick/attempts.py`): a savepoint at rest creates no tables and deletes no leftovers, and an import
repairs nothing. After the claim, every failure leads to `LookForRival` or `AppendRelease`. These arrows are left out.
"""


def page() -> str:
    pictures = ((_PENDING, _phases()), (_COMMIT, _commit()), (_ENDING, _ending()), (_TICK, _tick()))
    return _HEAD + "".join(said + _drawn(arrows) for said, arrows in pictures)


def _drawn(arrows: Iterable[str]) -> str:
    lines = "".join(f"    {arrow}\n" for arrow in arrows)
    return f"\n```mermaid\nstateDiagram-v2\n{lines}```\n"


def _phases() -> Iterator[str]:
    yield f"[*] --> {PendingPhase.LOCATING.value}"
    for phase, follow in PHASES.items():
        yield from (f"{phase.value} --> {reached.value}" for reached in follow)
        yield f"{phase.value} --> [*]: {'aborted' if phase in ABORTABLE else 'committed, or declined by its commit'}"


def _commit() -> Iterator[str]:
    yield f"[*] --> {CommitState.IDLE.value}"
    yield from _arrows({**OFFERS, **TRANSITIONS})
    yield f"{CommitState.ENDED.value} --> [*]"


def _ending() -> Iterator[str]:
    yield f"[*] --> {TickPhase.RUNNING.value}"
    yield from (f"{phase.value} --> {reached.value}: {cause.value}" for (phase, cause), reached in ENDINGS.items())
    yield f"{TickPhase.ENDED.value} --> [*]"


def _tick() -> Iterator[str]:
    yield f"[*] --> {Observe.__name__}"
    for (effect, fact), follow in MOVES.items():
        if fact not in (Failed, Broke):
            yield from (f"{effect.__name__} --> {asked.__name__}: {fact.__name__}" for asked in follow)
    yield f"{Finish.__name__} --> [*]"


def _arrows(table: Table) -> Iterator[str]:
    for (state, cause), follow in table.items():
        for reached in follow:
            yield f"{state.value} --> {reached.value}: {cause.__name__}"


def main() -> int:
    """Write the page. Return 0."""
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE.name} written\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
