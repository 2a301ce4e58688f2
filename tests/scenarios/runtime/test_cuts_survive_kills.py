"""An upstream and a downstream job are killed at random moments, both at once; the cuts stay whole."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkpointing.identifiers import JobName
from checkpointing.metadata.paths import ProtocolPaths
from jobs.cli.main import execute
from jobs.tick.at_rest.roll_back import roll_back
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime import cut_jobs
from tests.scenarios.runtime.cut_jobs import REPORT, SHOP, SOURCES, tick
from tidemark import Cuts, SourceError

ROUNDS = 4
ROWS_PER_ROUND = 300


def rests(folder):
    """Check that each downstream cut shows both tables as they are at one upstream cut; return these cuts."""
    upstream, seen = Cuts(folder / SHOP, SHOP), []
    for cut in Cuts(folder / REPORT, REPORT).all():
        (below,) = cut.rests_on
        source = upstream.at(below.checkpoint)
        for name in SOURCES:
            theirs = sorted(source.polars(f"silver/{name}").collect()["n"])
            assert theirs == sorted(cut.polars(f"gold/{name}").collect()["n"]), (cut, below)
        seen.append(below.checkpoint)
    return seen


def killed(folder, rows, chance):
    """Run a tick of each job at the same time, and kill each at a moment of its own; say whether it still ran."""
    programs = {}
    for job in (SHOP, REPORT):
        command = [sys.executable, cut_jobs.__file__, job, str(folder), str(rows)]
        root = Path(__file__).parents[3]
        programs[job] = subprocess.Popen(
            command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, text=True, stdout=subprocess.PIPE
        )
    for program in programs.values():
        program.stdout.readline()  # a checkpoint is complete, or the tick has ended
    moments = sorted((chance.uniform(0, 0.6), job) for job in programs)
    begun = time.monotonic()
    for after_s, job in moments:
        time.sleep(max(0.0, begun + after_s - time.monotonic()))
        programs[job].send_signal(signal.SIGKILL)
    for program in programs.values():
        program.communicate()
    return [program.returncode == -signal.SIGKILL for program in programs.values()]


@pytest.mark.dear
@pytest.mark.timeout(600)
def test_both_jobs_are_killed_again_and_again(tmp_path, capsys):
    """A reader of the downstream tables by cut sees whole upstream cuts only, also after a rollback that it follows."""
    chance = random.Random("both jobs are killed")  # noqa: S311 - a run must be repeatable
    tick(SHOP, tmp_path, 40)
    struck = [killed(tmp_path, round_ * ROWS_PER_ROUND, chance) for round_ in range(1, ROUNDS + 1)]
    assert any(up for up, _ in struck), struck
    assert any(down for _, down in struck), struck
    rests(tmp_path)
    tick(SHOP, tmp_path, ROUNDS * ROWS_PER_ROUND)
    tick(REPORT, tmp_path)
    seen = rests(tmp_path)
    assert sorted(set(seen)) == seen
    assert Cuts(tmp_path / SHOP, SHOP).latest().checkpoint == seen[-1]
    assert 0 == execute(["cut", REPORT, "--warehouse", str(tmp_path / REPORT)])
    assert f"rests on cut {seen[-1]} of {SHOP} in {tmp_path / SHOP}" in " ".join(capsys.readouterr().out.split())
    roll_back(Warehouse(tmp_path / SHOP, ProtocolPaths(JobName(SHOP))), seen[len(seen) // 2])
    with pytest.raises(SourceError, match=f"rollback report --follow --warehouse {tmp_path / REPORT}'"):
        tick(REPORT, tmp_path)
    assert 0 == execute(["rollback", REPORT, "--follow", "--warehouse", str(tmp_path / REPORT)])
    assert seen[len(seen) // 2] == Cuts(tmp_path / REPORT, REPORT).latest().rests_on[0].checkpoint
    tick(SHOP, tmp_path, ROUNDS * ROWS_PER_ROUND)
    tick(REPORT, tmp_path)
    newest = Cuts(tmp_path / REPORT, REPORT).latest()
    assert [Cuts(tmp_path / SHOP, SHOP).latest().checkpoint] == [each.checkpoint for each in newest.rests_on]
    for name in SOURCES:
        assert list(range(ROUNDS * ROWS_PER_ROUND)) == sorted(newest.polars(f"gold/{name}").collect()["n"])
