"""Tests that objects are frozen once for each set of imported modules."""

import gc
import sys
import types

from jobs.operators.python_workers import freeze_imports


def test_objects_are_frozen_again_only_after_a_new_import(monkeypatch):
    """What a task makes later stays visible to the collector."""
    try:
        freeze_imports()
        frozen = gc.get_freeze_count()
        made = [[number] for number in range(1_000)]
        freeze_imports()
        assert 0 < gc.get_freeze_count() <= frozen  # a frozen object may go meanwhile
        monkeypatch.setitem(sys.modules, "a_module_of_this_test", types.ModuleType("a_module_of_this_test"))
        freeze_imports()
        assert gc.get_freeze_count() > frozen + 500
        assert len(made) == 1_000
    finally:
        gc.unfreeze()
