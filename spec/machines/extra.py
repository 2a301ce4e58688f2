"""Checks for what some programs of the spec need beyond the base installation."""

import sys
from importlib.util import find_spec


def must_have_hypothesis() -> None:
    """If Hypothesis is not installed, end the program with a message about how to install it."""
    if find_spec("hypothesis") is None:
        sys.exit("hypothesis is not installed: pip install 'tidemark-spark[spec]'")
