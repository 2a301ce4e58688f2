"""Tables are entered into moto's Glue, and into a Unity Catalog's REST interface.

No package index has the open source Unity Catalog's server. So a small server takes its place here. It refuses what
the recorded definitions of the real interface (`unity_contract.json`) refuse.
"""

import threading

import jsonschema
import pytest
from deltalake import DeltaTable, write_deltalake
from moto import mock_aws
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from checkpointing.metadata.paths import ProtocolPaths
from jobs.catalogs.hive_tables import hive_entry
from jobs.catalogs.known import open_catalog
from jobs.catalogs.port import CatalogSettings, UnusableCatalogError
from jobs.catalogs.registering import names_in_catalog, table_in_catalog
from jobs.catalogs.unity import TOKEN, UnityCatalog
from jobs.doctor.examination import examine
from jobs.operators.spec import arrow_schema
from jobs.spark.session import SparkConfig
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.catalogs.jobs import Shop, must_follow_a_job
from tests.scenarios.catalogs.unity_server import CONTRACT, unity_server
from tests.scenarios.runtime.sequence_job import JOB


@pytest.fixture
def glue(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        yield Shop(tmp_path, CatalogSettings(name="glue"))


@pytest.fixture
def unity(tmp_path, monkeypatch):
    with unity_server("of-the-test") as address:
        monkeypatch.setenv(TOKEN, "of-the-test")
        yield Shop(tmp_path, CatalogSettings(name="unity", url=address, schema="main.shop"))


def test_glue_follows_a_job(glue):
    must_follow_a_job(glue)


def test_unity_catalog_follows_a_job(unity):
    must_follow_a_job(unity)


def test_doctor_names_missing_stale_and_foreign_entries_and_a_tick_mends_them(glue, capsys):
    """A tick without new rows mends the entries too."""
    glue.tick()

    def findings():
        warehouse = Warehouse(glue.root / "warehouse", ProtocolPaths(JOB))
        found = examine(warehouse, 0, SparkConfig(), verify=False, catalog=glue.settings)
        section = next(each for each in found.sections if each.name == "catalog")
        return [(each.what, each.repair) for each in section.findings]

    assert findings() == []
    call = glue.catalog._call()
    glue.catalog.drop("bronze_numbers")
    table = call.get_table(DatabaseName=JOB, Name="gold_by_key")["Table"]
    table["StorageDescriptor"]["Columns"].pop()
    wanted = {key: table[key] for key in ("Name", "StorageDescriptor", "Parameters", "TableType")}
    call.update_table(DatabaseName=JOB, TableInput=wanted)
    (missing, repair), (stale, _) = findings()
    assert missing == "glue: the entry of bronze_numbers is not there"
    assert stale == "glue: the entry of gold_by_key is stale: columns"
    assert repair.startswith("tidemark run numbers")
    assert glue.tick().completed == ()
    assert findings() == []


def test_a_catalog_that_hangs_delays_no_tick(unity, monkeypatch):
    """The tick ends while the catalog still hangs. The next tick updates the catalog, although no rows are new."""
    released, reached = threading.Event(), threading.Event()

    class Hangs(UnityCatalog):
        def entries(self):
            reached.set()
            released.wait()
            raise OSError("the server is gone")

    with monkeypatch.context() as patched:
        patched.setattr("jobs.catalogs.unity.UnityCatalog", Hangs)
        try:
            assert unity.tick(waits=False).completed
            assert reached.is_set()
            assert not released.is_set()
        finally:
            released.set()
    assert unity.entries() == {}
    assert unity.tick().completed == ()
    assert set(unity.entries()) == {"bronze_numbers", "gold_by_key"}


TYPES = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "decimal(10,2)": DecimalType(10, 2),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "map<string,array<double>>": MapType(StringType(), ArrayType(DoubleType())),
    "struct<q:array<decimal(3,1)>,S:int>": StructType(
        [StructField("q", ArrayType(DecimalType(3, 1))), StructField("S", IntegerType())]
    ),
}


def test_every_type_of_spark_has_a_type_in_each_catalog(tmp_path):
    """Hive has only one type of timestamps, and turns names into lower case."""
    schema = StructType([StructField(f"c{number}", kind) for number, kind in enumerate(TYPES.values())])
    write_deltalake(str(tmp_path / "t"), arrow_schema(schema).empty_table())
    warehouse = Warehouse(tmp_path, ProtocolPaths(JOB))
    told = table_in_catalog(warehouse, "t/t", DeltaTable(str(tmp_path / "t")))
    in_hive = [kind for _, kind, _ in hive_entry(told, "/t").columns]
    others = {
        "timestamp_ntz": "timestamp",
        "struct<q:array<decimal(3,1)>,S:int>": "struct<q:array<decimal(3,1)>,s:int>",
    }
    assert in_hive == [others.get(kind, kind) for kind in TYPES]
    unity = UnityCatalog("http://x", "main.shop")
    entry = unity.entry(told)
    assert [kind for _, kind, _ in entry.columns] == list(TYPES)
    jsonschema.validate(unity._table(told, entry), {"$ref": "#/definitions/CreateTable", **CONTRACT})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"name": "hive"}, "thrift://host:9083"),
        ({"name": "hive", "url": "thrift://me:secret@there"}, "thrift://host:9083"),
        ({"name": "hive", "url": "thrift://there", "schema": "a; drop table b"}, "names no schema"),
        ({"name": "glue", "url": "http://there"}, "leave catalog_url out"),
        ({"name": "unity", "url": "http://there", "schema": "shop"}, "main.shop"),
        ({"name": "unity", "schema": "main.shop"}, TOKEN),
    ],
)
def test_a_catalog_that_cannot_be_used_is_refused(settings, says):
    with pytest.raises(UnusableCatalogError, match=says) as refused:
        open_catalog(CatalogSettings(**settings), JOB)
    assert "secret@" not in str(refused.value)


def test_two_tables_of_one_name_are_refused():
    with pytest.raises(UnusableCatalogError, match="a_b/c and a/b_c would both be called a_b_c"):
        names_in_catalog(["a_b/c", "a/b_c"])
