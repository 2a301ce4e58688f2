"""Ticks on a Spark that lacks something: packages that a tick does not need, or the client's own release."""

import os
import subprocess
import sys

import pyspark
import pytest
from pyspark.sql import DataFrame

from jobs.operators.key_hash import landing
from jobs.spark.versions import repartition_by_id
from tests.stock_project import counted_once, write_project

pytestmark = pytest.mark.spark

WITHOUT = """
import sys
from importlib.machinery import PathFinder


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {absent!r} else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
"""Hides installed packages from a process. Python runs a `sitecustomize` at its start, in Spark's workers too."""


OPEN = """
import sys
from pyspark.sql import SparkSession

theirs = SparkSession.builder.master("local[1]").appName("theirs").config("spark.ui.enabled", "false").getOrCreate()
from tidemark.__main__ import main

try:
    main()
except SystemExit as ended:
    code = ended.code
brought = {name for name, _ in theirs.sparkContext.getConf().getAll()} & {"spark.jars", "spark.files"}
print(f"{code} {theirs.range(3).count()} {theirs.sparkContext.appName} {brought}")
"""


def run(folder, program, *words, **variables):
    command = [sys.executable, *program, "run", "--warehouse", "warehouse", "--spark-cores", "1", *words]
    told = {"cwd": folder, "env": os.environ | variables, "timeout": 200}
    return subprocess.run(command, capture_output=True, text=True, check=False, **told)


def test_a_tick_without_suites_needs_neither_pandas_nor_great_expectations(tmp_path):
    """Neither the driver nor its workers import them, and PySpark's own requirement of pandas does not matter."""
    write_project(tmp_path)
    (tmp_path / "hiding").mkdir()
    absent = ("pandas", "great_expectations")
    (tmp_path / "hiding" / "sitecustomize.py").write_text(WITHOUT.format(absent=absent))
    path = os.pathsep.join([str(tmp_path / "hiding"), *filter(None, [os.environ.get("PYTHONPATH")])])
    seen = "from importlib.util import find_spec as f; print(f('pandas'), f('great_expectations'))"
    environment = os.environ | {"PYTHONPATH": path}
    assert b"None None\n" == subprocess.check_output([sys.executable, "-c", seen], env=environment)
    done = run(tmp_path, ["-m", "tidemark"], PYTHONPATH=path)
    assert 0 == done.returncode, done.stderr
    assert counted_once(tmp_path / "warehouse")


@pytest.mark.parametrize("count", [1, 2, 5, 128])
def test_each_row_goes_to_the_partition_that_it_names(spark, monkeypatch, count):
    """Spark's own way, since 4.1, and Tidemark's way for older releases give the same partitions."""
    rows = spark.range(0, 3 * count, 1, 4).selectExpr(f"CAST(id % {count} AS INT) AS subtask")
    ways = [repartition_by_id(rows, count, "subtask", landing)]
    monkeypatch.delattr(DataFrame, "repartitionById", raising=False)
    ways.append(repartition_by_id(rows, count, "subtask", landing))
    for each in ways:
        found = each.selectExpr("subtask", "spark_partition_id() AS place").collect()
        assert sorted([*range(count)] * 3) == sorted(row.subtask for row in found)
        assert [] == [row for row in found if row.subtask != row.place]


def test_a_tick_uses_the_session_that_its_process_has_and_leaves_it_open(tmp_path):
    """A platform may start Spark itself. The tick adds neither jars nor files to that session."""
    write_project(tmp_path)
    done = run(tmp_path, ["-c", OPEN])
    assert done.stdout.endswith("\n0 3 theirs set()\n"), done.stderr
    assert counted_once(tmp_path / "warehouse")


def test_a_server_of_another_spark_is_refused_in_one_sentence(tmp_path, connect_url):
    """The sentence has both versions, and the command that installs the server's version."""
    write_project(tmp_path)
    older = "import pyspark; pyspark.__version__ = '3.9.1'; from tidemark.__main__ import main; main()"
    done = run(tmp_path, ["-c", older], "--spark-connect", connect_url)
    release = ".".join(pyspark.__version__.split(".")[:2])
    said = (
        f"the Spark Connect server {connect_url} runs Spark {pyspark.__version__}, and this client has Spark 3.9.1: "
        f"install the server's release here with pip install 'pyspark[connect]=={release}.*'"
    )
    assert (True, False) == (said in done.stderr, "Traceback" in done.stderr)
    assert done.returncode
