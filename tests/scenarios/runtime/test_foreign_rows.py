"""A warehouse from somebody else: whatever its rows say, no file outside the job's folders is written or deleted."""

import base64
import json
import os
import zlib

import pytest
from deltalake import DeltaTable

from jobs.cli.errors import ExitCode
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.tick.cleaning import clean_up
from jobs.warehouse.savepoint_copy import copy_savepoint
from tests.scenarios.runtime.crafting import craft, craft_column, craft_cut
from tests.scenarios.runtime.savepoint_job import at, records, run

PIPELINE = "tests.scenarios.runtime.sequence_job:as_pipeline"
EVIL = b"written by somebody else"


@pytest.fixture
def copy(tmp_path):
    """Return a savepoint's copy."""
    run(tmp_path / "warehouse", 2)
    row = savepoint_at_rest(at(tmp_path / "warehouse"))
    copy_savepoint(at(tmp_path / "warehouse"), row.checkpoint, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def victim(tmp_path):
    """Return a file that belongs to no warehouse."""
    path = tmp_path / "home" / "victim.txt"
    path.parent.mkdir()
    path.write_text("precious")
    return path


def _handle(path, content=EVIL, inline=True):
    return {
        "path": str(path),
        "rows": 1,
        "bytes": len(content),
        "crc32": zlib.crc32(content),
        "stats": "{}",
        "inline": base64.b64encode(content).decode() if inline else "",
    }


def _with_state(handle):
    """Return the change that gives the aggregate one more state file, one that its base has ended."""

    def change(row):
        subtask = row["vertices"][-1]["subtasks"][0]
        subtask["state"].insert(0, {**subtask["state"][-1], "file": handle})

    return change


def _with_add(handle):
    def change(row):
        row["tables"][0]["adds"].append(handle)

    return change


@pytest.mark.parametrize("where", [_with_state, _with_add])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_restore_writes_no_file_outside(copy, victim, tmp_path, typed, where, absolute):
    """The entry's content would replace the victim's file. The refusal names entry, field and way out."""
    path = victim if absolute else "../home/victim.txt"
    (number,) = records(copy)
    craft(copy, number, where(_handle(path)))
    code, _, err = typed("run", PIPELINE, "--from", copy, "--warehouse", tmp_path / "mine")
    assert "precious" == victim.read_text()
    assert ExitCode.FAILED is code
    assert f"the entry of checkpoint {number} of job numbers" in err
    assert ".path" in err
    assert "take the savepoint again" in err
    assert not (tmp_path / "mine" / "_tidemark").exists()


@pytest.mark.parametrize(
    "path", ["_tidemark/../../home/victim.txt", "_tidemark/numbers/state/../../../../home/victim.txt"]
)
def test_disposing_deletes_no_file_outside(tmp_path, victim, typed, path):
    """A savepoint's own entry names the victim as a state file below `_tidemark`."""
    root = tmp_path / "warehouse"
    run(root, 2)
    number = savepoint_at_rest(at(root)).checkpoint
    craft(root, number, _with_state(_handle(path, b"precious", inline=False)))
    code, _, err = typed("savepoint", "numbers", "--dispose", number, "--warehouse", root)
    assert "precious" == victim.read_text()
    assert ExitCode.FAILED is code
    assert "vertices[2].subtasks[0].state" in err


def test_a_subsumed_checkpoint_deletes_no_file_outside(tmp_path, victim, typed):
    """A tick in the crafted warehouse would discard the victim with the checkpoint that names it."""
    root = tmp_path / "warehouse"
    run(root, 1)
    (number,) = records(root)
    craft(root, number, _with_state(_handle("_tidemark/../../home/victim.txt", b"precious", inline=False)))
    code, _, _ = typed("run", PIPELINE, "--warehouse", root)
    assert "precious" == victim.read_text()
    assert ExitCode.FAILED is code


def test_a_table_elsewhere_loses_no_file_to_a_clean_up(tmp_path, typed):
    """An entry names a table outside the warehouse. Files that another job staged there stay."""
    root, other = tmp_path / "warehouse", tmp_path / "other"
    run(root, 1)
    run(other, 1)
    staged = sorted(path for path in (other / "bronze/numbers/_data").rglob("*.parquet"))
    (number,) = records(root)

    def change(row):
        row["tables"][0]["table"] = "../other/bronze/numbers"

    craft(root, number, change)
    code, _, _ = typed("cleanup", "numbers", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert staged == sorted(path for path in (other / "bronze/numbers/_data").rglob("*.parquet"))


def test_a_cut_of_a_table_elsewhere_is_refused(tmp_path, typed):
    """`cuts` names a table of another warehouse, and a clean-up would delete the files staged there."""
    root, other = tmp_path / "warehouse", tmp_path / "other"
    run(root, 1)
    run(other, 1)
    staged = sorted((other / "bronze/numbers/_data").rglob("*.parquet"))

    def change(entry):
        if entry["table"] == "bronze/numbers":
            entry["table"] = "../other/bronze/numbers"

    craft_cut(root, change)
    code, _, err = typed("cleanup", "numbers", "--reader-grace", "0s", "--warehouse", root)
    assert staged == sorted((other / "bronze/numbers/_data").rglob("*.parquet"))
    assert ExitCode.FAILED is code
    assert "an entry of" in err
    assert "'../other/bronze/numbers'" in err


def test_a_row_of_another_job_is_refused(tmp_path, typed):
    """Its state would lie in the other job's folder, and go when the savepoint is disposed of."""
    root = tmp_path / "warehouse"
    run(root, 2)
    number = savepoint_at_rest(at(root)).checkpoint

    def change(row):
        row["job"] = "flights"
        row["columns"] = []
        for subtask in row["vertices"][-1]["subtasks"]:
            subtask["state"] = []

    craft(root, number, change)
    code, _, err = typed("savepoint", "numbers", "--dispose", number, "--warehouse", root)
    assert ExitCode.FAILED is code
    assert f"the entry of savepoint {number} is of job flights and lies among those of numbers" in err


@pytest.mark.parametrize(
    ("column", "value"), [("checkpoint", 1), ("kind", "checkpoint"), ("nonce", "x"), ("version", None)]
)
def test_columns_that_disagree_with_their_row_are_refused(tmp_path, typed, column, value):
    """Retention uses the columns, so a savepoint that they call a checkpoint would be subsumed."""
    root = tmp_path / "warehouse"
    run(root, 2)
    number = savepoint_at_rest(at(root)).checkpoint
    craft_column(root, number, column, value)
    code, _, err = typed("checkpoints", "list", "numbers", "--warehouse", root)
    assert ExitCode.FAILED is code
    assert f"says {column} {value!r} in its column" in err


def test_a_copy_that_counts_beyond_every_job_is_refused(copy, tmp_path, typed):
    """Ids continue after those of the copy. Near the largest number, the next tick's own entries could not be read."""
    (number,) = records(copy)

    def change(row):
        row["generation"] = 2**53 - 1

    craft(copy, number, change)
    craft_column(copy, number, "generation", 2**53 - 1)
    code, _, err = typed("run", PIPELINE, "--from", copy, "--warehouse", tmp_path / "mine")
    assert ExitCode.FAILED is code
    assert "which no job has reached" in err
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("part", ["bronze/numbers/_data", "file"])
def test_a_copy_with_symbolic_links_is_refused(copy, tmp_path, typed, part):
    """A link may lead to anybody's files."""
    path = copy / part if part != "file" else next((copy / "bronze/numbers/_data").rglob("*.parquet"))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    code, _, err = typed("run", PIPELINE, "--from", copy, "--warehouse", tmp_path / "mine")
    assert ExitCode.FAILED is code
    assert "lies behind a symbolic link" in err
    assert "cp -rL" in err


def test_a_pipe_in_a_copy_is_no_file(copy, tmp_path, typed):
    """Reading it would wait for ever."""
    file = next((copy / "bronze/numbers/_data").rglob("*.parquet"))
    file.unlink()
    os.mkfifo(file)
    code, _, err = typed("run", PIPELINE, "--from", copy, "--warehouse", tmp_path / "mine")
    assert ExitCode.FAILED is code
    assert f"{file.name} in {copy} is missing" in err


def test_no_clean_up_deletes_behind_a_symbolic_link(tmp_path):
    """If a generation's folder is a link, it leads to files of another owner, whatever their names."""
    root, elsewhere = tmp_path / "warehouse", tmp_path / "elsewhere"
    run(root, 1)
    name = next((root / "bronze/numbers/_data").rglob("*.parquet")).name
    (elsewhere / "1").mkdir(parents=True)
    (elsewhere / "1" / name).write_text("precious")
    os.utime(elsewhere / "1" / name, (0, 0))
    (root / "_tidemark/numbers/channels/bronze").mkdir(parents=True)
    (root / "_tidemark/numbers/channels/bronze/_data").symlink_to(elsewhere)
    done = clean_up(at(root), 0)
    assert "precious" == (elsewhere / "1" / name).read_text()
    assert ["behind a symbolic link" in note for note in done.notes] == [True]
    run(root)
    assert "precious" == (elsewhere / "1" / name).read_text()


def test_a_log_that_removes_odd_paths_makes_no_clean_up_delete_them(tmp_path):
    """The log of the job's own table says that it removed its first entry, a file that it needs, and one outside."""
    root = tmp_path / "warehouse"
    run(root, 1)
    log = root / "bronze/numbers/_delta_log"
    needed = root / "bronze/numbers" / DeltaTable(root / "bronze/numbers").file_uris()[0]
    (root / "precious").touch()
    odd = [
        "_delta_log/00000000000000000000.json",
        f"./_data/1/{needed.name}",
        f"x/../_data/1/{needed.name}",
        "../../precious",
        "%2e%2e/%2e%2e/precious",
    ]
    (root / "bronze/numbers/x").mkdir()
    removes = [json.dumps({"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}) for path in odd]
    newest = max(int(path.stem) for path in log.glob("*.json"))
    (log / f"{newest + 1:020d}.json").write_text("\n".join(removes) + "\n")
    os.utime(log / f"{newest + 1:020d}.json", (1, 1))
    run(root)
    for _ in range(2):
        clean_up(at(root), 0)
    assert (log / "00000000000000000000.json").exists()
    assert needed.exists()
    assert (root / "precious").exists()
