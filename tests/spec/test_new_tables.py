"""The rule on new tables finds a table that shows files of an older table of its name."""

from dataclasses import replace

from checkpointing.metadata.record import RowKind
from spec.history import CutWritten, RowCommitted
from spec.invariants import violations
from spec.moves import Moves
from spec.pipeline import AUDIT_TABLE
from spec.simulator import simulate as run


def show_rows_of_before(events):
    """A table that is new to the job shows a file that its name had before."""
    place, cut = next(
        (place, each) for place, each in enumerate(events) if isinstance(each, CutWritten) and is_new(events, each)
    )
    active = {**dict(cut.active), AUDIT_TABLE: frozenset({f"{AUDIT_TABLE}/_data/1/audit-1-before.parquet"})}
    return [*events[:place], replace(cut, active=tuple(active.items())), *events[place + 1 :]]


def is_new(events, cut):
    """Return True if this is the first cut of a table that comes and goes."""
    rows = {each.record.checkpoint: each.record for each in events if isinstance(each, RowCommitted)}
    row = rows.get(cut.checkpoint)
    before = rows.get(row.parent) if row is not None else None
    has = [each is not None and any(said.table == AUDIT_TABLE for said in each.columns) for each in (before, row)]
    return before is not None and row.kind is RowKind.CHECKPOINT and [False, True] == has


def test_a_new_table_that_shows_old_rows_is_found():
    """A history in which a table comes is falsified in this way. It breaks exactly the invariant that forbids it."""
    for seed in range(40):
        history = run(seed, moves=Moves(vertices=True)).history
        if any(isinstance(each, CutWritten) and is_new(history.events, each) for each in history.events):
            broken = violations(replace(history, events=show_rows_of_before(list(history.events))))
            assert {"new-tables-begin-empty"} == {each.invariant for each in broken}
            return
    raise AssertionError("no seed has a table that comes")
