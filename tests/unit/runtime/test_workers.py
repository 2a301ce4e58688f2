"""Tests the comparison of a cluster's workers with this process, on a real Spark session."""

import json
import socket
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jobs.distribution import PYTHON, versions
from jobs.spark.programs import UnfitWorkerError, must_suit

pytestmark = pytest.mark.spark
HOST = socket.gethostname()


@pytest.fixture
def warehouse(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "an entry").touch()
    return tmp_path


def test_workers_of_the_same_environment_suit(spark, warehouse):
    """The versions are those of this process, and the workers see the warehouse."""
    assert all(versions().values())
    must_suit(spark, warehouse, "checkpoints", 2, versions())


@pytest.mark.parametrize(
    ("name", "ours", "message"),
    [
        (PYTHON, "3.99", rf"worker {HOST} has Python 3\.\d+, and this process has 3\.99: install the same versions"),
        ("polars", "0.0.1", rf"worker {HOST} has polars .*, and this process has 0\.0\.1: install the same versions"),
        ("no-such-package", "1", rf"worker {HOST} has no no-such-package, and this process has 1: install"),
    ],
)
def test_a_worker_with_another_version_is_named(spark, warehouse, name, ours, message):
    """The message has the worker's host, both versions, and the way out."""
    with pytest.raises(UnfitWorkerError, match=message):
        must_suit(spark, warehouse, "checkpoints", 1, versions() | {name: ours})


def test_a_worker_that_does_not_see_the_warehouse_is_named(spark, tmp_path):
    """This happens on a cluster whose workers share no disk with the driver."""
    with pytest.raises(UnfitWorkerError, match=f"worker {HOST} does not see {tmp_path}/gone: the workers must reach"):
        must_suit(spark, tmp_path / "gone", "checkpoints", 1, versions())


def test_a_worker_that_lacks_what_spark_itself_needs_is_told(warehouse):
    """Spark raises an error before the comparison begins, for example if the worker's Python has no pyarrow."""
    session = MagicMock()
    answers = session.range.return_value.mapInArrow.return_value
    answers.collect.side_effect = RuntimeError("... ModuleNotFoundError: No module named 'pyarrow.lib'")
    with pytest.raises(UnfitWorkerError, match="a worker has no package pyarrow: install the same versions there"):
        must_suit(session, warehouse, "checkpoints", 1, versions())


def test_a_worker_of_another_python_is_told():
    """Spark's own message comes after a page of Java."""
    said = "x\n[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark"
    with pytest.raises(UnfitWorkerError, match=r"a worker has Python 3\.9, and this process has 3\.\d+: inst"):
        must_suit(answering(RuntimeError(said)), "w", "c", 1, {})


def test_a_worker_without_the_named_python_is_told():
    """An example is a worker that has the driver's packages under another path."""
    with pytest.raises(UnfitWorkerError, match=r"no program /there/python: name the worker's own Python in PYSPARK_P"):
        must_suit(answering(OSError('... Cannot run program "/there/python": error=2, No such')), "w", "c", 1, {})


def test_each_of_several_workers_on_a_host_counts():
    """The order in which the workers answer does not matter."""
    good, bad = (answer({"polars": version}) for version in ("1", "2"))
    for rows in ([good, bad], [bad, good]):
        with pytest.raises(UnfitWorkerError, match="worker here has polars 2, and this process has 1"):
            must_suit(answering(rows), "warehouse", "checkpoints", 1, {"polars": "1"})


def answer(found):
    return SimpleNamespace(host="here", found=json.dumps(found), wrong="")


def answering(rows):
    """Return a session whose workers give these answers, or raise this error."""
    session = MagicMock()
    session.range.return_value.mapInArrow.return_value.collect.side_effect = (
        rows if isinstance(rows, Exception) else [rows]
    )
    return session
