"""In a chain of many vertices and a long run of a small job, the door keeps every invariant that needs no contents."""

import pytest

from spec import scale
from spec.bugs.plant import bugs, planted


@pytest.mark.parametrize(("vertices", "subtasks", "checkpoints"), [(20, 20, 2), (3, 4, 60)])
def test_a_large_job_keeps_every_invariant(vertices, subtasks, checkpoints):
    """It takes as many checkpoints as its limit allows, with the answers in any order."""
    job = scale.LargeJob(vertices, subtasks, checkpoints, seed=1)
    job.run()
    assert [] == job.verdict.problems
    assert checkpoints == job.verdict.checkpoints


def test_a_bug_in_a_large_job_is_found(capsys):
    """The invariants judge it as they judge a trace."""
    with planted(bugs()["the last table is not published"]):
        assert 1 == scale.main(["--vertices", "3", "--subtasks", "2", "--checkpoints", "2"])
    assert "published-completely" in capsys.readouterr().out
    assert 0 == scale.main(["--vertices", "3", "--subtasks", "2", "--checkpoints", "2"])
