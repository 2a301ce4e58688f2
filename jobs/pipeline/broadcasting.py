"""Broadcasts: small streams, such as rules or dimensions, that every subtask of an operator sees whole (D1).

Flink calls this the broadcast state pattern (`KeyedStream.connect(BroadcastStream)`).
"""
# ruff: noqa: A002 - a vertex has an id, and is called so

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from jobs.operators.broadcast import Broadcast
from jobs.operators.process import KeyedFunction
from jobs.pipeline.columns import InvalidPipelineError, require_keys, require_ordered
from jobs.pipeline.processing import NO_OUTPUTS, Rows, process_vertex, time_to_live
from jobs.pipeline.streams import KeyedStream, Stream
from jobs.state.backend import Expires
from jobs.state.files import NONE_RENAMED


def broadcast(stream: Stream, *keys: str, latest_by: str) -> "BroadcastStream":
    """Return the stream as a broadcast, of which the newest row of each key is kept.

    The newest row is the one with the greatest value of `latest_by`, in whatever order rows arrive. A null is the least
    value. Raises InvalidPipelineError for a column that is not there, and for a `latest_by` without an order.
    """
    where = f"broadcast of {stream.origin}"
    require_keys(where, stream.schema, keys)
    require_ordered(where, stream.schema, latest_by)
    return BroadcastStream(stream, Broadcast(keys, latest_by))


@dataclass(frozen=True, slots=True)
class BroadcastStream:
    """A stream that every subtask sees whole. `kept` says which of its rows are kept. Made by `broadcast`."""

    stream: Stream
    kept: Broadcast

    def connect(self, rows: KeyedStream) -> "BroadcastConnectedStreams":
        """Connect a keyed stream with the broadcast.

        Raise InvalidPipelineError if they belong to different pipelines.
        """
        if self.stream.declarations is not rows.stream.declarations:
            raise InvalidPipelineError(
                f"connect of {self.stream.origin} and {rows.stream.origin}: the streams belong to two pipelines"
            )
        return BroadcastConnectedStreams(rows, self)


@dataclass(frozen=True, slots=True)
class BroadcastConnectedStreams:
    """A keyed stream and a broadcast. Each is an input of its own, and their barriers are aligned."""

    rows: KeyedStream
    broadcast: BroadcastStream

    def process(  # noqa: PLR0913 - each says one thing of the function
        self,
        id: str,
        function: KeyedFunction,
        *,
        state: StructType,
        output: StructType,
        outputs: Mapping[str, StructType] = NO_OUTPUTS,
        ttl: str | Expires | None = None,
        renamed_from: str | None = None,
        columns_renamed_from: Mapping[str, str] = NONE_RENAMED,
    ) -> Stream:
        """Run a keyed function. Its second input has all kept rows of the broadcast.

        The function sees the broadcast rows that have arrived when it processes a row. If it is to process its keys
        again when the broadcast rows change, it needs a method `broadcast_changed` (see `ReactsToBroadcast`). The
        broadcast rows are a state of the operator: `Cut.state` reads them under the operator's id followed by
        `_broadcast`. The arguments are as in `KeyedStream.process`.
        """
        inputs = (self.rows.as_input(), self.broadcast.stream.as_input())
        vertex = process_vertex(
            inputs,
            id,
            function,
            Rows(state, output, columns_renamed_from, outputs),
            renamed_from,
            broadcast=self.broadcast.kept,
            expires=time_to_live(id, ttl, self.rows.stream.declarations, inputs),
        )
        self.rows.stream.declarations.add(vertex)
        return Stream(self.rows.stream.declarations, vertex.id, (), vertex.rows)
