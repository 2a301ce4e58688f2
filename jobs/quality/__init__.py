"""Quality in its two forms (J3): row rules that split every micro-batch, and suites that judge at the barrier.

Both speak in Great Expectations' own types and keyword arguments, so that a user moves an expectation
from one to the other unchanged. Great Expectations itself is imported by `judge` alone, and late.
"""
