"""The state of a key range in an object store, read by a worker without a copy."""

from uuid import uuid4

import pytest

from jobs.state.backend import CompactionPolicy
from jobs.state.worker_copy import WorkerCopies
from tests.store_proxy import Proxy, longest_chain
from tests.unit.operators.test_state import KEYS, backend, content, ranges, step

pytestmark = pytest.mark.dear
LATENCY_MS = 200
FILES = 6


def test_a_worker_without_a_copy_waits_for_one_request_however_many_files_there_are(store_server, monkeypatch):
    """A worker without a copy requests all files of the range at the same time, and merges them in order."""
    policy, files, (whole,) = CompactionPolicy(ratio=100.0, deltas_max=2 * FILES), [], ranges(1)
    with Proxy(store_server, latency_ms=LATENCY_MS) as slow:
        for name, value in slow.environment.items():
            monkeypatch.setenv(name, value)
        root = f"s3://lake/{uuid4().hex}"
        for number in range(FILES):
            changes = {"a": number, KEYS[2 + number]: number}
            files += step(backend(root, files, whole, policy, WorkerCopies(), number + 1), changes).files
        before = len(slow.seen())
        found = content(backend(root, files, whole, policy, WorkerCopies(), FILES + 1))
        asked = [each for each in slow.seen()[before:] if each.kind == "GET"]
    assert {"a": FILES - 1} | {KEYS[2 + number]: number for number in range(FILES)} == found
    assert len(files) == len(asked)
    assert longest_chain(asked) <= 2
