"""Polls sources of Debezium's topics as a tick does, without Spark. Some records wait for an open transaction."""

import json
import os
import re
import time

from checkpointing.messages import PollSource
from tests.scenarios.kafka.topics import TopicMaker
from tests.scenarios.kafka.transfers_job import TABLES
from tidemark import DebeziumTransactions, KafkaSource


class Bank:
    """Two sources over topics. The test writes to the topics as Debezium does, and polls the sources as a tick does."""

    def __init__(self, broker, name):
        maker = TopicMaker(broker.servers)
        self.ends = maker.made(f"{name}.transaction", 1, {})
        self.topics = {table: maker.made(f"{name}.own.{table}", 2, {}) for table in TABLES}
        self.positions = {}
        self.begin()

    def begin(self):
        """Make new sources, as a new process does."""
        bank = DebeziumTransactions(self.ends.name)
        self.sources = {
            table: KafkaSource(topic.servers, topic.name, TABLES[table], format="debezium-json", transactions=bank)
            for table, topic in self.topics.items()
        }
        self.splits = [(table, split) for table, source in self.sources.items() for split in source.splits()]

    def write(self, table, number, order, partition=0, **more):
        source = {"connector": "mariadb", "db": "own", "table": table, "file": "b.000001", "pos": 1, "ts_ms": 1}
        transaction = number and {"id": number, "total_order": order, "data_collection_order": 1}
        event = {"op": "c", "after": {"id": order, "balance": 1}, "source": source, "transaction": transaction}
        self.topics[table].write([json.dumps(event)], partition, **more)

    def say(self, number, status, **events):
        listed = [{"data_collection": f"own.{table}", "event_count": count} for table, count in events.items()]
        self.ends.write([json.dumps({"status": status, "id": number, "data_collections": listed or None})])

    def read(self):
        """Return the offsets of the next cut, or None if there is none. Each split is read in slices of one record."""
        slices = {}
        for split in self.splits:
            found = self.poll(split, None)
            if found is not None:
                slices[split] = [found]
                break
        else:
            return None
        cut = found.cut
        for split in self.splits:
            while not slices.get(split) or not slices[split][-1].at_cut:
                slices.setdefault(split, []).append(self.poll(split, cut))
        return {split: self.offset(split) for _, split in self.splits}

    def poll(self, split, cut):
        table, name = split
        found = self.sources[table].poll(PollSource(table, name, self.positions.get(split), 1, cut))
        if found is not None:
            self.positions[split] = found.end
        return found

    def offset(self, split):
        return json.loads(next(text for (_, name), text in self.positions.items() if name == split))["offset"]


def test_an_open_transaction_waits_and_doctor_names_it(broker):
    """Rows of the transaction wait in all topics, rows of a snapshot do not. A new process goes on after the cut."""
    bank = Bank(broker, f"open{os.getpid()}")
    (giro, giro1), (savings, savings1) = (source.splits() for source in bank.sources.values())
    bank.write("giro", None, 0)
    bank.say("7", "BEGIN")
    bank.write("giro", "7", 1)
    bank.write("savings", "7", 2, partition=1)
    at = {giro: 1, giro1: 0, savings: 0, savings1: 0}
    assert at == bank.read()
    assert bank.read() is None
    bank.begin()
    assert bank.read() is None
    bank.sources["giro"].lag({split: text for (table, split), text in bank.positions.items() if table == "giro"})
    assert re.search(
        "^transaction 7 of .* began at 20.* and has no end yet: its rows wait", bank.sources["giro"].health()
    )
    sent_ms = time.time_ns() // 1_000_000
    bank.say("7", "END", giro=1, savings=2)
    time.sleep(0.1)
    assert bank.read() is None, "an event is missing, though the end is there"
    bank.write("savings", "7", 3, timestamp=sent_ms)
    time.sleep(0.1)
    assert {giro: 2, giro1: 0, savings: 1, savings1: 1} == bank.read()
    bank.say("8", "BEGIN")
    bank.say("8", "END", giro=1)
    bank.write("giro", "8", 1, partition=1)
    bank.begin()
    assert {giro: 2, giro1: 1, savings: 1, savings1: 1} == bank.read()
    bank.sources["giro"].lag({split: text for (table, split), text in bank.positions.items() if table == "giro"})
    assert "no transaction of" in bank.sources["giro"].health()
