"""The environment variables that Spark's own programs need to find this project's Python and Spark."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


class EnvironmentIncompleteError(Exception):
    """A part of the locked environment is missing. The message names it, and the command to type."""


def spark_home() -> Path:
    """Return the folder of the installed pyspark. It is a whole Spark distribution.

    Raises EnvironmentIncompleteError if pyspark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentIncompleteError("pyspark is not installed in this Python: make env")
    return Path(spec.origin).parent


def spark_environment() -> dict[str, str]:
    """Return this process's environment with all that `spark-submit`, `spark-class` and Python workers need.

    It always sets both Python variables. Otherwise, if the virtual environment is not activated, Spark takes the
    machine's own Python, which lacks the packages.
    """
    return os.environ | {
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
