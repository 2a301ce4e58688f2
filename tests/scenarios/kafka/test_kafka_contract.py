"""Tests that KafkaSource keeps the promises of a source, even if ticks or the broker are killed."""

import itertools
import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dying_server import dying
from tests.kafka_broker import Broker
from tests.scenarios.kafka.orders_job import SCHEMA
from tests.scenarios.kafka.topics import TopicMaker
from tidemark import KafkaSource
from tidemark.testing import SourceContract, SurvivesKills

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark", "served")]

TOLD = "kafka.json"
SERVED: list[Broker] = []
"""The broker that this process uses. A tick that runs in another process finds the broker's address in a file."""
_NUMBERS = itertools.count(1)


@pytest.fixture
def served(broker):
    SERVED[:] = [broker]
    yield
    SERVED.clear()


def orders(folder: Path) -> KafkaSource:
    """Return the source over a topic that the first call makes. The topic's offsets have gaps."""
    told = folder / TOLD
    if not told.exists():
        servers, name = SERVED[0].servers, f"contract-{os.getpid()}-{next(_NUMBERS)}"
        topic = TopicMaker(servers).made(name, 2, {})
        topic.write(map(order, range(6)), 0, key="k")
        with topic.transaction(map(order, range(90, 94)), 0, commit=False):
            pass
        with topic.transaction(map(order, range(6, 10)), 0, commit=True):
            pass
        topic.write(["no order", *map(order, range(10, 22))], 1)
        told.write_text(json.dumps({"servers": servers, "topics": name}))
    return KafkaSource(**json.loads(told.read_text()), schema=SCHEMA, metadata=["key"])


def order(number: int) -> str:
    return json.dumps({"customer": f"c{number % 3}", "amount": number})


@pytest.mark.dear
class TestKafka(SourceContract):
    """The source gives the same rows for ever, in polls of any size."""

    source = staticmethod(orders)


def test_slices_of_any_size_hold_the_same_rows(tmp_path):
    """Each run of the tests checks this promise. The topic has gaps of transactions and a record that is no order."""
    TestKafka().test_slices_of_any_size_hold_the_same_rows(tmp_path)


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestKafkaAndKillsOfReading(SurvivesKills):
    """Ticks die while they read and write."""

    source = staticmethod(orders)
    kills = tuple(
        f"{side}:{step}" for step in ("Claim", "PollSource#2", "RunMicroBatch") for side in ("before", "after")
    )


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestKafkaAndKillsOfCommitting(SurvivesKills):
    """Ticks die while they commit a checkpoint, and while they commit its offsets to the consumer group."""

    source = staticmethod(orders)
    kills = tuple(
        f"{side}:{step}"
        for step in ("AppendRow", "PublishTable", "RecordCut", "NotifyComplete")
        for side in ("before", "after")
    )


@pytest.mark.dear
@pytest.mark.timeout(590)
class TestKafkaAndKillsOfTheBroker(SurvivesKills):
    """The broker dies in each tick and comes back. Some of these ticks are killed too."""

    source = staticmethod(orders)
    kills = ("after:RunMicroBatch", "after:AppendRow")

    @contextmanager
    def around(self, trial):
        with dying(SERVED[0], trial.warehouse):
            yield
