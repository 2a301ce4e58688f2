"""A keyed function for pipelines that are only planned."""

from dataclasses import dataclass


@dataclass
class Nothing:
    """Nobody calls it."""

    def process(self, inputs, state):
        raise AssertionError("planning calls no function")
