"""Lets a topic show an upsert table: the last record of each key has its row, or no value if the key is gone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from checkpointing.identifiers import CheckpointId
from jobs.kafka_sink.records import Record, Records, deleted, tombstones
from jobs.sinks.port import TableChanges


@dataclass(frozen=True, slots=True)
class UpsertedRecords:
    """The records of an upsert table at a checkpoint. `shown` reads the keys that the topic has."""

    records: Records
    changes: TableChanges
    shown: Callable[[], set[bytes]]

    def since(self, checkpoint: CheckpointId) -> Iterator[list[Record]]:
        """Yield the records that a topic needs which shows this checkpoint. Each key is in one of them at most."""
        keys, found = self.changes.keys, self.changes.since(checkpoint)
        if found is None:
            yield from self._whole()
            return
        if found.deleted.num_rows:
            yield from deleted(found.deleted, keys)
        if found.rows.num_rows:
            for batch in found.rows.to_batches():
                yield from self.records.upserted(batch, keys)

    def _whole(self) -> Iterator[list[Record]]:
        """Yield all rows, and then the keys of the topic that the table does not have."""
        gone = self.shown()  # before the first record, since readers stop at an open transaction
        for batch in self.changes.whole():
            for records in self.records.upserted(batch, self.changes.keys):
                gone.difference_update(_encoded(record["key"]) for record in records)
                yield records
        yield from tombstones(sorted(gone))


def _encoded(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
