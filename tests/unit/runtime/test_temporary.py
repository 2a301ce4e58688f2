"""Spark's log and temporary files: they are private, behind no link, and removed once their process is dead."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from jobs.spark import session as temporary_files
from jobs.spark.programs import must_start_spark
from jobs.spark.session import UnsafeFolderError, open_log, private_folder, remove_dead, spark_folder

LEAVES_A_FOLDER = """
import os, signal
from jobs.spark.session import spark_folder
folder = spark_folder()
(folder / "blockmgr-1").mkdir()
(folder / "blockmgr-1" / "shuffle").write_text("x")
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Let temporary files lie in a folder of this test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def killed(folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", LEAVES_A_FOLDER]
    return Path(subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout.strip())


def test_the_folder_is_this_users_alone(temporary):
    """The folder has mode 0700 from the first moment. It is the same folder each time."""
    folder = private_folder()
    assert folder == temporary / f"tidemark-{os.getuid()}"
    assert 0o700 == folder.stat().st_mode & 0o777
    assert folder == private_folder()


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_folder_that_others_could_use_is_refused_before_a_claim(kind, temporary):
    """Another user may have made the folder first. The tick names the folder and the way out."""
    folder = temporary / f"tidemark-{os.getuid()}"
    match kind:
        case "open to others":
            folder.mkdir()
            folder.chmod(0o770)
        case "a link":
            (temporary / "elsewhere").mkdir(mode=0o700)
            folder.symlink_to(temporary / "elsewhere")
        case "a file":
            folder.write_text("x")
    with pytest.raises(UnsafeFolderError, match=f"{folder} is not a folder that this user alone can open.*TMPDIR"):
        must_start_spark()


def test_a_folder_of_another_user_is_refused(temporary, monkeypatch):
    """This holds even if the folder's mode is right."""
    folder = private_folder()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    folder.rename(temporary / f"tidemark-{other}")
    with pytest.raises(UnsafeFolderError):
        private_folder()


def test_the_log_is_not_written_through_a_link(tmp_path):
    """A link could lead to any file of the user."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "spark.log").symlink_to(victim)
    with pytest.raises(OSError, match=r"Too many levels of symbolic links"):
        open_log(tmp_path / "spark.log")
    assert "mine" == victim.read_text()


def test_the_log_does_not_grow_without_end(tmp_path, monkeypatch):
    """A long log is kept once, beside the new log."""
    monkeypatch.setattr(temporary_files, "LOG_BYTES_MAX", 5)
    log = tmp_path / "spark.log"
    for text in ("first", "and more", "third"):
        descriptor = open_log(log)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    assert ("third", "firstand more") == (log.read_text(), (tmp_path / "spark.log.1").read_text())


def test_the_folders_of_a_killed_process_go_with_the_next_one(temporary):
    """The next process deletes them. Folders of living processes stay, and so do folders whose owner is unknown."""
    left = killed(temporary)
    assert (left / "blockmgr-1" / "shuffle").exists()
    foreign = private_folder() / "spark-of-somebody"
    foreign.mkdir()
    mine = spark_folder()
    assert not left.exists()
    assert {mine, foreign} == {path for path in private_folder().iterdir() if path.is_dir()}
    assert (mine.with_name(f"{mine.name}.owner.json"),) == tuple(private_folder().glob("*.json"))
    assert () == remove_dead()


def test_an_owner_that_is_a_named_pipe_hangs_nobody(temporary):
    """A folder whose owner cannot be read stays."""
    os.mkfifo(private_folder() / "spark-1.owner.json")
    done = threading.Thread(target=remove_dead, daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()
