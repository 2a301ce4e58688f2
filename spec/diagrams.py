"""Draws the core's transition tables as Mermaid: `python -m spec.diagrams` writes docs/STATES.md anew.

What is drawn is the tables that stand in the code; a test watches doors at work and finds no other moves.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from checkpointing.commit.two_phase import OFFERS, TRANSITIONS, CommitState

Table = Mapping[tuple[CommitState, type], tuple[CommitState, ...]]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "STATES.md"

_HEAD = """# States
Drawn from the tables in the code by `python -m spec.diagrams`; a test fails when this page is stale.

## The commit of one checkpoint
`checkpointing/commit/two_phase.py`. `RowAppended` out of *finalising* is the commit point:
before it epoch n never was, after it, it is. A plain savepoint goes from *idle* to
*finalising* at once, and back when its row is in: it publishes nothing.
"""


def page() -> str:
    """Return the page."""
    lines = [f"    [*] --> {CommitState.IDLE.value}", *_arrows({**OFFERS, **TRANSITIONS})]
    diagram = "\n".join(["```mermaid", "stateDiagram-v2", *lines, f"    {CommitState.ENDED.value} --> [*]", "```"])
    return f"{_HEAD}\n{diagram}\n"


def _arrows(table: Table) -> Iterator[str]:
    for (state, cause), follow in table.items():
        for reached in follow:
            yield f"    {state.value} --> {reached.value}: {cause.__name__}"


def main() -> int:
    """Write the page; return 0."""
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE.name} written\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
