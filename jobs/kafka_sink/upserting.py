"""Lets a topic show an upsert table: the last record of each key has its row, or no value if the key is gone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from checkpointing.identifiers import CheckpointId
from jobs.kafka_sink.records import Record, Records, deleted, tombstones
from jobs.kafka_sink.refusing import Sent, Sorting
from jobs.kafka_sink.target import encoded
from jobs.sinks.port import TableChanges


@dataclass(frozen=True, slots=True)
class UpsertedRecords:
    """The records of an upsert table at a checkpoint. `shown` reads the keys that the topic has."""

    records: Records
    changes: TableChanges
    shown: Callable[[], set[bytes]]
    sorting: Sorting

    def since(self, checkpoint: CheckpointId) -> Iterator[Sent]:
        """Yield the records that a topic needs which shows this checkpoint. Each key is in one of them at most."""
        topic, keys, found = self.sorting.topic, self.changes.keys, self.changes.since(checkpoint)
        if found is None:
            yield from self._whole()
            return
        if found.deleted.num_rows:
            yield from ((topic, records) for records in deleted(found.deleted, keys))
        if found.rows.num_rows:
            for batch in found.rows.to_batches():
                yield from self.sorting.of(batch, self._made, lambda row: deleted(pa.table(row), keys))

    def _made(self, batch: pa.RecordBatch) -> Iterator[list[Record]]:
        return self.records.upserted(batch, self.changes.keys)

    def _whole(self) -> Iterator[Sent]:
        """Yield all rows, and then the keys of the topic that the table does not have."""
        gone = self.shown()  # before the first record, since readers stop at an open transaction
        for batch in self.changes.whole():
            for topic, records in self.sorting.of(batch, self._made):
                if topic == self.sorting.topic:
                    gone.difference_update(encoded(record["key"]) for record in records)
                yield topic, records
        yield from ((self.sorting.topic, records) for records in tombstones(sorted(gone)))
