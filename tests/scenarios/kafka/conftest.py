"""Starts a real broker and a real registry for all tests of this folder, and makes topics for each test."""

import itertools
import os

import pytest

from tests.kafka_broker import running_broker
from tests.registry_server import running_registry
from tests.scenarios.kafka.topics import Topic, TopicMaker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    with running_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
def make_topic(broker):
    """Return a function that makes a topic with a number of Kafka partitions. No other test uses the topic's name."""
    maker = TopicMaker(broker.servers)

    def made(partitions: int = 1, name: str = "orders", **config: str) -> Topic:
        return maker.made(f"{name}-{os.getpid()}-{next(_numbers)}", partitions, config)

    return made
