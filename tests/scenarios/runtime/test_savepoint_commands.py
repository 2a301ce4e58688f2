"""The commands around savepoints, as a user types them, on real Delta tables without Spark."""

import json

import polars as pl
import pytest

from jobs.cli.errors import ExitCode
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from tests.scenarios.runtime.savepoint_job import at, records, run
from tests.scenarios.runtime.sequence_job import BRONZE, read_cut
from tests.scenarios.runtime.test_savepoints_at_rest import hold

PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"


@pytest.fixture
def root(tmp_path):
    """Return a warehouse with two checkpoints."""
    run(tmp_path / "warehouse", 2)
    return tmp_path / "warehouse"


def test_a_savepoint_at_rest_is_told_with_its_files_and_how_to_drop_it(root, typed):
    """The command shows the id, the cut from which it was made, its size, and the command that disposes of it."""
    code, out, _ = typed("savepoint", "numbers", "--warehouse", root)
    number = max(records(root))
    assert ExitCode.DONE is code
    assert f"savepoint {number} of numbers: made of checkpoint 2, since no tick runs" in out
    assert f"which stay until 'tidemark savepoint numbers --dispose {number}'" in out


def test_a_savepoint_with_a_copy_tells_where_and_how_to_restore_it(root, typed, tmp_path):
    """Files, bytes, the folder, and the command."""
    code, out, _ = typed("savepoint", "numbers", "--to", tmp_path / "copy", "--warehouse", root)
    assert ExitCode.DONE is code
    sizes = [file.stat().st_size for file in (tmp_path / "copy").rglob("_data/*/*.parquet")]
    assert 6 == len(sizes)
    assert f"copied whole to {tmp_path / 'copy'}: 6 files, {sum(sizes) / 1024:.1f} KiB; " in out
    assert f"tidemark run numbers --from {tmp_path / 'copy'} --warehouse EMPTY_FOLDER" in out
    assert read_cut(root) == read_cut(tmp_path / "copy")


def test_a_folder_in_use_is_refused_before_a_savepoint_is_taken(root, typed, tmp_path):
    """No unwanted savepoint is left."""
    before = set(records(root))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    code, _, err = typed("savepoint", "numbers", "--to", tmp_path / "full", "--warehouse", root)
    assert (ExitCode.FAILED, before) == (code, set(records(root)))
    assert "is not empty: name a folder that does not exist yet" in err


def test_disposing_is_told_and_a_held_job_keeps_its_savepoint(root, typed):
    """While a tick holds the job, the message has its name and the way out. Afterwards the savepoint goes."""
    number = savepoint_at_rest(at(root)).checkpoint
    code, out, _ = typed("savepoint", "numbers", "--dispose", number, "--warehouse", root)
    assert (ExitCode.DONE, f"savepoint {number} of numbers is gone\n") == (
        code,
        out,
    )
    number = savepoint_at_rest(at(root)).checkpoint
    hold(root)
    code, _, err = typed("savepoint", "numbers", "--dispose", number, "--warehouse", root)
    assert ExitCode.HELD is code
    assert f", and disposing of savepoint {number} needs a job that no tick holds" in err
    assert "'tidemark stop numbers --suspend' ends its tick; nothing was changed" in err


def test_a_stop_of_nothing_says_so(root, typed):
    """The message says why no tick runs, and what to do instead."""
    code, _, err = typed("stop", "numbers", "--drain", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert "nothing to stop: no tick of numbers runs in" in err


def test_lists_know_savepoints(root, typed):
    """A plain savepoint is counted as one, has no cut, and says after which checkpoint it was taken."""
    number = savepoint_at_rest(at(root)).checkpoint
    _, out, _ = typed("checkpoints", "list", "numbers", "--warehouse", root)
    assert "numbers: 2 checkpoints retained, 1 savepoint" in out
    assert "none; after 2" in out
    _, out, _ = typed("checkpoints", "show", "numbers", number, "--warehouse", root)
    assert f"savepoint {number} of numbers, builds on 2" in out
    assert "publishes nothing" in out
    _, out, _ = typed("cut", "numbers", "--warehouse", root)
    assert "cut 2 of numbers" in out
    code, _, err = typed("cut", "numbers", number, "--warehouse", root)
    assert ExitCode.NOT_THERE is code
    assert f"savepoint {number} of numbers publishes nothing, so it has no cut" in err
    assert "checkpoint 2, after which it was taken" in err


def test_a_dry_run_tells_the_plan_and_changes_nothing(root, typed, tmp_path):
    """Splits, state by key group then and now, tables; the other warehouse is not even created."""
    number = savepoint_at_rest(at(root)).checkpoint
    fork = tmp_path / "fork"
    words = ("run", PIPELINE, "--from", f"{root}@{number}", "--warehouse", fork, "--parallelism", 3, "--dry-run")
    code, out, err = typed(*words)
    assert (ExitCode.DONE, "") == (code, err)
    assert f"restore plan numbers: savepoint {number} of {root} into {fork}, 6 files copied; nothing was changed" in out
    assert "2: 0-63, 64-127" in out
    assert "3: 0-42, 43-85, 86-127" in out
    assert "bronze/numbers" in out
    assert not fork.exists()


def test_a_dry_run_of_the_newest_row_shows_versions(root, typed):
    """The tables stay as they are, at these versions. Nothing is copied."""
    before = json.dumps(sorted(str(path) for path in root.rglob("*")))
    code, out, _ = typed("run", PIPELINE, "--warehouse", root, "--dry-run")
    assert ExitCode.DONE is code
    assert "checkpoint 2, the newest in" in out
    assert "as they are" in out
    assert before == json.dumps(sorted(str(path) for path in root.rglob("*")))


def test_a_fork_runs_on_from_the_copy(root, typed, tmp_path, undisturbed):
    """One command restores and goes on; the result is that of an undisturbed run."""
    typed("savepoint", "numbers", "--to", tmp_path / "copy", "--warehouse", root)
    fork = tmp_path / "fork"
    code, out, err = typed("run", PIPELINE, "--from", tmp_path / "copy", "--warehouse", fork)
    assert ExitCode.DONE is code, err
    assert f"into {fork} as checkpoint 5: 6 files copied" in out
    assert undisturbed == read_cut(fork)


def test_the_newest_own_row_goes_on_as_always_and_says_so(root, typed, undisturbed):
    """`--from` is no error if it names the entry from which the tick begins anyway."""
    code, out, _ = typed("run", PIPELINE, "--from", 2, "--warehouse", root)
    assert ExitCode.DONE is code
    assert "checkpoint 2 is the newest of numbers in" in out
    assert undisturbed == read_cut(root)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--from", "1"),
            f"takes the tables back to checkpoint 1 in place (--dry-run shows how), 'tidemark run {PIPELINE} --from ",
        ),
        (("--from", "2", "--claim"), "--claim: 2 is numbers's own in"),
        (("--from", "nowhere"), "nowhere is no such folder"),
        (("--from", "77"), "there is no checkpoint or savepoint 77"),
        (("--claim",), "--claim: name the savepoint too, with --from DIR or --from DIR@N"),
        (("--no-claim",), "--no-claim: name the savepoint too, with --from DIR or --from DIR@N"),
    ],
)
def test_a_wrong_from_says_what_to_type(root, typed, words, said):
    """Nothing runs, and nothing changes."""
    before = pl.read_delta(str(root / BRONZE)).height
    code, _, err = typed("run", PIPELINE, *words, "--warehouse", root)
    assert code in (ExitCode.FAILED, ExitCode.USAGE, ExitCode.NOT_THERE)
    assert said in err
    assert before == pl.read_delta(str(root / BRONZE)).height


def test_what_does_not_fit_is_said_before_anything_runs(root, typed, tmp_path):
    """A missing operator is named with both ways out. With the flag it is left behind by name."""
    other = "tests.scenarios.runtime.sequence_job:without_aggregate"
    fork = tmp_path / "fork"
    code, _, err = typed("run", other, "--from", f"{root}@2", "--warehouse", fork)
    assert ExitCode.FAILED is code
    assert "checkpoint 2 holds state of 'by_key', which the pipeline no longer has; put it back under that id" in err
    assert "--allow-non-restored-state; nothing was changed" in err
    assert not fork.exists()
    code, out, err = typed("run", other, "--from", f"{root}@2", "--warehouse", fork, "--allow-non-restored-state")
    assert ExitCode.DONE is code, err
    assert "left behind: the state of by_key, which the pipeline no longer has" in out
    assert "left behind: table gold/by_key" in out
    assert 300 == pl.read_delta(str(fork / BRONZE)).height
