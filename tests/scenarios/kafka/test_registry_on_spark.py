"""Ticks over a topic with a registry: new versions, a killed tick, and a registry that is gone."""

import json

import pytest

from tests.registry_server import Registry
from tests.scenarios.kafka import producers
from tests.scenarios.kafka.test_registry import FIRST, SECOND
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
    """Every record is there once. The tick that meets the new version ends before it; the next one has the column."""
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
    """The checkpoint has the schemas. A record with another one fails the tick, and is read later."""
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
