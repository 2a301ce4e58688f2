"""Tests what `tidemark doctor` reports about versions and about the machine."""

import sys

import pytest

from checkpointing.identifiers import job_name
from checkpointing.metadata.paths import ProtocolPaths
from jobs.doctor import examination
from jobs.doctor.examination import breaks, machine_section
from jobs.spark.session import SparkConfig
from jobs.warehouse.warehouse import Warehouse

SPARK = "<4.4,>=4.0.2"


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "not/there/yet", ProtocolPaths(job_name("flights")))


@pytest.mark.parametrize(
    ("rules", "found", "expected"),
    [
        ("==4.2.0", "4.2.0", False),
        ("==4.2.0", "4.2.1", True),
        ("==4.4.0", "4.4", False),
        (">=1.6,<1.7", "1.6.6", False),
        ("<1.7,>=1.6", "1.7.0", True),
        (">=1.6,<1.7", "1.5.9", True),
        ("<3", "2.3.3", False),
        ("<3", "3.0.0", True),
        ("!=2.1", "2.1.0", True),
        ("", "7", False),
    ],
)
def test_a_version_must_meet_every_part_of_a_pin(rules, found, expected):
    """The rules of a requirement, each of which must hold."""
    assert expected == breaks(rules, found)


def test_a_package_that_leaves_its_pin_is_named_with_both_versions(warehouse, monkeypatch):
    """Every finding says how to install a version that fits."""
    found = {"pyspark": "4.4.0"}
    monkeypatch.setattr(examination, "_installed", found.get)
    said = {finding.what: finding.repair for finding in machine_section(warehouse, SparkConfig()).findings}
    pip = f"{sys.executable} -m pip install"
    assert {
        f"package pyspark is 4.4.0, and Tidemark needs pyspark{SPARK}": f"{pip} 'pyspark{SPARK}'",
    }.items() <= said.items()
    assert any(what.startswith("package deltalake is not installed") for what in said)


def test_missing_jars_are_shown_and_are_no_problem(warehouse, monkeypatch, tmp_path):
    """A tick fetches the jars that it needs, so a project without them is healthy."""
    monkeypatch.setenv("TIDEMARK_JARS", str(tmp_path / "nowhere"))
    section = machine_section(warehouse, SparkConfig())
    said = "delta, kafka, s3a, debezium: no tick here has needed them, and one that does fetches them"
    assert dict(section.seen)["jars"] == said
    assert [] == [finding.what for finding in section.findings if "jar" in finding.what]


def test_a_full_disk_is_a_problem(warehouse, monkeypatch):
    """The finding says what the user can delete."""
    monkeypatch.setattr(examination, "FREE_BYTES_MIN", 2**62)
    said = {finding.what: finding.repair for finding in machine_section(warehouse, SparkConfig()).findings}
    (full,) = (repair for what, repair in said.items() if "are free where the warehouse lies" in what)
    assert f"tidemark cleanup flights --warehouse {warehouse.root}" in full
