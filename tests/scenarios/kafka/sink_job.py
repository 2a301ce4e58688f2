"""Defines a pipeline with two Kafka sinks. Their producers' calls cross boundaries, where a tick may stop or die.

Orders go from files to an append table and to its topic. An upsert table counts the customers with 1, 2, 3 orders, and
so on. Its keys come and go, and its topic shows the table. `DATA/kafka.json` names servers and topics. A table without
a topic in this file has no sink.
"""

import json
import os
import re
import signal
from pathlib import Path

import confluent_kafka
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructType

from jobs.outside_sinks.kafka import transaction
from jobs.warehouse.boundaries import KILL_VARIABLE, boundary_from_environment
from tidemark import CheckpointConfig, FileSource, KafkaSink, Pipeline, count

METHODS = (
    "init_transactions",
    "begin_transaction",
    "produce_batch",
    "send_offsets_to_transaction",
    "commit_transaction",
)
ORDERS, SIZES = "bronze/orders", "gold/sizes"
STOP_VARIABLE = "STOP_AT"
PASSWORD_VARIABLE = "SINK_PASSWORD"  # noqa: S105 - a name
_SCHEMA = StructType().add("id", LongType()).add("customer", StringType())


def build(data: Path) -> Pipeline:
    told = json.loads((data / "kafka.json").read_text())
    if os.environ.get(KILL_VARIABLE):
        transaction.Producer = crossing(boundary_from_environment())
    if os.environ.get(STOP_VARIABLE):
        transaction.Producer = crossing(_stopped, (data / "refused").write_text)
    config = CheckpointConfig(every_rows=10, slice_rows_max=5, retained=told.get("retained", 2))
    pipeline = Pipeline("shop", config=config, parallelism=2)
    orders = pipeline.source("orders", FileSource(data / "orders", _SCHEMA))
    orders = orders.table(ORDERS, id="bronze", sink=_sink(told, ORDERS, key="id"))
    customers = orders.key_by("customer").aggregate("per_customer", orders=count())
    customers.key_by("orders").aggregate("sizes", customers=count()).upsert(SIZES, sink=_sink(told, SIZES))
    return pipeline


def _sink(told, table, **how):
    topic = told["topics"].get(table)
    secrets = {"sasl.password": PASSWORD_VARIABLE} if "options" in told else None
    return topic and KafkaSink(told["servers"], topic, options=told.get("options"), secrets=secrets, **how)


def crossing(boundary, refused=lambda name: None):
    """Return a producer whose calls cross boundaries, such as `before:commit_transaction:bronze/orders`.

    The records of a call are sent before the producer crosses `after:produce_batch`. `refused` is called with the name
    of each error that Kafka raises.
    """

    def made(method):
        def call(self, *arguments):
            boundary(f"before:{method}:{self.table}")
            try:
                answer = getattr(confluent_kafka.Producer, method)(self, *arguments)
            except confluent_kafka.KafkaException as error:
                refused(error.args[0].name())
                raise
            if method == "produce_batch":
                self.flush(20)
            boundary(f"after:{method}:{self.table}")
            return answer

        return call

    def begin(self, settings, **more):
        self.table = re.fullmatch(r"tidemark/[^/]+/(.+)/[^/]+", settings["transactional.id"])[1]
        confluent_kafka.Producer.__init__(self, settings, **more)

    return type("Crossing", (confluent_kafka.Producer,), {"__init__": begin} | {each: made(each) for each in METHODS})


def _stopped(name):
    if name == os.environ.get(STOP_VARIABLE):
        os.environ[STOP_VARIABLE] = "never again"
        os.kill(os.getpid(), signal.SIGSTOP)


def batches(checkpoint, rows):
    numbers = [f"{checkpoint}/{n}" for n in range(rows)]
    return [pa.record_batch({"n": pa.array(part)}) for part in (numbers[: rows // 2], numbers[rows // 2 :])]


def dies_publishing(servers, topic, checkpoint, when, method):
    """Publish a checkpoint of ten rows, and die before or after this method of Kafka's client is called."""

    def call(self, *arguments):
        if when == "after":
            getattr(confluent_kafka.Producer, method)(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    transaction.Producer = type("Dying", (confluent_kafka.Producer,), {method: call})
    KafkaSink(servers, topic, "n").publish("job", "out/numbers", checkpoint, batches(checkpoint, 10))
