"""Tables are entered into a real Hive metastore, and Spark finds them there by name."""

import subprocess
import sys

import pytest

from checkpointing.columns import TableColumn
from jobs.catalogs.hive import HiveCatalog
from jobs.catalogs.port import CatalogSettings, CatalogTable
from jobs.spark.jars import delta_jars
from tests.hive_metastore import hive_metastore
from tests.scenarios.catalogs.jobs import Shop, must_follow_a_job

pytestmark = pytest.mark.dear


@pytest.fixture(scope="module")
def metastore(tmp_path_factory):
    with hive_metastore(tmp_path_factory.mktemp("metastore")) as address:
        first = HiveCatalog(address, "first")  # a metastore makes the tables of its own database at the first calls
        table = CatalogTable(name="t", location="/t", columns=(TableColumn("c", "long"),), schema="{}")
        first.create(table, first.entry(table))
        first.close()
        yield address


def shop_of(tmp_path, metastore, schema):
    return Shop(tmp_path, CatalogSettings(name="hive", url=metastore, schema=schema))


def test_a_hive_metastore_follows_a_job(tmp_path, metastore):
    must_follow_a_job(shop_of(tmp_path, metastore, "followed"))


READS = """
import sys
from pyspark.sql import SparkSession
root, jars, address, schema = sys.argv[1:]
spark = (SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.hadoop.hive.metastore.uris", address)
    .config("spark.sql.warehouse.dir", root + "/spark")
    .config("spark.ui.enabled", "false")
    .enableHiveSupport().getOrCreate())
print("ROWS", spark.sql(f"select sum(rows) as n from {schema}.gold_by_key").first().n)
said = {row.col_name: row.data_type for row in spark.sql(f"describe extended {schema}.gold_by_key").collect()}
print("KIND", [said["Type"], said["Provider"]])
"""


@pytest.mark.spark
@pytest.mark.jars("delta")
def test_spark_reads_a_table_by_its_name(tmp_path, metastore):
    """A new Spark session, which knows nothing but the metastore's address, reads the table."""
    shop = shop_of(tmp_path, metastore, "read")
    shop.tick()
    jars = ",".join(map(str, delta_jars()))
    read = subprocess.run(
        [sys.executable, "-c", READS, str(tmp_path), jars, metastore, "read"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "ROWS 300" in read.stdout, read.stderr[-3000:]
    assert "KIND ['EXTERNAL', 'delta']" in read.stdout
