"""The disk of a table's files fills up, or is read-only for a while: the same tick goes on afterwards (B2, E5).

The disks are real ones, mounted in a namespace of a process of their own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spec.traces import judge as judge_trace

ROOT = Path(__file__).resolve().parents[3]


def ticked(folder, *how, timeout_s=120):
    """Return what the program told of its tick."""
    program = str(Path(__file__).with_name("full_table.py"))
    command = ["unshare", "--map-root-user", "--mount", sys.executable, program, str(folder), *how]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment)
    assert 0 == ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def must_have_gone_on(told, words, undisturbed):
    """Check that the tick declined, tried again, and has exact tables."""
    assert ("caught_up", "") == (told["outcome"], told["message"])
    assert len(told["failures"]) >= 2
    for _, reason, message in told["failures"]:
        assert "CHECKPOINT_ASYNC_EXCEPTION" == reason
        assert "of vertex bronze could not be written: " in message.partition("\n")[0]
        assert words in message.partition("\n")[0]
    assert len(told["held_back"]) >= len(told["failures"])
    assert json.loads(json.dumps(undisturbed)) == told["rows"]
    assert [] == told["unreferenced"]
    assert [] == judge_trace([line.encode() + b"\n" for line in told["trace"].splitlines()]).problems


@pytest.mark.parametrize(
    ("how", "words"), [("full", "the disk is full"), ("read-only", "the file system is read-only")]
)
def test_a_disk_that_takes_nothing_for_a_while_costs_checkpoints_and_no_row(how, words, tmp_path, undisturbed):
    """Without Spark, the checkpoints fail with the cause. The tick catches up when the disk takes files again."""
    must_have_gone_on(ticked(tmp_path, how), words, undisturbed)


@pytest.mark.dear
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_disk_that_fills_up_under_spark_costs_checkpoints_and_no_row(tmp_path, undisturbed):
    """Spark's tasks find the disk full. The same tick goes on, and leaves no unreferenced file."""
    must_have_gone_on(ticked(tmp_path, "full", "--spark", timeout_s=380), "the disk is full", undisturbed)
