"""What some programs of the spec need beside the base installation."""

import sys
from importlib.util import find_spec


def must_have_hypothesis() -> None:
    """End the program with a sentence that says how to install Hypothesis, if it is not installed."""
    if find_spec("hypothesis") is None:
        sys.exit("hypothesis is not installed: pip install 'tidemark-spark[spec]'")
