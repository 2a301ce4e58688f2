"""A failed micro-batch: what a user must read of a Spark error, without the stack."""

import re

_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Za-z_]\w*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)


class MicroBatchError(Exception):
    """A micro-batch failed: names vertex, micro-batch and cause. Nothing of it counts."""

    def __init__(self, vertex: str, micro_batch: int, reason: str) -> None:
        """Name the vertex, its micro-batch and the reason."""
        super().__init__(f"micro-batch {micro_batch} of vertex {vertex} failed: {reason}")


def reason_of(error: Exception) -> str:
    """Return the last error that a Python task raised, or the first line of what Spark says."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        raised = _RAISED.findall(text)
        if raised:
            kind, message = raised[-1]
            return f"{kind}: {message}"
    return text.strip().partition("\n")[0]
