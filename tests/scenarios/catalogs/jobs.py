"""A job whose tables are entered into a catalog. Its ticks run without Spark."""

import threading

from jobs.catalogs.known import open_catalog
from jobs.catalogs.port import CatalogSettings
from jobs.pipeline.planning import plan
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import ReporterSettings, RuntimeSettings
from tests.scenarios.runtime.sequence_job import CONFIG, JOB, KEYS, ROWS, LocalEngine
from tidemark import Pipeline, SequenceSource, count, sum_of


def declared(*, gold="gold/by_key", was=None):
    """Return a pipeline that aggregates numbers by key into a table with this name, comments and a property."""
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    rows = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table("bronze/numbers", id="bronze")
    by_key = rows.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value"))
    by_key.upsert(gold, renamed_from=was).describe_table(
        "numbers by key", columns={"total": "of all values"}, properties={"team": "data"}
    )
    return pipeline


class Shop:
    """The job in its warehouse, and the catalog into which its tables are entered."""

    def __init__(self, root, settings: CatalogSettings):
        self.root, self.settings = root, settings
        self.catalog = open_catalog(settings, JOB)

    def tick(self, pipeline=None, warehouse="warehouse", *, waits=True, **settings):
        """Run a tick. With `waits`, wait until the catalog is up to date, which may be after the tick has ended."""
        runtime = RuntimeSettings(
            warehouse=self.root / warehouse, reporters=ReporterSettings(catalog=self.settings), **settings
        )
        report = run_tick(plan(pipeline or declared()), runtime, engine=LocalEngine())
        for thread in threading.enumerate() if waits else ():
            if thread.name.startswith("reporter-catalog"):
                thread.join(60)
        return report

    def entries(self):
        return dict(self.catalog.entries())

    def entry(self, name):
        return self.entries()[name]


def must_follow_a_job(shop: Shop):
    """Assert that a job's tables are entered once, mended and renamed, and that tables of others are left alone."""
    report = shop.tick()
    first = shop.entries()
    assert set(first) == {"bronze_numbers", "gold_by_key"}
    gold = first["gold_by_key"]
    assert gold.columns == (("key", "bigint", ""), ("rows", "bigint", ""), ("total", "bigint", "of all values"))
    assert gold.location.endswith(f"{shop.root}/warehouse/gold/by_key")
    wanted = {"comment": "numbers by key", "team": "data", "tidemark.job": JOB, "tidemark.table": "gold/by_key"}
    assert {name: gold.properties[name] for name in wanted} == wanted
    assert gold.properties["tidemark.schema_checkpoint"] == str(report.completed[0].checkpoint)
    assert shop.tick().completed == ()
    assert shop.entries() == first  # nothing was written

    shop.tick(warehouse="another")
    assert shop.entries() == first  # another warehouse's entries are somebody else's

    shop.catalog.drop("bronze_numbers")
    shop.tick(declared(gold="gold/renamed", was="gold/by_key"))
    assert set(shop.entries()) == {"bronze_numbers", "gold_renamed"}
    assert shop.entry("gold_renamed").location.endswith("/gold/renamed")
    since = shop.entry("gold_renamed").properties["tidemark.schema_checkpoint"]
    assert since == gold.properties["tidemark.schema_checkpoint"]

    bronze = Pipeline(JOB, config=CONFIG)
    bronze.source("numbers", SequenceSource(ROWS, keys=KEYS)).table("bronze/numbers", id="bronze")
    shop.tick(bronze, allow_non_restored_state=True)
    assert set(shop.entries()) == {"bronze_numbers"}
