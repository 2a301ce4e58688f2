"""Quality in its two forms (J3): row rules that split every micro-batch, and suites that judge at the barrier.

Both use Great Expectations' types and keyword arguments, so that a user can turn a suite into row rules unchanged. Only
the module `judge` imports Great Expectations, and as late as possible.
"""
