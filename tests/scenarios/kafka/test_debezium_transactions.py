"""Reads two tables from Kafka that a real Debezium writes: no cut shows a part of a transaction of the database."""

import itertools
import json
import os
import subprocess
import sys

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from tests.binlog_servers import MariaServer
from tests.scenarios.debezium.shop import TOTAL, Shop
from tests.scenarios.debezium.test_debezium import Transfers
from tests.scenarios.kafka.debezium_to_kafka import Connector
from tests.scenarios.kafka.topics import TopicMaker
from tests.scenarios.kafka.transfers_job import TABLES
from tidemark.testing import Trial

JOB = "tests.scenarios.kafka.transfers_job:build"
_NUMBERS = itertools.count()
MOMENTS = ("after:RunMicroBatch#2", "before:AppendRow", "before:PublishTable#2")


@pytest.fixture
def shop(tmp_path):
    server = MariaServer()
    made = Shop(server, "own", tmp_path / "unused")
    yield made
    made.close()
    server.close()


@pytest.fixture
def prefix(broker):
    """Make the topics, and return the prefix of their names."""
    made = f"bank{os.getpid()}x{next(_NUMBERS)}"
    maker = TopicMaker(broker.servers)
    maker.made(f"{made}.transaction", 1, {})
    for name in TABLES:
        maker.made(f"{made}.own.{name}", 2, {})
    return made


@pytest.fixture
def trial(broker, prefix, tmp_path, spark):
    made = Trial(JOB, tmp_path / "trial")
    made.data.mkdir(parents=True)
    told = {"servers": broker.servers, "prefix": prefix, "transactions": f"{prefix}.transaction", "rows": 40}
    (made.data / "kafka.json").write_text(json.dumps(told))
    return made


@pytest.mark.spark
@pytest.mark.dear
@pytest.mark.timeout(590)
def test_no_cut_shows_a_part_of_a_transfer(broker, shop, trial, prefix):
    """Transfers run while ticks are killed. Debezium is killed too, and then repeats transactions."""
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


@pytest.mark.spark
@pytest.mark.dear
@pytest.mark.timeout(590)
def test_who_goes_back_shows_no_part_of_a_transfer(broker, shop, trial, prefix, tmp_path):
    """The job rolls back, and savepoints restore into other warehouses.

    One savepoint is taken at rest, and one while a tick runs. Transfers go on meanwhile.
    """
    copies = {name: tmp_path / name for name in ("at-rest", "of-a-tick")}
    own = ["--warehouse", str(trial.warehouse)]
    with Connector(shop.server.url("own"), tuple(TABLES), broker.servers, prefix) as connector:
        with Transfers(shop):
            connector.wait_for(20)
            trial.run(checkpoints=3, spark_cores=1)
            assert ExitCode.DONE == execute(["savepoint", "shop", *own, "--to", str(copies["at-rest"])])
            connector.wait_for(connector.transactions + 20)
            command = [sys.executable, "-m", "tidemark", "run", JOB, *own, "--data", str(trial.data)]
            with subprocess.Popen([*command, "--set", "spark_cores=1", "--set", "checkpoints=8"]) as tick:
                newest = trial.cuts.latest().checkpoint
                while trial.cuts.latest().checkpoint == newest:
                    assert tick.poll() is None
                assert ExitCode.DONE == execute(["savepoint", "shop", *own, "--to", str(copies["of-a-tick"])])
            assert 0 == tick.returncode
            first, *_, last = must_be_whole(trial.cuts)
            rows = shown(first)
            assert rows != shown(last)
            assert ExitCode.DONE == execute(["rollback", "shop", *own, str(first.checkpoint)])
            assert rows == shown(trial.cuts.latest())
            trial.run(checkpoints=2, spark_cores=1)
        connector.catch_up(shop)
    for name, copy in copies.items():
        fork = Trial(JOB, trial.warehouse.parent)
        fork.warehouse = tmp_path / f"fork-{name}"
        origin = next(path for path in copy.rglob("_tidemark")).parent
        words = [JOB, "--data", str(trial.data), "--warehouse", str(fork.warehouse), "--from", str(origin)]
        assert ExitCode.DONE == execute(["run", *words, "--set", "slice_rows_max=60"])
        assert len(must_be_whole(fork.cuts)) > 1
        must_have_all(fork.cuts.latest(), shop)
    trial.run(slice_rows_max=200)
    must_be_whole(trial.cuts)
    must_have_all(trial.cuts.latest(), shop)


def shown(cut):
    """Return the rows of both tables."""
    return [cut.polars(f"silver/{name}").collect().sort("id").rows() for name in TABLES]


def must_be_whole(cuts):
    """Return the cuts that have the whole snapshot, and assert that every transfer in them is whole.

    The snapshot belongs to no transaction, so older cuts may have a part of it.
    """
    heights = [[cut.polars(f"silver/{name}").collect().height for name in TABLES] for cut in cuts.all()]
    whole = [cut for cut, each in zip(cuts.all(), heights, strict=True) if each == [10, 10]]
    for cut in whole:
        assert TOTAL == sum(cut.polars(f"silver/{name}").collect()["balance"].sum() for name in TABLES), str(cut)
    return whole


def must_have_all(cut, shop):
    for name in TABLES:
        rows = cut.polars(f"silver/{name}").collect()
        assert shop.table(name) == dict(rows.select("id", "balance").iter_rows())
