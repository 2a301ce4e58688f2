"""The configured state backend reaches every keyed vertex (D2)."""

import pytest
from pyspark.sql.types import LongType, StructType

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import VertexId
from jobs.pipeline import Pipeline, count
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.state.backend import FullBackend, IncrementalBackend, MemoryBackend


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, IncrementalBackend()),
        ({"state_backend": "incremental"}, IncrementalBackend()),
        ({"state_backend": "full"}, FullBackend()),
        ({"state_backend": "memory"}, MemoryBackend(1_048_576)),
        ({"state_backend": "memory", "memory_state_bytes_max": 5_000}, MemoryBackend(5_000)),
    ],
)
def test_every_keyed_vertex_has_the_configured_state_backend(settings, expected):
    """It comes from the pipeline's configuration, or from the run's."""
    pipeline = Pipeline("example", config=CheckpointConfig(**settings))
    numbers = pipeline.source("numbers", SequenceSource({"a": 1}, keys=1))
    kept = numbers.key_by("key").aggregate("counts", rows=count())
    kept.key_by("rows").process("twice", Nothing(), state=StructType(), output=StructType().add("n", LongType()))
    for planned in (plan(pipeline), plan(pipeline, config=CheckpointConfig(**settings))):
        backends = [planned.vertices[VertexId(name)].spec.backend for name in ("counts", "twice")]
        assert [expected] * 2 == backends


class Nothing:
    """A keyed function that nobody calls here."""

    def process(self, inputs, state):
        """Fail."""
        raise AssertionError("planning calls no function")
