"""Keeps Python's garbage collector away from what a worker has imported.

After each task, Spark's daemon runs a full `gc.collect()` in the worker (`pyspark.daemon.manager`). It walks over all
that the worker has imported. That takes 50 to 100 ms of CPU, longer than a small task itself. `gc.freeze` takes these
objects out of its way. They live as long as the process in any case.
"""

import gc
import sys

_seen = 0
"""The number of modules that this process had when its objects were frozen last."""


def freeze_imports() -> None:
    """Freeze what the worker holds if it has imported modules since the last call. Call it at the end of a task."""
    global _seen  # noqa: PLW0603 - one heap per process
    if len(sys.modules) == _seen:
        return
    gc.collect()  # what is garbage now would be frozen too
    gc.freeze()
    _seen = len(sys.modules)
