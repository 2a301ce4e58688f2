"""A keyed function for pipelines that are only planned."""

from dataclasses import dataclass


@dataclass
class Nothing:
    """A keyed function that is never called."""

    def process(self, inputs, state):
        raise AssertionError("planning calls no function")
