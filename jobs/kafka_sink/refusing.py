"""Finds the rows whose records Kafka does not take, before it gets them.

Without a topic for refused rows, the first such row raises. With it, a record that says why goes there, in the
transaction of the other rows. To find the rows, a batch is halved until it has one row.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from jobs.kafka_sink.records import RECORDS_MAX, Record
from jobs.kafka_sink.target import RecordLimits
from jobs.sinks.port import SinkError

Sent = tuple[str, list[Record]]
"""A topic, and records for it, as `Producer.produce_batch` takes them."""
Made = Callable[[pa.RecordBatch], Iterator[list[Record]]]
"""Makes the records of rows. Raises SinkError for a row that has none."""
_SHOWN_MAX: Final = 200
"""A record of a refused row has this much of each value."""
_REASON_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sorting:
    """The records of one checkpoint for a topic. `refused` is the topic of rows that Kafka does not take.

    `said` is what each record of a refused row says besides the row and the reason.
    """

    topic: str
    limits: RecordLimits
    refused: str | None
    said: Mapping[str, object]

    def of(self, batch: pa.RecordBatch, made: Made, leaves: Made | None = None) -> Iterator[Sent]:
        """Yield the records of rows. `leaves` makes the records after which a refused row's key has no row."""
        for start in range(0, batch.num_rows, RECORDS_MAX):
            yield from self._sorted(batch.slice(start, RECORDS_MAX), made, leaves)

    def _sorted(self, part: pa.RecordBatch, made: Made, leaves: Made | None) -> Iterator[Sent]:
        found, why = self._judged(part, made)
        if why is None:
            yield from ((self.topic, records) for records in found)
        elif self.refused is None:
            raise SinkError(f"{why}. With refused=, such rows go to a topic of their own")
        elif part.num_rows > 1:
            half = part.num_rows // 2
            yield from self._sorted(part.slice(0, half), made, leaves)
            yield from self._sorted(part.slice(half), made, leaves)
        else:
            yield self.refused, [self._kept(part, why)]
            gone, keyless = self._judged(part, leaves) if leaves is not None else ([], None)
            yield from ((self.topic, records) for records in gone if keyless is None)

    def _judged(self, part: pa.RecordBatch, made: Made) -> tuple[list[list[Record]], str | None]:
        """Return the records of rows, and why Kafka does not take one of them."""
        try:
            found = list(made(part))
        except SinkError as error:
            return [], str(error)
        said = (self.limits.why_not(record) for records in found for record in records)
        return found, next((why for why in said if why is not None), None)

    def _kept(self, row: pa.RecordBatch, why: str) -> Record:
        """Return the record of a refused row: a JSON object."""
        values = {name: str(value)[:_SHOWN_MAX] for name, value in row.to_pylist()[0].items() if value is not None}
        return {"value": json.dumps({**self.said, "reason": why[:_REASON_MAX], "row": values})}
