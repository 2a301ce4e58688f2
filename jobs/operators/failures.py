"""Describes a failed micro-batch: a sentence with vertex, cause and way out, then what Spark or Python said."""

import re
from typing import Final

from jobs.accidents import DISK_FULL, READ_ONLY, accident_in
from jobs.sinks.staged_files import StagedFileError
from jobs.user_code import TRACEBACK_CHARS_MAX, kind_of, message_of, noted

_WORKER: Final = "Traceback (most recent call last)"
_CAUSE: Final = re.compile(r"^(?:Caused by: |: )(?:[\w.$]+\.)?(?P<kind>[\w$]+): (?P<said>.+)$", re.MULTILINE)
_CALLED_FROM: Final = re.compile(r"was called from\s+(?P<file>\S.*?):(?P<line>\d+)\s*$", re.MULTILINE)

_MALFORMED: Final = re.compile(r"reading file (?:file://)?(?P<file>\S+)\.\s.*?MALFORMED_RECORD_IN_PARSING", re.DOTALL)
_RAISED: Final = re.compile(
    r"(?:MALFORMED_RECORD_IN_PARSING|MALFORMED_CSV_RECORD\] Malformed CSV record): (?P<record>.*?)(?: SQLSTATE|\n|$)"
)
"""What `sources.file_reader` raises for a record that Spark's own reader would take, or Spark for half of a record."""

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


_STAGED_FILE_ERROR: Final = f"{StagedFileError.__module__}.{StagedFileError.__qualname__}"
_SPARKS_OWN_FILES: Final = re.compile(
    r"java\.io\.IOException: (?:No space left on device|Disk quota exceeded|Read-only file system)"
)


class MicroBatchError(Exception):
    """A micro-batch failed: names vertex, micro-batch and cause, with the traceback below. Nothing of it counts.

    `not_staged`: it failed only because files could not be written, so the same rows may succeed later.
    """

    def __init__(self, vertex: str, micro_batch: int, reason: str, *, not_staged: bool = False) -> None:
        """Name the vertex, its micro-batch and the reason, whose first line is a sentence."""
        what = "could not be written" if not_staged else "failed"
        super().__init__(f"micro-batch {micro_batch} of vertex {vertex} {what}: {reason}")
        self.not_staged = not_staged

    @classmethod
    def of(cls, vertex: str, micro_batch: int, error: Exception) -> "MicroBatchError":
        """Describe what a micro-batch raised."""
        return cls(vertex, micro_batch, reason_of(error), not_staged=is_not_staged(error))


def is_not_staged(error: Exception) -> bool:
    """Return whether a micro-batch failed only because its files could not be written.

    The type decides. In a task it is StagedFileError, which only the writer of staged files raises. In the JVM it is an
    IOException about a file of Spark's own, such as a shuffle. An error of the user's code is never one of them, even
    if it says that a disk is full.
    """
    text = str(error)
    if isinstance(error, StagedFileError) or kind_of(error) == _STAGED_FILE_ERROR:
        return True
    return _WORKER not in text and _SPARKS_OWN_FILES.search(text) is not None


def reason_of(error: Exception) -> str:
    """Return why a micro-batch failed: a sentence, and below it the whole message of Python or Spark."""
    text = str(error)
    for pattern, sentence in _KNOWN:
        found = pattern.search(text)
        if found is not None:
            return f"{sentence.format(**found.groupdict())}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"
    accident = accident_in(text)
    if accident in {DISK_FULL, READ_ONLY} or (accident is not None and is_not_staged(error)):
        return f"{accident}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"
    if _WORKER not in text and ("\tat " in text or _RAISED.search(text)):
        return _of_spark(text)
    message = message_of(error, _CORRECT)
    return noted(message, _OUT_OF_MEMORY) if message.startswith("MemoryError") else message


def _of_spark(text: str) -> str:
    """Return the JVM's message without its stack, and the line of the user's code if Spark knows it."""
    causes = _CAUSE.findall(text)
    said = f"{causes[-1][0]}: {causes[-1][1]}" if causes else text.strip().partition("\n")[0]
    malformed, raised = _MALFORMED.search(text), _RAISED.search(text)
    said = raised["record"] if raised else said
    if malformed is not None:
        said = (
            f"{malformed['file']} has a record that cannot be read as the source's schema and options say ({said}): "
            "correct the file, or give its FileSource a corrupt_column, which holds such records"
        )
    place = _CALLED_FROM.search(text)
    where = f" ({place['file']}, line {place['line']})" if place else ""
    return f"{said}{where}\n{text.strip()[:TRACEBACK_CHARS_MAX]}"
