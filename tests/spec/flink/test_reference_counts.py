"""Flink's old registry of shared files, which counted references."""

from spec.flink.reference_counts import ReferenceCountingRegistry


def test_the_counting_registry_deletes_a_file_without_references():
    """Two users give back two references. Only then is the file deleted (Flink up to 1.14)."""
    registry = ReferenceCountingRegistry()
    registry.register("k", "h")
    assert 2 == registry.register("k", "h").references
    assert () == registry.unregister("k").discarded
    assert ("h",) == registry.unregister("k").discarded


def test_an_unknown_key_is_ignored():
    """To give back a reference that nobody took, or the last one twice, changes nothing."""
    registry = ReferenceCountingRegistry()
    assert (None, 0, ()) == _told(registry.unregister("k"))
    registry.register("k", "h")
    assert (None, 0, ("h",)) == _told(registry.unregister("k"))
    assert (None, 0, ()) == _told(registry.unregister("k"))
    assert ("h", 1, ()) == _told(registry.register("k", "h"))


def _told(outcome):
    return outcome.handle, outcome.references, outcome.discarded
