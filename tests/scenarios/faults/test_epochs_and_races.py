"""Rarer faults than a plain death: epochs without rows, deaths in a recovery, races for an entry, lost replies."""

import json
from dataclasses import replace

import pytest

from checkpointing.job.setup import TickLimits
from checkpointing.metadata.paths import ProtocolPaths
from jobs.tick.cleaning import clean_up
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.faults.orders_job import CONFIG, JOB
from tests.scenarios.faults.reader import Reader, final_tables, ids_used_twice, leftovers
from tests.scenarios.faults.strikes import At, Hold, LoseReply, Order
from tests.scenarios.processes import KILLED, wait_for

ROW = "before:LogCommit:checkpoints"
LOG = f"_tidemark/{JOB}/checkpoints/_delta_log"
BY_TIME = CONFIG.model_copy(update={"interval_ms": 100})
SIX = TickLimits(until_caught_up=False, checkpoints=6)


@pytest.fixture
def order(tmp_path):
    return Order(root=tmp_path)


@pytest.fixture
def changed(order, request):
    """Return a function that compares the warehouse with that of an undisturbed run. A reader watches meanwhile."""

    def look(undisturbed):
        reader.look()
        return {
            "reader": reader.problems,
            "back": [] if sorted(reader.seen) == reader.seen else reader.seen,
            "tables": [name for name, rows in final_tables(order.root).items() if rows != undisturbed.tables[name]],
            "leftovers": leftovers(order.root),
            "twice": ids_used_twice(order.root),
        }

    with Reader(order.root) as reader:
        yield look


NOTHING = {"reader": [], "back": [], "tables": [], "leftovers": [], "twice": []}


def test_epochs_without_rows_complete_and_change_nothing(order, undisturbed, changed):
    """After the last row, the interval still triggers checkpoints. These empty epochs complete and change nothing."""
    ended = replace(order, config=BY_TIME, limits=SIX).run()
    assert "" == ended.said["message"]
    assert 0 == min(ended.said["rows"].values())
    assert NOTHING == changed(undisturbed)


@pytest.mark.kill
@pytest.mark.parametrize("kill_at", ["before:AppendRow#5", "after:AppendRow#5", "after:RecordCut#5"])
def test_a_death_in_an_epoch_without_rows_is_made_up_for(order, undisturbed, changed, kill_at):
    """The tick dies around the commit point of an epoch without rows, or after its cut."""
    assert KILLED == replace(order, config=BY_TIME, limits=SIX, kill_at=kill_at).run().code
    assert "caught_up" == order.run().said["outcome"]
    assert NOTHING == changed(undisturbed)


@pytest.mark.kill
@pytest.mark.parametrize(
    "deaths",
    [
        ("after:AppendRow#2", "after:RollForward:bronze/orders", "before:RollForwardCut", "after:RollForwardCut"),
        ("after:AppendRow", "after:Claim", "before:DiscardLeftovers", "after:AppendRow", "before:RollForward"),
        ("after:RunMicroBatch#9", "after:DiscardLeftovers", "after:RunMicroBatch#9", "before:AppendRow"),
    ],
)
def test_a_job_that_dies_again_in_each_recovery_is_made_up_for(order, undisturbed, changed, deaths):
    """A tick may die while it recovers, and the next tick may die too."""
    for kill_at in deaths:
        assert KILLED == replace(order, kill_at=kill_at).run().code
    assert "caught_up" == order.run().said["outcome"]
    assert NOTHING == changed(undisturbed)


@pytest.mark.parametrize(
    ("first", "second", "together"), [("row", "claim", False), ("claim", "row", False), ("row", "claim", True)]
)
def test_of_two_coordinators_at_the_commit_point_exactly_one_wins(order, undisturbed, changed, first, second, together):
    """An entry and a rival's claim compete for one version. Exactly one gets the version. No row is lost or doubled."""
    holder = replace(order, strike=Hold(At(ROW, (3, 4)), "row")).start()
    wait_for(order.root / "row.here")
    rival = replace(order, take_over=True, strike=Hold(At(ROW, (1,)), "claim")).start()
    wait_for(order.root / "claim.here")
    version = _newest(order.root) + 1
    (order.root / f"{first}.go").touch()
    if not together:
        wait_for(order.root / LOG / f"{version:020d}.json")
    (order.root / f"{second}.go").touch()
    won = rival.wait()
    (order.root / "row.go").touch()
    lost = holder.wait()
    assert ("caught_up", "failed") == (won.said["outcome"], lost.said["outcome"])
    assert f"claimed by process {rival.process.pid} " in lost.said["message"]
    assert together or {"row": "checkpoint", "claim": "claim"}[first] == _says(order.root, version)["row"]
    assert ("caught_up", "") == _told(order.run())
    # The loser went on staging until its entry was refused, which can be after its rival has recovered (see the next
    # test).
    clean_up(_at(order.root), 0)
    assert NOTHING == changed(undisturbed)


def test_what_a_coordinator_stages_after_its_rival_recovered_is_for_the_clean_up(order, undisturbed, changed):
    """A coordinator learns of its rival only when its next entry is refused.

    The rival's recovery cannot know what the coordinator stages until then.
    """
    holder = replace(order, strike=Hold(At("before:RunMicroBatch", (1,)), "late")).start()
    wait_for(order.root / "late.here")
    assert ("caught_up", "") == _told(replace(order, take_over=True).run())
    (order.root / "late.go").touch()
    assert "failed" == holder.wait().said["outcome"]
    assert ("caught_up", "") == _told(order.run())
    late = set(leftovers(order.root))
    assert late
    assert late <= {each.file.path for each in clean_up(_at(order.root), 0).deleted.files}
    assert NOTHING == changed(undisturbed)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("log", "occurrences"),
    [("checkpoints", (1,)), ("checkpoints", (2, 3)), ("checkpoints", (5,)), ("tables", (1, 9)), ("cuts", (1, 2))],
)
def test_a_reply_that_is_lost_after_the_commit_is_read_back(order, undisturbed, changed, log, occurrences):
    """The reply to a claim, an entry, a release, a publication or a cut is lost.

    The tick reads back what it has written, and writes nothing twice.
    """
    lost = LoseReply(At(f"after:LogCommit:{log}", occurrences))
    assert ("caught_up", "") == _told(replace(order, strike=lost).run())
    assert ("caught_up", "") == _told(order.run())
    assert NOTHING == changed(undisturbed)


def _at(root):
    return Warehouse(root, ProtocolPaths(JOB))


def _told(ended):
    return ended.said["outcome"], ended.said["message"]


def _newest(root):
    return max(int(path.stem) for path in (root / LOG).glob("*[0-9].json"))


def _says(root, version):
    lines = (root / LOG / f"{version:020d}.json").read_text().splitlines()
    (said,) = [json.loads(line)["commitInfo"]["tidemark"] for line in lines if "commitInfo" in line]
    return said if isinstance(said, dict) else json.loads(said)
