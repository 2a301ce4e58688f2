"""The servers that some ways read from, each started when a case first needs it, and stopped with this process."""

import atexit
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from tests.kafka_broker import Broker, running_broker
from tests.postgres_server import PostgresServer
from tests.scenarios.kafka.topics import Topic, TopicMaker

_OPEN = ExitStack()
atexit.register(_OPEN.close)


@cache
def kafka() -> Broker:
    folder = _OPEN.enter_context(tempfile.TemporaryDirectory(prefix="broker"))
    return _OPEN.enter_context(running_broker(Path(folder)))


@cache
def postgres() -> PostgresServer:
    server = PostgresServer()
    _OPEN.callback(server.close)
    return server


@cache
def topic(name: str) -> Topic:
    return TopicMaker(kafka().servers).made(name, 2, {})
