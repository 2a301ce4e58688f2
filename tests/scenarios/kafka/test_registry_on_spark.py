"""Ticks over a topic with a registry: new versions of the schema, a killed tick, and a registry that is gone."""

import json
import subprocess
import sys

import pytest

from tests.registry_server import Registry
from tests.scenarios.guides.test_guides import ROOT, blocks
from tests.scenarios.kafka import producers
from tests.scenarios.kafka.test_registry import FIRST, SECOND
from tidemark import Cuts
from tidemark.testing import TickFailedError, Trial

pytestmark = pytest.mark.spark


@pytest.fixture
def trial(tmp_path, spark):
    def made(**told) -> Trial:
        made = Trial("tests.scenarios.kafka.orders_job:build", tmp_path)
        made.data.mkdir(exist_ok=True)
        (made.data / "kafka.json").write_text(json.dumps({"format": "avro", "schema": None} | told))
        return made

    return made


def orders(*numbers, **more):
    return [{"customer": f"c{number % 7}", "amount": number} | more for number in numbers]


def table(cut):
    frame = cut.polars("bronze/orders").collect()
    notes = frame["note"] if "note" in frame.columns else [None] * frame.height
    return sorted(zip(frame["amount"], notes, strict=True))


def test_a_version_that_comes_while_a_tick_is_dead_brings_its_column(make_topic, registry, trial):
    """Every record is there once. A tick ends before the first record of a new version. The next one has its column."""
    topic = make_topic()
    job = trial(servers=topic.servers, topics=topic.name, registry=registry.url, every_rows=20)
    producers.avro(registry, topic, FIRST, orders(*range(50)))
    job.kill("after:AppendRow#2", slice_rows_max=10)
    producers.avro(registry, topic, SECOND, orders(*range(50, 60), note="gift"))
    producers.avro(registry, topic, FIRST, orders(*range(60, 70)))
    cut = job.run()
    expected = [(number, "gift" if 50 <= number < 60 else None) for number in range(70)]
    assert expected == table(cut)
    assert 70 == cut.polars("gold/customers").collect()["orders"].sum()
    third = json.loads(SECOND)
    third["fields"].append({"name": "paid", "type": ["null", "boolean"], "default": None})
    running = job.cuts.latest()
    producers.avro(registry, topic, json.dumps(third), orders(70, note="x", paid=True))
    assert [*expected, (70, "x")] == table(job.run())
    assert running.checkpoint < job.cuts.latest().checkpoint


def test_a_killed_tick_is_repeated_while_the_registry_is_gone(make_topic, trial, tmp_path):
    """The checkpoint has the schemas. A record with another schema fails the tick, and a later tick reads it."""
    topic, registry = make_topic(), Registry(tmp_path / "registry")
    registry.start()
    told = {"servers": topic.servers, "topics": topic.name, "registry": registry.url, "every_rows": 20}
    job = trial(**told, schema=FIRST, columns="ignore")
    try:
        producers.avro(registry, topic, FIRST, orders(*range(50)))
        job.kill("after:AppendRow#2", slice_rows_max=10)
        registry.kill()
        assert [(number, None) for number in range(50)] == table(job.run())
        registry.start()
        producers.avro(registry, topic, SECOND, orders(50, note="gift"))
        registry.kill()
        with pytest.raises(TickFailedError, match=r"the schema registry at .* does not answer, and schema"):
            job.run()
        registry.start()
        assert [(number, None) for number in range(51)] == table(job.run())
    finally:
        registry.kill()


JSON = {
    "title": "Order",
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "amount": {"type": "integer"},
        "lines": {"type": "array", "items": {"type": "integer"}},
    },
}


def test_json_schema_is_read_by_spark_where_tasks_do_not(make_topic, registry, trial):
    """Tasks leave a column of arrays to Spark. Records without a known header go to the quarantine."""
    topic = make_topic()
    job = trial(servers=topic.servers, topics=topic.name, registry=registry.url, format="json-schema")
    rows = [{"customer": "a", "amount": number, "lines": [number]} for number in range(20)]
    producers.in_json(registry, topic, json.dumps(JSON), rows)
    topic.write([b'{"customer": "a", "amount": 1}', None])
    cut = job.run()
    bronze = cut.polars("bronze/orders").collect()
    assert [(number, [number]) for number in range(20)] == sorted(bronze.select("amount", "lines").drop_nulls().rows())
    assert 22 == bronze.height
    assert 1 == cut.polars("quarantine/orders").collect().height


def test_the_guide_reads_a_topic_of_a_registry_as_it_stands(make_topic, registry, tmp_path, spark):
    """A new user gets a first cut from the guide's pipeline, with the addresses of this broker and this registry."""
    topic = make_topic()
    producers.avro(registry, topic, FIRST, orders(*range(50)))
    (block,) = (each for each in blocks(ROOT / "docs" / "guides" / "kafka.md") if each.path == "shop/pipeline.py")
    assert len(block.text.splitlines()) <= 30
    written = block.text
    addresses = {"http://registry:8081": registry.url, "kafka:9092": topic.servers}
    for said, real in {**addresses, '"orders", format': f'"{topic.name}", format'}.items():
        assert said in written
        written = written.replace(said, real)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "pipeline.py").write_text(written)
    command = [sys.executable, "-m", "tidemark", "run", "shop.pipeline:build"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert 0 == done.returncode, done.stdout + done.stderr
    customers = Cuts(tmp_path / "warehouse", "shop").latest().polars("gold/customers").collect()
    assert (50, sum(range(50))) == (customers["orders"].sum(), customers["spent"].sum())
