"""Files that a commit takes out of a table are looked for before the commit: a neighbour may have merged them."""

from deltalake import DeltaTable

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import TableName
from checkpointing.messages import TickOutcome
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from tests.scenarios.faults.orders_job import LocalEngine
from tests.scenarios.runtime.evolving_job import BRONZE, FIRST, Version, build, laid_out, newest, shown, tick

HALF = 35
APPEND = Version(bronze=TableName("bronze/all"), was={"bronze": BRONZE})


def numbers(root):
    """Return the numbers that the bronze table holds, sorted."""
    return sorted(row[1] for row in shown(root, BRONZE))


def test_a_neighbour_that_merged_files_that_are_to_leave_is_named_before_the_commit(tmp_path):
    """The tick ends, and nothing of its checkpoint is in. After the merge was undone, the next tick goes on."""
    laid_out(tmp_path, HALF)
    tick(tmp_path, HALF + 2)
    before = tick(tmp_path, HALF + 5, APPEND)
    merged = []

    def boundary(name):
        if name == "before:CheckTables" and not merged:
            neighbour = DeltaTable(str(tmp_path / BRONZE))
            merged.append(neighbour.version() + 1)
            neighbour.optimize.compact()

    settings = RuntimeSettings(warehouse=tmp_path, allow_non_restored_state=True)
    report = run_tick(build(HALF + 9, FIRST), settings, None, engine=LocalEngine(), boundary=boundary)
    assert (TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED) == (report.outcome, report.reason)
    assert f"table {BRONZE}: foreign OPTIMIZE at version {merged[0]} removed files" in report.message
    assert f"TO VERSION AS OF {merged[0] - 1})" in report.message
    assert before.completed[-1].checkpoint == newest(tmp_path).checkpoint
    assert list(range(HALF + 2)) == numbers(tmp_path)
    DeltaTable(str(tmp_path / BRONZE)).restore(merged[0] - 1)
    tick(tmp_path, HALF + 9, FIRST, allowed=True)
    assert list(range(HALF + 5, HALF + 9)) == numbers(tmp_path)
