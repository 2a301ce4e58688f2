"""Reads two tables from Kafka that a real Debezium writes: no cut shows a part of a transaction of the database."""

import json
import os

import pytest

from tests.maria_server import MariaServer
from tests.scenarios.debezium.shop import TOTAL, Shop
from tests.scenarios.debezium.test_debezium import Transfers
from tests.scenarios.kafka.debezium_to_kafka import Connector
from tests.scenarios.kafka.topics import TopicMaker
from tests.scenarios.kafka.transfers_job import TABLES
from tidemark.testing import Trial

MOMENTS = ("after:RunMicroBatch#2", "before:AppendRow", "before:PublishTable#2")


@pytest.fixture
def shop(tmp_path):
    server = MariaServer()
    made = Shop(server, "own", tmp_path / "unused")
    yield made
    made.close()
    server.close()


@pytest.mark.spark
@pytest.mark.dear
@pytest.mark.timeout(590)
def test_no_cut_shows_a_part_of_a_transfer(broker, shop, tmp_path, spark):
    """Transfers run while ticks are killed, and Debezium is killed and repeats transactions."""
    prefix = f"bank{os.getpid()}"
    maker = TopicMaker(broker.servers)
    maker.made(f"{prefix}.transaction", 1, {})
    for name in TABLES:
        maker.made(f"{prefix}.own.{name}", 2, {})
    trial = Trial("tests.scenarios.kafka.transfers_job:build", tmp_path / "trial")
    trial.data.mkdir(parents=True)
    told = {"servers": broker.servers, "prefix": prefix, "transactions": f"{prefix}.transaction", "rows": 40}
    (trial.data / "kafka.json").write_text(json.dumps(told))
    with Connector(shop.server.url("own"), tuple(TABLES), broker.servers, prefix) as connector:
        with Transfers(shop):
            connector.wait_for(20)
            trial.run(checkpoints=2, spark_cores=1)
            for number, moment in enumerate(MOMENTS):
                trial.kill(moment, spark_cores=1)
                if number:
                    connector.crash()
        connector.catch_up(shop)
        trial.run(slice_rows_max=200)
        assert len(must_be_whole(trial.cuts)) > len(MOMENTS)
        must_have_all(trial.cuts.latest(), shop)
        sent = connector.transactions
        connector.crash(repeated=5)
        with Transfers(shop):
            connector.wait_for(sent + 20)
        connector.catch_up(shop)
    trial.run(slice_rows_max=2_000)
    must_have_all(trial.cuts.latest(), shop)


def must_be_whole(cuts):
    """Return the cuts with the whole snapshot, which belongs to no transaction. In each, all transfers are whole."""
    heights = [[cut.polars(f"silver/{name}").collect().height for name in TABLES] for cut in cuts.all()]
    whole = [cut for cut, each in zip(cuts.all(), heights, strict=True) if each == [10, 10]]
    for cut in whole:
        assert TOTAL == sum(cut.polars(f"silver/{name}").collect()["balance"].sum() for name in TABLES), str(cut)
    return whole


def must_have_all(cut, shop):
    for name in TABLES:
        rows = cut.polars(f"silver/{name}").collect()
        assert shop.table(name) == dict(rows.select("id", "balance").iter_rows())
