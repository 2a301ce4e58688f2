"""Lets a command finish even if stdout or stderr is closed or full.

Output that can no longer be written is dropped.
"""

import os
import re
import sys
from typing import Final, TextIO

_STANDARD: Final = (0, 1, 2)
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return a text without control characters other than tabs and the ends of lines.

    Names of tables, columns and files come from data. A terminal would obey the control characters in them.
    """
    return _CONTROLS.sub("?", text)


class LastingStream:
    """A text stream that drops what it cannot write; `error` is the first failure. It delegates everything else."""

    def __init__(self, stream: TextIO) -> None:
        """Wrap this stream."""
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        if self.error is None:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._lost(error)
        return len(text)

    def flush(self) -> None:
        """Flush the buffer, or drop it."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._lost(error)

    def __getattr__(self, name: str) -> object:
        """Return the stream's own attribute."""
        return getattr(self._stream, name)

    def _lost(self, error: OSError) -> None:
        """Redirect the stream to nothing, so that the last flush of the process succeeds."""
        self.error = error
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)


def standard_streams() -> tuple[LastingStream, LastingStream]:
    """Return stdout and stderr as lasting streams, and make them the process's.

    A closed descriptor is first opened on /dev/null, so that no file of the tick gets its number. The streams have
    descriptors of their own, because 1 and 2 belong to Spark's log while its JVM starts.
    """
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    out, err = (LastingStream(_own(number, stream)) for number, stream in ((1, sys.stdout), (2, sys.stderr)))
    sys.stdout, sys.stderr = out, err
    return out, err


def _own(number: int, stream: TextIO | None) -> TextIO:
    """Return a stream that writes where this descriptor leads, as the given one does."""
    if stream is None:
        return os.fdopen(os.dup(number), "w")
    stream.flush()
    return os.fdopen(os.dup(number), "w", buffering=1, encoding=stream.encoding, errors=stream.errors)
