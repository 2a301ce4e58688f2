"""Describes a failed micro-batch: a sentence with vertex, cause and way out, then what Spark or Python said."""

import re
from typing import Final

from jobs.accidents import DISK_FULL, READ_ONLY, accident_in
from jobs.user_code import TRACEBACK_CHARS_MAX, message_of, noted

_WORKER: Final = "Traceback (most recent call last)"
_CAUSE: Final = re.compile(r"^(?:Caused by: |: )(?:[\w.$]+\.)?(?P<kind>[\w$]+): (?P<said>.+)$", re.MULTILINE)
_CALLED_FROM: Final = re.compile(r"was called from\s+(?P<file>\S.*?):(?P<line>\d+)\s*$", re.MULTILINE)

_SMALLER: Final = "make micro-batches smaller, as with --set micro_batch_rows_max=50000 --set slice_rows_max=10000"
_OUT_OF_MEMORY: Final = f"- the function ran out of memory: {_SMALLER}"
_CORRECT: Final = ": correct it and run again, nothing of this micro-batch counts"
_DIED: Final = (
    "a Python worker died while it ran the vertex's function: the function called os._exit or crashed in native code, "
    f"or the kernel killed the worker because memory ran out (see 'dmesg'): {_SMALLER}"
)
_KNOWN: Final = (
    (
        re.compile(r"java\.lang\.OutOfMemoryError|OutOfMemoryError: "),
        f"Spark's JVM ran out of memory: give it more with --spark-memory 4g, or {_SMALLER}",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH"),
        "the Python of the workers has another version than the tick's: unset PYSPARK_PYTHON, or set it to this Python",
    ),
    (
        re.compile(r'Cannot run program "(?P<thing>[^"]*)"'),
        "Spark cannot start {thing} for its Python workers: unset PYSPARK_PYTHON, or set it to a Python that is there",
    ),
    (
        re.compile(r"Python worker exited unexpectedly|Python worker process terminated"),
        _DIED,
    ),
)
"""Patterns of Spark's messages about problems of the machine, and our sentence for each. The first match counts."""


class MicroBatchError(Exception):
    """A micro-batch failed: names vertex, micro-batch and cause, with the traceback below. Nothing of it counts."""

    def __init__(self, vertex: str, micro_batch: int, reason: str) -> None:
        """Name the vertex, its micro-batch and the reason, whose first line is a sentence."""
        super().__init__(f"micro-batch {micro_batch} of vertex {vertex} failed: {reason}")


def reason_of(error: Exception) -> str:
    """Return why a micro-batch failed: a sentence, and below it the whole message of Python or Spark."""
    text = str(error)
    for pattern, sentence in _KNOWN:
        found = pattern.search(text)
        if found is not None:
            return f"{sentence.format(**found.groupdict())}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"
    accident = accident_in(text)
    if accident in {DISK_FULL, READ_ONLY}:
        return f"{accident}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"
    if _WORKER not in text and "\tat " in text:
        return _of_spark(text)
    message = message_of(error, _CORRECT)
    return noted(message, _OUT_OF_MEMORY) if message.startswith("MemoryError") else message


def _of_spark(text: str) -> str:
    """Return the JVM's message without its stack, and the line of the user's code if Spark knows it."""
    causes = _CAUSE.findall(text)
    said = f"{causes[-1][0]}: {causes[-1][1]}" if causes else text.strip().partition("\n")[0]
    place = _CALLED_FROM.search(text)
    where = f" ({place['file']}, line {place['line']})" if place else ""
    return f"{said}{where}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"
