"""The archive of Spark's classes: used where it is there, missed nowhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.spark import session
from jobs.spark.jars import JARS_VARIABLE
from jobs.spark.session import JVM_OPTIONS, SparkConfig, classic_settings
from jobs.tick import class_archive
from jobs.tick.class_archive import ArchiveNotMadeError, make_archive


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Return where the archive would lie, in a folder with a space in its name."""
    path = tmp_path / "an environment" / "spark-classes.jsa"
    path.parent.mkdir()
    monkeypatch.setattr(session, "CLASS_ARCHIVE", path)
    monkeypatch.setattr(class_archive, "CLASS_ARCHIVE", path)
    return path


def test_a_session_starts_with_the_archive_if_it_is_there(archive):
    """Without an archive the JVM gets no option for it. The user's own options come last."""
    assert session.LATE_C2 == classic_settings(SparkConfig())[JVM_OPTIONS]
    archive.write_bytes(b"classes")
    with_archive = f'{session.LATE_C2} "-XX:SharedArchiveFile={archive}" {session.SILENT}'
    assert with_archive == classic_settings(SparkConfig())[JVM_OPTIONS]
    own = SparkConfig(settings={JVM_OPTIONS: "-Xss4m"})
    assert "-Xss4m" == classic_settings(own)[JVM_OPTIONS]


def test_a_disk_that_is_nearly_full_is_named(archive, monkeypatch):
    """Half an archive would break the JVMs that map it."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    with pytest.raises(ArchiveNotMadeError, match="has 5 MB left, and an archive needs a gigabyte"):
        make_archive(archive)
    assert [] == list(archive.parent.iterdir())


def test_an_environment_without_an_archive_is_told_and_is_complete(archive, monkeypatch, capsys):
    """The set-up goes on if no archive can be made."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 20))
    class_archive.main()
    assert "no archive of Spark's classes" in capsys.readouterr().err
    assert not archive.exists()


def test_an_archive_needs_no_delta_jars(monkeypatch, tmp_path):
    """If the Delta jars were never fetched, the archive is made from a tick alone."""
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "none"))
    assert () == class_archive._jars()


@pytest.mark.dear
def test_an_archive_is_made_and_another_file_is_passed_over(tmp_path):
    """A JVM starts with the archive, and ignores a file that is none."""
    archive = tmp_path / "made.jsa"
    program = "import sys; from pathlib import Path; from jobs.tick.class_archive import make_archive;"
    words = [sys.executable, "-c", f"{program} make_archive(Path({str(archive)!r}))"]
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(words, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=False, timeout=280)
    assert 0 == done.returncode
    assert archive.stat().st_size > 50 << 20
    assert "build" in _version(archive)
    archive.write_bytes(b"no archive")
    assert "build" in _version(archive)


def _version(archive):
    java = shutil.which("java") or f"{os.environ['JAVA_HOME']}/bin/java"
    words = [java, *session.LATE_C2.split(), f"-XX:SharedArchiveFile={archive}", *session.SILENT.split(), "-version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout + done.stderr
