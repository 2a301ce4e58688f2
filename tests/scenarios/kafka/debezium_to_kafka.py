"""Sends the events of a real Debezium engine, which reads a MariaDB server, to Kafka as Debezium's connector would."""

import json
import os
import signal
import threading
import time

from confluent_kafka import Producer

from jobs.sources.debezium.running import EngineFailedError, RunningEngine
from jobs.sources.debezium.server import BinlogServer
from jobs.sources.debezium.staging import DebeziumReading


class Connector:
    """Sends events until the `with` block ends.

    Each topic has a producer of its own, so the records of a transaction arrive in any order.
    """

    def __init__(self, url, tables, servers, prefix):
        self._reading = DebeziumReading(
            server=BinlogServer(url), tables=tables, snapshot="whole", new_columns="fail", settings={}
        )
        self._servers, self.prefix = servers, prefix
        self._producers, self._offsets, self._history = {}, [{}], []
        self.transactions, self.failed, self._reached = 0, "", threading.Event()

    def __enter__(self):
        self._start()
        return self

    def __exit__(self, *_):
        self._kill()

    def wait_for(self, transactions):
        """Wait until this number of transactions has been sent. Repeated transactions count again."""
        while self.transactions < transactions:
            assert self._thread.is_alive(), self.failed
            time.sleep(0.1)

    def catch_up(self, shop):
        """Wait until everything that the server has committed until now is sent."""
        self._reached.clear()
        file, position, *_ = shop.sql("SHOW MASTER STATUS")[0]
        self._engine.read_to(file, position)
        while not self._reached.wait(0.1):
            assert self._thread.is_alive(), self.failed
        self._flush()

    def crash(self, repeated=0):
        """Kill the engine and start another one.

        The new engine repeats the transaction that had not ended, and `repeated` transactions before it.
        """
        self._kill()
        del self._offsets[len(self._offsets) - repeated :]
        self._start()

    def _start(self):
        self._engine = RunningEngine(self._reading.engine(self._offsets[-1], tuple(self._history)))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _kill(self):
        os.kill(self._engine.pid, signal.SIGKILL)
        self._thread.join()
        self._engine.close()
        self._flush()

    def _flush(self):
        for producer in self._producers.values():
            assert 0 == producer.flush(20)

    def _run(self):
        try:
            for said in self._engine.said():
                match said.kind:
                    case "I":
                        self._reached.set()
                    case "H":
                        self._history.append(said.text)
                    case "T":
                        text = json.loads(said.text)
                        self._send("transaction", said.text, json.dumps({"id": text["id"]}), 0)
                        if text["status"] == "END":
                            self._offsets.append(json.loads(said.offset))
                            self.transactions += 1
                    case "E":
                        event = json.loads(said.text)
                        key = {"id": (event["after"] or event["before"])["id"]}
                        table = f"{event['source']['db']}.{event['source']['table']}"
                        self._send(table, said.text, json.dumps(key), key["id"] % 2)
        except EngineFailedError as error:
            self.failed = str(error)

    def _send(self, name, value, key, partition):
        if name not in self._producers:
            linger = {"transaction": "5", "own.giro": "150"}.get(name, "30")
            self._producers[name] = Producer({"bootstrap.servers": self._servers, "linger.ms": linger})
        self._producers[name].produce(f"{self.prefix}.{name}", value, key=key, partition=partition)
        self._producers[name].poll(0)
