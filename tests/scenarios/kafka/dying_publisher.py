"""Publishes a checkpoint of rows with a KafkaSink, and kills itself with SIGKILL before or after a call of the client.

`python -m tests.scenarios.kafka.dying_publisher SERVERS TOPIC CHECKPOINT ROWS before|after METHOD`.
"""

import os
import signal
import sys

import confluent_kafka
import pyarrow as pa

from jobs.outside_sinks.kafka import transaction
from jobs.outside_sinks.kafka.kafka_sink import KafkaSink

METHODS = (
    "init_transactions",
    "begin_transaction",
    "produce_batch",
    "send_offsets_to_transaction",
    "commit_transaction",
)


def dying(when, method):
    def call(self, *arguments):
        if when == "after":
            getattr(confluent_kafka.Producer, method)(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return type("Dying", (confluent_kafka.Producer,), {method: call})


def batches(checkpoint, rows):
    numbers = [f"{checkpoint}/{n}" for n in range(rows)]
    return [pa.record_batch({"n": pa.array(part)}) for part in (numbers[: rows // 2], numbers[rows // 2 :])]


if __name__ == "__main__":
    servers, topic, checkpoint, rows, when, method = sys.argv[1:]
    transaction.Producer = dying(when, method)
    KafkaSink(servers, topic, "n").publish("job", "out/numbers", int(checkpoint), batches(int(checkpoint), int(rows)))
