"""A tick that dies as it renames, at every boundary of what it does then: the new code and the old code go on (G2)."""

import pytest

from checkpointing.job.restoring import CutDoesNotFitError
from tests.scenarios.runtime.evolving_job import FIRST, RENAMED, killed, laid_out, tick
from tests.scenarios.runtime.test_declared_renames import BRONZE_2, GOLD_2, HALF, STATE_2, must_be_exact, unnamed

BOUNDARIES = [
    "after:Claim",
    "before:EnsureTables",
    "after:EnsureTables",
    "before:LinkRenamed",
    "after:LinkRenamed",
    "after:RunMicroBatch",
    "before:AppendRow",
    "after:AppendRow",
    f"before:PublishTable:{BRONZE_2}",
    f"after:PublishTable:{BRONZE_2}",
    f"after:PublishTable:{GOLD_2}",
    f"after:PublishTable:{STATE_2}",
    "before:RecordCut",
    "after:RecordCut",
    "before:Release",
]
COMMITTED = BOUNDARIES[BOUNDARIES.index("after:AppendRow") :]


@pytest.mark.kill
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_tick_killed_as_it_renames_is_made_up_for(tmp_path, boundary):
    """After SIGKILL anywhere, the same code ends with exact tables, and no unneeded file is left in the new folders."""
    laid_out(tmp_path, HALF)
    killed(tmp_path, HALF + 7, "renamed", boundary)
    tick(tmp_path, HALF + 9, RENAMED)
    must_be_exact(tmp_path, RENAMED, HALF + 9)
    assert [] == unnamed(tmp_path, BRONZE_2)


@pytest.mark.kill
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_old_code_after_a_tick_killed_as_it_renames(tmp_path, boundary):
    """Before the commit point it goes on as if nothing had happened. Behind it, it is refused with both names."""
    laid_out(tmp_path, HALF)
    killed(tmp_path, HALF + 7, "renamed", boundary)
    if boundary in COMMITTED:
        with pytest.raises(CutDoesNotFitError, match="renamed_from="):
            tick(tmp_path, HALF + 9)
        tick(tmp_path, HALF + 9, RENAMED)
        must_be_exact(tmp_path, RENAMED, HALF + 9)
    else:
        tick(tmp_path, HALF + 9)
        must_be_exact(tmp_path, FIRST, HALF + 9)
        tick(tmp_path, HALF + 10, RENAMED)
        must_be_exact(tmp_path, RENAMED, HALF + 10)
