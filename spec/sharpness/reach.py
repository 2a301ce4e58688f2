"""Finds the lines of the core that a trial runs. A trial cannot notice a slip in lines that it never runs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from coverage import Coverage

import checkpointing

_CORE: Final = str(Path(*checkpointing.__path__) / "*")
Lines = Mapping[str, frozenset[int]]
"""Lines, by the file in which they are."""


def lines_run(trial: Callable[[], object]) -> Lines:
    """Run the trial and return the lines of the core that it ran."""
    measured = Coverage(data_file=None, config_file=False, include=[_CORE])
    measured.set_option("run:disable_warnings", ["no-data-collected"])
    with measured.collect():
        trial()
    found = measured.get_data()
    return {file: frozenset(found.lines(file) or ()) for file in found.measured_files()}
