"""The sets of jars: exactly the locked ones, or a sentence that says what to do."""

import hashlib
from types import SimpleNamespace

import pytest

from jobs.sources.committed_positions import CommitsToFile
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import with_needed_jars
from jobs.spark import jars
from jobs.spark.jars import DELTA, JAR_SETS, KAFKA, JarsError, JarSet, fetch, jar_set, jars_of, not_fetched
from jobs.spark.session import SparkConfig, classic_settings
from jobs.tick.engine import fetch_missing_jars
from jobs.tick.listener import JarsFetching

CONTENT = b"a jar"
SMALL = JarSet(
    name="small", serves="Small", coordinates=("a:a:1",), locked={"a-1.jar": hashlib.sha256(CONTENT).hexdigest()}
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of jars, and a set of one small jar among the known sets."""
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path / "jars"))
    monkeypatch.setitem(JAR_SETS, "small", SMALL)
    return tmp_path / "jars"


def brings(monkeypatch, name, content):
    def resolve(ivy, _jars):
        (ivy / name).write_bytes(content)
        return {name: ivy / name}

    monkeypatch.setattr(jars, "_resolve", resolve)


@pytest.mark.parametrize(
    ("wanted", "command"), [(DELTA, "Delta jars with '.*-m jobs.spark.jars'"), (KAFKA, "Kafka .*spark.jars kafka'")]
)
def test_missing_jars_name_the_command_that_fetches_them(folder, wanted, command):
    """A session without its jars must not fail inside the JVM."""
    with pytest.raises(JarsError, match=rf"\.jar is missing: fetch the {command}"):
        jars_of(wanted)


def test_fetched_jars_are_found_and_not_fetched_twice(folder, monkeypatch):
    """One fetch; nothing but the jars stays in the folder."""
    assert (SMALL,) == not_fetched(["small"])
    brings(monkeypatch, "a-1.jar", CONTENT)
    assert 1 == fetch(folder, SMALL)
    assert (folder / "a-1.jar",) == jars_of(SMALL)
    assert () == not_fetched(["small"])
    monkeypatch.setattr(jars, "_resolve", None)
    assert 0 == fetch(folder, SMALL)
    assert ["a-1.jar"] == [path.name for path in folder.iterdir()]


def test_a_jar_of_another_content_is_never_used(folder, monkeypatch):
    """What does not match the lock stays out of the folder."""
    brings(monkeypatch, "a-1.jar", b"another jar")
    with pytest.raises(JarsError, match=r"a-1\.jar has SHA-256 .*, not the locked"):
        fetch(folder, SMALL)
    assert [] == list(folder.iterdir())


def test_a_jar_that_does_not_come_is_named(folder, monkeypatch):
    """A changed resolution is an error that shows what came."""
    brings(monkeypatch, "b-1.jar", CONTENT)
    with pytest.raises(JarsError, match=r"did not bring a-1\.jar, only \['b-1\.jar'\]"):
        fetch(folder, SMALL)


def test_a_set_of_no_name_is_refused_with_the_names(folder):
    """A slip of the pen on the command line or in a source fetches nothing."""
    with pytest.raises(JarsError, match="no set of jars 'kafkas': the sets are delta, kafka"):
        jar_set("kafkas")


def test_the_command_fetches_the_sets_that_it_names(folder, monkeypatch, capsys):
    """And it says how many jars came."""
    brings(monkeypatch, "a-1.jar", CONTENT)
    jars.main(["small"])
    assert "1 Small jars in" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="tidemark: there is no set of jars"):
        jars.main(["larger"])


def test_a_session_gets_the_jars_of_its_sets_once(folder, monkeypatch):
    """A set that was not fetched is told before a JVM starts; one that is named twice is on the class path once."""
    config = SparkConfig(jar_sets=("small", "small"))
    with pytest.raises(JarsError, match="fetch the Small jars"):
        classic_settings(config)
    brings(monkeypatch, "a-1.jar", CONTENT)
    fetch(folder, SMALL)
    assert str(folder / "a-1.jar") == classic_settings(config)["spark.jars"]


class Reads(SequenceSource):
    """A source whose reading needs a set."""

    jar_sets = ("small",)


def test_a_session_has_what_its_sources_need(tmp_path):
    """The set of a wrapped source counts too, and a set that the configuration names already is kept."""
    wrapped = CommitsToFile(Reads({"all": 1}), tmp_path / "positions.json")
    config = with_needed_jars(SparkConfig(jar_sets=("delta",)), [SequenceSource({"all": 1}), wrapped])
    assert ("delta", "small") == config.jar_sets


def test_a_tick_fetches_what_is_missing_and_says_so(folder, monkeypatch):
    """The user sees why the tick takes long; the next tick fetches nothing."""
    told = []
    listener = SimpleNamespace(progress=told.append)
    brings(monkeypatch, "a-1.jar", CONTENT)
    fetch_missing_jars(SparkConfig(jar_sets=("small",)), listener)
    fetch_missing_jars(SparkConfig(jar_sets=("small",)), listener)
    assert [JarsFetching("Small")] == told
