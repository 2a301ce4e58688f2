"""A planned job: all that a tick needs to know about a pipeline, and which splits its sources have."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import JobName, SplitId, TableName, VertexId, split_id
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators.spec import VertexPlan
from jobs.pipeline.columns import InvalidPipelineError
from jobs.pipeline.pipeline import CheckpointListener, MasterHook, Report
from jobs.pipeline.vertices import Declared, Partitions
from jobs.quality.expectation import Suite
from jobs.sinks.port import Description, TableSink
from jobs.sources.port import Source, in_parts, is_bounded, upstream_of
from jobs.sources.position_words import ended_splits


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A pipeline as it runs.

    `graph` has every table: outputs, quarantines, operator states. `table_schemas` and `modes` map the names of the
    same tables to their schemas and modes. Sources have no subtasks until their splits are known.
    """

    job: JobName
    graph: JobGraph
    config: CheckpointConfig
    vertices: Mapping[VertexId, VertexPlan]
    sources: Mapping[VertexId, Source]
    table_schemas: Mapping[TableName, pa.Schema]
    suites: Mapping[TableName, Suite]
    rows_per_epoch: Mapping[VertexId, int]
    listeners: tuple[CheckpointListener, ...] = ()
    reports: tuple[Report, ...] = ()
    descriptions: Mapping[TableName, Description] = field(default_factory=dict)
    """The comments and properties that the pipeline declares for its tables."""
    partitions: Mapping[TableName, Partitions] = field(default_factory=dict)
    """The hours, days or weeks of tables that Dagster shows as partitions."""
    sinks: Mapping[TableName, TableSink] = field(default_factory=dict)
    """From tables to their outside sinks."""
    hooks: Mapping[str, MasterHook] = field(default_factory=dict)
    """From names to the master hooks of the graph."""
    declared: tuple[Declared, ...] = ()
    """The vertices as the pipeline declares them, in topological order."""

    @property
    def modes(self) -> dict[TableName, TableMode]:
        """How each table follows its stream."""
        return {table.name: table.mode for table in self.graph.tables()}

    @property
    def cut_groups(self) -> dict[VertexId, str]:
        """For each source that reads another job's cuts, whose cuts these are."""
        found = {name: upstream_of(source) for name, source in self.sources.items()}
        return {name: upstream for name, upstream in found.items() if upstream is not None}

    def with_discovered_splits(self, restored: CheckpointRecord | None = None) -> "JobPlan":
        """Return the plan with the splits of the restored cut, in its order, then the new ones.

        A subtask keeps its index, and so its position, as long as the source keeps its id. A split that no longer
        exists stays in the plan, and the source decides what a poll of that split does. The splits of a source or a
        part that has ended are not listed again. Raises SourceError if splits cannot be listed, InvalidPipelineError
        for a source or a part without splits.
        """
        known = {} if restored is None else {record.vertex: record.splits for record in restored.vertices}
        restored_first = {
            name: dict.fromkeys([*map(split_id, known.get(name, ())), *_listed(name, source, restored)])
            for name, source in self.sources.items()
        }
        return self.with_splits({name: tuple(splits) for name, splits in restored_first.items()})

    def with_splits(self, splits: Mapping[VertexId, Sequence[SplitId]]) -> "JobPlan":
        """Return the plan with these splits, in this order. Raise InvalidPipelineError for a source without splits."""
        for name in self.sources:
            if not splits.get(name):
                raise InvalidPipelineError(
                    f"source {name}: it has no split to read; write its input first, or correct its folder"
                )
        vertices = tuple(
            replace(vertex, parallelism=len(splits[vertex.id]), splits=tuple(splits[vertex.id]))
            if vertex.id in splits
            else vertex
            for vertex in self.graph.vertices
        )
        return replace(self, graph=replace(self.graph, vertices=vertices))


def _listed(name: VertexId, source: Source, restored: CheckpointRecord | None) -> Iterator[SplitId]:
    """Yield the present splits of a source. Raise InvalidPipelineError for a part without splits."""
    ended = ended_splits(restored, name)
    for part, own in in_parts(source, ended):
        if own and is_bounded(part) and all(ended[split] for split in own):
            continue
        found = part.splits()
        if not (found or own) and part is not source:
            raise InvalidPipelineError(
                f"source {name}: its {part} has no split to read; write its input first, or correct its folder"
            )
        yield from found
