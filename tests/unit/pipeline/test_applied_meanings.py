"""A pipeline that applies changes otherwise is refused: it cannot go on from the state of the old options (D6)."""

import pytest

from checkpointing.state_meaning import meaning_changes
from jobs.operators.applied_changes import HISTORY
from jobs.pipeline import Pipeline
from jobs.pipeline.applied_changes import apply_changes
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource


def meanings(kind=1, **options):
    """Return what a checkpoint says of the state of the applied changes."""
    pipeline = Pipeline("applied", parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource({"a": 9}, keys=3))
    apply_changes(numbers, "newest", keys=["key"], sequence_by="n", type=kind, columns=["value", "split"], **options)
    (vertex,) = [each for each in plan(pipeline).graph.vertices if each.id == "newest"]
    return vertex.meanings


PLAIN, NULLS = {}, {"ignore_null_updates": True}
SOME_NULLS = {"ignore_null_updates_columns": ["value"]}
OTHER_NULLS = {"ignore_null_updates_columns": ["split"]}
HISTORIES, TRACKED = {"kind": 2}, {"kind": 2, "track_history_columns": ["value"]}
TRACKED_OTHER = {"kind": 2, "track_history_columns": ["split"]}
ALL = (PLAIN, NULLS, SOME_NULLS, OTHER_NULLS, HISTORIES, TRACKED, TRACKED_OTHER)


@pytest.mark.parametrize("was", ALL)
@pytest.mark.parametrize("now", ALL)
def test_state_of_changes_that_were_applied_otherwise_is_refused(was, now):
    """The state holds other changes, or the table already has other versions of its rows."""
    found = meaning_changes("state of operator 'newest'", meanings(**was), meanings(**now), {HISTORY})
    refused = [change.refused for change in found if change.refused]
    assert (was == now) is not bool(refused)
